"""The only place in ingest that writes to Redis: its own thread, which outlasts any absence of the server."""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import redis

from ingest.backoff import Backoff
from ingest.buffer import MessageBuffer, WaitingCrop
from ingest.counts import DropLedger
from ingest.observation import Observation, ObservationKind, Observer
from ingest.preview import PreviewBoard, draw
from pipeline.clock import Clock
from pipeline.config import RedisConfig
from pipeline.logs import ThrottledLogger
from pipeline.messages import CameraStatus, CropMessage, TrackMessage
from pipeline.queue.address import RedisAddress
from pipeline.queue.connect import sync_client
from pipeline.queue.crops import CropWriter
from pipeline.queue.drops import DoubtfulDrop, DropCounter
from pipeline.queue.preview import PreviewWriter
from pipeline.queue.status import StatusWriter
from pipeline.queue.tracks import TrackWriter
from pipeline.reasons import REASON_TEXT, Reason

log = logging.getLogger(__name__)

STATUS_EVERY_S = 1.0


@dataclass(frozen=True, slots=True)
class PublisherHealth:
    """``connected`` is None until the first write succeeded or failed; ``since`` is when that changed (epoch)."""

    connected: bool | None
    reason: Reason
    since: float
    crops_waiting: int
    tracks_waiting: int


class Publisher:
    """Takes messages from any thread without blocking it, and writes them in order.

    While Redis is away everything waits in a :class:`MessageBuffer`; attempts go on for ever. ``statuses`` gives the
    state of each camera and is asked about once a second.
    """

    def __init__(
        self,
        address: RedisAddress | str,
        config: RedisConfig,
        statuses: Callable[[], list[CameraStatus]],
        drops: DropLedger,
        previews: PreviewBoard,
        clock: Clock,
        observer: Observer,
    ) -> None:
        self._client = sync_client(address)
        self._crop_writer = CropWriter(self._client, config)
        self._track_writer = TrackWriter(self._client)
        self._status_writer = StatusWriter(self._client, config)
        self._preview_writer = PreviewWriter(self._client)
        self._drop_counter = DropCounter(self._client)
        self._uncounted: tuple[str, dict[tuple[str, Reason], int], tuple[DoubtfulDrop, ...]] | None = None
        self._statuses = statuses
        self._drops = drops
        self._previews = previews
        self._clock = clock
        self._observer = observer
        self._buffer = MessageBuffer(config.buffer_crops, drops, clock.now)
        self._removed: deque[str] = deque()
        self._backoff = Backoff(first=0.25, cap=3.0)
        self._failures = ThrottledLogger(log)
        self._wake = threading.Event()
        self._closing = threading.Event()
        self._close_by = 0.0
        self._status_due = 0.0
        self._connected: bool | None = None
        self._reason = Reason.NONE
        self._since = clock.now()
        self._thread = threading.Thread(target=self._run, name="publisher", daemon=True)
        previews.on_put = self._wake.set

    def start(self) -> None:
        self._thread.start()

    def stop(self, timeout: float) -> bool:
        """Writes what waits, the last statuses and counts, and ends. True when nothing was left behind."""
        self._close_by = time.monotonic() + timeout
        self._closing.set()
        self._wake.set()
        if self._thread.ident is not None:
            self._thread.join(timeout + 0.5)
        self._client.close()
        crops, tracks = self._buffer.sizes()
        if crops or tracks:
            log.error("publisher: %d crops and %d track messages could not be written", crops, tracks)
        return not (crops or tracks or self._thread.is_alive())

    def track(self, message: TrackMessage) -> None:
        self._buffer.put_track(message)
        self._wake.set()

    def crop(self, message: CropMessage, jpeg: bytes, extras: tuple[bytes, ...] = ()) -> None:
        self._buffer.put_crop(WaitingCrop(message, jpeg, extras))
        self._wake.set()

    def forget(self, camera: str) -> None:
        """A camera was removed: its last counts are written, its state goes."""
        self._removed.append(camera)
        self._wake.set()

    def health(self) -> PublisherHealth:
        crops, tracks = self._buffer.sizes()
        return PublisherHealth(self._connected, self._reason, self._since, crops, tracks)

    def _run(self) -> None:
        while True:
            closing = self._closing.is_set()
            if not closing:
                self._wake.wait(max(0.0, self._status_due - time.monotonic()))
            self._wake.clear()
            try:
                self._write_all(last=closing)
            except redis.RedisError as error:
                delay = self._failed(error)
                if closing and time.monotonic() + delay >= self._close_by:
                    return
                if closing:
                    time.sleep(min(delay, 0.2))
                else:
                    self._closing.wait(delay)
            except Exception:  # whatever is wrong with one message must not end the publishing of all others
                log.exception("publisher: unexpected failure")
                self._closing.wait(1.0)
                if closing and time.monotonic() >= self._close_by:
                    return
            else:
                self._succeeded()
                if closing:
                    return

    def _write_all(self, last: bool) -> None:
        self._write_messages()
        self._write_previews()
        if last or self._removed or time.monotonic() >= self._status_due:
            self._write_drops()
            self._write_statuses()
            self._status_due = time.monotonic() + STATUS_EVERY_S

    def _write_messages(self) -> None:
        while (item := self._buffer.take()) is not None:
            try:
                if isinstance(item, WaitingCrop):
                    self._crop_writer.publish(item.message, item.jpeg, item.extras)
                else:
                    self._track_writer.publish(item)
            except redis.RedisError:
                # Writing it again is harmless if only the reply got lost.
                self._buffer.give_back(item)
                raise

    def _write_previews(self) -> None:
        for preview in self._previews.take():
            self._preview_writer.write(preview.frame.camera, draw(preview))

    def _write_drops(self) -> None:
        """Counts what was dropped since the last time, once, however often it must be tried."""
        if self._uncounted is not None:
            self._count(*self._uncounted)
        ledger = self._drops.all().items()
        new = {(camera, reason): n for camera, counts in ledger for reason, n in counts.take_new().items()}
        doubts = tuple(DoubtfulDrop(camera, *doubt) for camera, counts in ledger for doubt in counts.take_doubts())
        if new or doubts:
            self._count(uuid.uuid4().hex, new, doubts)

    def _count(self, token: str, counts: dict[tuple[str, Reason], int], doubts: tuple[DoubtfulDrop, ...]) -> None:
        self._uncounted = (token, counts, doubts)
        self._drop_counter.add(counts, token, doubts)
        self._uncounted = None

    def _write_statuses(self) -> None:
        while self._removed:
            self._status_writer.remove(self._removed[0])
            self._drops.forget(self._removed.popleft())
        for status in self._statuses():
            self._status_writer.write(status)

    def _failed(self, error: redis.RedisError) -> float:
        """Notes the failure and says how long to wait."""
        reason = Reason.REDIS_MEMORY if isinstance(error, redis.exceptions.OutOfMemoryError) else Reason.REDIS_DOWN
        delay = self._backoff.next_delay()
        name = type(error).__name__
        self._failures.log(logging.WARNING, name, "publisher: %s (%s)", REASON_TEXT[reason], name)
        self._changed(False, reason)
        return delay

    def _succeeded(self) -> None:
        self._backoff.reset()
        self._changed(True, Reason.NONE)

    def _changed(self, connected: bool, reason: Reason) -> None:
        if (connected, reason) == (self._connected, self._reason):
            return
        first = self._connected is None
        self._connected, self._reason, self._since = connected, reason, self._clock.now()
        if connected and first:
            return
        text = "Redis is back" if connected else REASON_TEXT[reason]
        log.info("publisher: %s", text)
        self._observer(Observation(ObservationKind.REDIS, self._since, text))
