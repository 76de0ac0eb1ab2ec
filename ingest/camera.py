"""One camera: a thread that keeps a connection, hands on the newest frame, and says how the camera fares."""

from __future__ import annotations

import logging
import threading
import traceback
from collections import deque
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, replace

import numpy as np

from ingest.backoff import HEALTHY_AFTER_S, Backoff
from ingest.counts import DropCounts
from ingest.frame import Frame, FrameSlot
from ingest.stream import DecodedPicture, VideoStream
from ingest.stream_errors import Failure, StreamError
from pipeline.clock import Clock
from pipeline.config import CameraConfig
from pipeline.logs import ThrottledLogger
from pipeline.messages import CameraState
from pipeline.reasons import REASON_TEXT, Reason
from pipeline.redaction import redact

log = logging.getLogger(__name__)

MAX_DRAIN_S = 3.0
"""A backlog is behind us after so long at the latest; cameras that send in bursts never leave a gap."""
FPS_WINDOW_S = 5.0


@dataclass(frozen=True, slots=True)
class CameraHealth:
    """How a camera fares, at one moment.

    Attributes:
        since: when the state began, seconds since the epoch.
        next_retry: when the next attempt is due, seconds since the epoch; None while connected or connecting.
        reconnects: how often it came online again after it had been.
        frames: handed to the detector's slot; ``fps`` is their rate over the last seconds.
        last_frame: when the newest frame arrived (monotonic), None before the first.
    """

    state: CameraState
    reason: Reason
    since: float
    next_retry: float | None = None
    reconnects: int = 0
    frames: int = 0
    fps: float = 0.0
    last_frame: float | None = None
    width: int = 0
    height: int = 0


StateListener = Callable[[CameraHealth], None]


class CameraReader:
    """Reads one camera until it is stopped; a failure is answered by another attempt, for ever.

    ``on_state`` is called from the reader's thread at every change of state or reason, and must return soon.
    """

    def __init__(
        self,
        config: CameraConfig,
        slot: FrameSlot,
        drops: DropCounts,
        clock: Clock,
        on_state: StateListener | None = None,
        backoff: Backoff | None = None,
    ) -> None:
        self._config = config
        self._slot = slot
        self._drops = drops
        self._clock = clock
        self._on_state = on_state
        self._backoff = backoff or Backoff()
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._health = CameraHealth(CameraState.CONNECTING, Reason.NONE, clock.now())
        self._arrivals: deque[float] = deque(maxlen=512)
        self._connection = 0
        self._was_online = False
        self._failures = ThrottledLogger(log)
        self._thread = threading.Thread(target=self._run, name=f"camera-{config.id}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self, timeout: float = 2.5) -> bool:
        """Asks the thread to end and waits for it. True when the session is torn down.

        False only when it is stuck in opening a connection that does not answer; it then ends by itself as soon as
        that times out, and holds no session until then.
        """
        self.request_stop()
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def request_stop(self) -> None:
        """Returns at once."""
        self._stop.set()

    def health(self) -> CameraHealth:
        with self._lock:
            health = self._health
            recent = [at for at in self._arrivals if at > self._clock.monotonic() - FPS_WINDOW_S]
        span = recent[-1] - recent[0] if len(recent) > 1 else 0.0
        fps = (len(recent) - 1) / span if span > 0 else 0.0
        return replace(health, fps=round(fps, 2))

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                self._read_one_connection()
                break  # only a stop ends a connection without an error
            except StreamError as error:
                failure = error.failure
            except Exception:  # isolates the cameras from each other
                log.error("camera %s: unexpected failure\n%s", self._config.id, redact(traceback.format_exc()))
                failure = Failure(CameraState.UNREACHABLE, Reason.STREAM_ENDED, "unexpected failure")
            if self._stop.is_set():
                break
            self._wait_after(failure)
        self._slot.clear()
        self._set_state(CameraState.STOPPING, Reason.SHUTDOWN)

    def _wait_after(self, failure: Failure) -> None:
        delay = self._backoff.next_delay(auth=failure.reason is Reason.AUTH)
        self._set_state(failure.state, failure.reason, next_retry=self._clock.now() + delay)
        self._failures.log(
            logging.WARNING,
            f"{failure.state} {failure.reason}",
            "camera %s: %s (%s)%s; attempt %d, next in %.0f s",
            self._config.id,
            failure.state.value,
            failure.reason.value,
            f" [{failure.detail}]" if failure.detail else "",
            self._backoff.failures,
            delay,
        )
        self._stop.wait(delay)

    def _read_one_connection(self) -> None:
        """Returns after a stop request. Raises StreamError when the connection fails, stalls or ends."""
        with self._lock:
            self._health = replace(self._health, next_retry=None)
        with VideoStream(self._config, self._stop) as stream, closing(stream.pictures()) as pictures:
            self._connection += 1
            session = _Session(stream, self._config, self._clock.monotonic())
            for picture in pictures:
                now = self._clock.monotonic()
                if picture is None:
                    session.check_deadlines(now)
                    continue
                session.arrived(now)
                refused = session.refuses(picture, now)
                if refused is not None:
                    self._drops.add(refused)
                    session.check_deadlines(now)
                    continue
                if session.is_due(now):
                    self._hand_on(picture, now)
                    session.used()
                if now - session.opened >= HEALTHY_AFTER_S:
                    self._backoff.reset()

    def _hand_on(self, picture: DecodedPicture, now: float) -> None:
        image = np.ascontiguousarray(picture.frame.to_ndarray(format="bgr24"), dtype=np.uint8)
        with self._lock:
            number = self._health.frames + 1
            self._arrivals.append(now)
            self._health = replace(
                self._health,
                frames=number,
                last_frame=now,
                width=picture.frame.width,
                height=picture.frame.height,
            )
        self._set_state(CameraState.ONLINE, Reason.NONE)
        self._slot.put(Frame(self._config.id, number, image, self._clock.now(), now, self._connection))

    def _set_state(self, state: CameraState, reason: Reason, next_retry: float | None = None) -> None:
        with self._lock:
            before = self._health
            changed = (before.state, before.reason) != (state, reason)
            reconnects = before.reconnects
            if changed and state is CameraState.ONLINE:
                reconnects += self._was_online
                self._was_online = True
            self._health = health = replace(
                before,
                state=state,
                reason=reason,
                since=self._clock.now() if changed else before.since,
                next_retry=next_retry,
                reconnects=reconnects,
            )
        if not changed:
            return
        if state is CameraState.ONLINE:
            log.info("camera %s: online, %dx%d", self._config.id, health.width, health.height)
        elif state is CameraState.STOPPING:
            log.info("camera %s: stopped. %s", self._config.id, REASON_TEXT[reason])
        if self._on_state is not None:
            self._on_state(health)


class _Session:
    """Deadlines and timing within one connection. All times are monotonic seconds."""

    def __init__(self, stream: VideoStream, config: CameraConfig, now: float) -> None:
        self.opened = now
        self._config = config
        self._period = 1.0 / config.fps
        self._gap = 0.5 / stream.fps
        self._pause = max(2.0, 4.0 / stream.fps)
        self._draining_since = now if stream.live else None
        self._live = stream.live
        self._last_arrival = now
        self._any_used = False
        self._due = now

    def refuses(self, picture: DecodedPicture, now: float) -> Reason | None:
        """Why the picture can't be used, or None."""
        if self._is_backlog(picture, now):
            return Reason.FRAME_STALE
        return None if picture.usable else Reason.FRAME_TAINTED

    def _is_backlog(self, picture: DecodedPicture, now: float) -> bool:
        """True while old frames arrive in a burst: after connecting (measured: 28 frames, 3 s old, came within 50 ms)
        and after a pause of the network. A frame that the reader had to wait for is a new one."""
        if self._live and picture.waited > self._pause:
            self._draining_since = now
        elif self._draining_since is not None and (
            picture.waited >= self._gap or now - self._draining_since > MAX_DRAIN_S
        ):
            self._draining_since = None
        return self._draining_since is not None

    def arrived(self, now: float) -> None:
        self._last_arrival = now

    def used(self) -> None:
        self._any_used = True

    def is_due(self, now: float) -> bool:
        """Thins the stream out to the wanted rate by arrival; a tenth of a period early counts as in time."""
        if now < self._due - 0.1 * self._period:
            return False
        self._due = max(self._due + self._period, now + 0.5 * self._period)
        return True

    def check_deadlines(self, now: float) -> None:
        """Raises StreamError when the first usable frame, or the next frame, is overdue."""
        if not self._any_used and now - self.opened > self._config.first_frame_timeout_s:
            raise StreamError(Failure(CameraState.STALLED, Reason.FIRST_FRAME_TIMEOUT))
        if self._any_used and now - self._last_arrival > self._config.stall_timeout_s:
            raise StreamError(Failure(CameraState.STALLED, Reason.NO_FRAMES))
