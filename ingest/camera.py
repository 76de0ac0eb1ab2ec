"""One camera: a thread that keeps a connection, hands on the newest frame, and says how the camera fares."""

from __future__ import annotations

import logging
import threading
import traceback
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, replace

import numpy as np

from ingest.arrival import Arrivals
from ingest.backoff import HEALTHY_AFTER_S, Backoff
from ingest.counts import DropCounts
from ingest.decoder import DecoderDevices
from ingest.frame import Frame, FrameSink, Image
from ingest.frozen import FrozenPicture
from ingest.idle import IdleGate
from ingest.polygon import PrivacyMasks
from ingest.rate import Rate
from ingest.source import DecodedPicture, FrameSource
from ingest.stream import open_source
from ingest.stream_errors import Failure, StreamError
from pipeline.clock import Clock
from pipeline.config import CameraConfig
from pipeline.logs import ThrottledLogger
from pipeline.messages import CameraState
from pipeline.reasons import REASON_TEXT, Reason
from pipeline.redaction import redact

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class CameraHealth:
    """How a camera fares, at one moment.

    Attributes:
        since: when the state began, seconds since the epoch.
        next_retry: when the next attempt is due, seconds since the epoch; None while connected or connecting.
        reconnects: how often it came online again after it had been.
        frames: handed to the detector's slot; ``fps`` is their rate over the last seconds.
        fps_in: pictures decoded from the stream, the same way.
        last_frame: when the newest frame arrived (monotonic), None before the first.
        decoder: ``cpu`` or the name of a device; empty before the first connection.
        idle: only keyframes are decoded, because nothing moves.
    """

    state: CameraState
    reason: Reason
    since: float
    next_retry: float | None = None
    reconnects: int = 0
    frames: int = 0
    fps: float = 0.0
    fps_in: float = 0.0
    last_frame: float | None = None
    width: int = 0
    height: int = 0
    decoder: str = ""
    idle: bool = False


StateListener = Callable[[CameraHealth], None]


class CameraReader:
    """Reads one camera until it is stopped; a failure is answered by another attempt, for ever.

    ``on_state`` is called from the reader's thread at every change of state or reason, and must return soon.
    """

    def __init__(
        self,
        config: CameraConfig,
        slot: FrameSink,
        drops: DropCounts,
        clock: Clock,
        on_state: StateListener | None = None,
        backoff: Backoff | None = None,
        devices: DecoderDevices | None = None,
        idle: IdleGate | None = None,
        title: str = "",
    ) -> None:
        """``title`` is what the log calls it, the camera's id when not given."""
        self._config = config
        self._slot = slot
        self._drops = drops
        self._clock = clock
        self._on_state = on_state
        self._backoff = backoff or Backoff()
        self._devices = devices or DecoderDevices()
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._health = CameraHealth(CameraState.CONNECTING, Reason.NONE, clock.now())
        self._decoded = Rate()
        self._handed_on = Rate()
        self._connection = 0
        self._online_connection = 0
        self._frozen = FrozenPicture(config.frozen_after_s, config.frozen_keyframes)
        self._idle = idle or IdleGate(config.idle_after_s, clock.monotonic())
        self._masks = PrivacyMasks(config.masks)
        self._title = title or config.id
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

    def keep_awake(self) -> None:
        """Something happens, or is looked at: every frame is wanted. May be called by any thread."""
        self._idle.keep_awake(self._clock.monotonic())

    def health(self) -> CameraHealth:
        now = self._clock.monotonic()
        with self._lock:
            health = self._health
        return replace(
            health,
            fps=round(self._handed_on.per_second(now), 2),
            fps_in=round(self._decoded.per_second(now), 2),
        )

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                self._read_one_connection()
                break  # only a stop ends a connection without an error
            except StreamError as error:
                failure = error.failure
            except Exception:  # isolates the cameras from each other
                log.error("camera %s: unexpected failure\n%s", self._title, redact(traceback.format_exc()))
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
            self._title,
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
        with (
            open_source(self._config, self._stop, self._devices) as source,
            closing(source.pictures()) as pictures,
        ):
            self._connection += 1
            arrivals = Arrivals(self._config, source.live, source.fps, self._clock.monotonic())
            for picture in pictures:
                now = self._clock.monotonic()
                if picture is not None:
                    self._decoded.count(now)
                    arrivals.arrived(now)
                    self._take(picture, source, arrivals, now)
                elif source.keyframes_only:
                    arrivals.arrived(source.last_packet)
                self._rest_or_not(source, now)
                arrivals.check_deadlines(now)
                if now - arrivals.opened >= HEALTHY_AFTER_S:
                    self._backoff.reset()

    def _take(self, picture: DecodedPicture, source: FrameSource, arrivals: Arrivals, now: float) -> None:
        """Hands a picture on if it is new, whole and due, and not the same as ever."""
        if arrivals.is_backlog(picture.waited, now):
            self._drops.add(Reason.FRAME_STALE)
            return
        if not picture.usable:
            self._drops.add(Reason.FRAME_TAINTED)
            return
        arrivals.used()
        due = arrivals.is_due(now)
        if not due and not (picture.keyframe and source.live):
            return
        image = np.ascontiguousarray(picture.frame.to_ndarray(format="bgr24"), dtype=np.uint8)
        self._masks.black_out(image)
        frozen = source.live and self._frozen.sees(image, picture.keyframe, now)
        if frozen:
            self._drops.add(Reason.FROZEN)
            self._set_state(CameraState.FROZEN, Reason.FROZEN)
        elif due:
            self._hand_on(image, now)

    def _rest_or_not(self, source: FrameSource, now: float) -> None:
        source.keyframes_only = source.live and self._idle.idles(now)
        health = self._health
        if (health.decoder, health.idle) != (source.decoder, source.keyframes_only):
            with self._lock:
                self._health = replace(self._health, decoder=source.decoder, idle=source.keyframes_only)

    def _hand_on(self, image: Image, now: float) -> None:
        with self._lock:
            number = self._health.frames + 1
            self._health = replace(
                self._health,
                frames=number,
                last_frame=now,
                width=int(image.shape[1]),
                height=int(image.shape[0]),
            )
        self._handed_on.count(now)
        self._set_state(CameraState.ONLINE, Reason.NONE)
        self._slot.put(Frame(self._config.id, number, image, self._clock.now(), now, self._connection))

    def _set_state(self, state: CameraState, reason: Reason, next_retry: float | None = None) -> None:
        with self._lock:
            before = self._health
            changed = (before.state, before.reason) != (state, reason)
            reconnects = before.reconnects
            if state is CameraState.ONLINE and self._online_connection != self._connection:
                reconnects += self._online_connection > 0
                self._online_connection = self._connection
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
            log.info("camera %s: online, %dx%d", self._title, health.width, health.height)
        elif state is CameraState.STOPPING:
            log.info("camera %s: stopped. %s", self._title, REASON_TEXT[reason])
        if self._on_state is not None:
            self._on_state(health)
