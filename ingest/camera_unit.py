"""Everything of one camera in one place: its reader, its slot, its analysis, its status."""

from __future__ import annotations

import time
from dataclasses import dataclass

from ingest.analysis import CameraAnalysis
from ingest.camera import CameraHealth, CameraReader
from ingest.counts import DropLedger
from ingest.decoder import DecoderDevices
from ingest.detection import Rows
from ingest.detector_loop import DetectorLoop
from ingest.frame import Frame, FrameSlot
from ingest.main_stream import MainStream
from ingest.observation import Observation, ObservationKind, Observer
from ingest.preview import PreviewBoard
from ingest.publisher import Publisher
from ingest.source import file_of
from ingest.track import TrackNames
from pipeline.clock import Clock
from pipeline.config import CameraConfig, WatchwordConfig
from pipeline.messages import CameraState, CameraStatus
from pipeline.reasons import REASON_TEXT, Reason
from pipeline.redaction import redact, register_secret


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What all cameras of a worker share. ``label`` is what the detector calls a person."""

    config: WatchwordConfig
    label: str
    names: TrackNames
    loop: DetectorLoop
    publisher: Publisher
    previews: PreviewBoard
    drops: DropLedger
    clock: Clock
    observer: Observer
    devices: DecoderDevices


class CameraUnit:
    """A camera from connection to messages; implements the detector loop's feed.

    A disabled camera has a unit, too: it has a status but no thread and no connection.
    """

    def __init__(self, config: CameraConfig, shared: Surroundings) -> None:
        register_secret(config.password.get_secret_value() if config.password else None)
        self.config = config
        self._shared = shared
        self._drops = shared.drops.of(config.id)
        self._slot = FrameSlot(self._drops, shared.loop.wake)
        self._created = shared.clock.now()
        self._closed = False
        self._analysis = CameraAnalysis(
            config,
            shared.config,
            shared.names,
            shared.publisher,
            shared.previews,
            self._drops,
            shared.clock,
            shared.observer,
        )
        self._reader: CameraReader | None = None
        self._main: MainStream | None = None
        if config.enabled:
            looked_at = config
            if config.substream_url is not None:
                looked_at = config.model_copy(update={"url": config.substream_url})
                self._main = MainStream(config, shared.clock, shared.devices)
            self._reader = CameraReader(
                looked_at, self._slot, self._drops, shared.clock, self._on_state, devices=shared.devices
            )

    @property
    def camera(self) -> str:
        return self.config.id

    @property
    def slot(self) -> FrameSlot:
        return self._slot

    def start(self) -> None:
        """Connects and joins the detector's rounds; nothing for a disabled camera."""
        if self._reader is not None:
            self._shared.loop.add(self)
            self._reader.start()
        if self._main is not None:
            self._main.start()

    def request_stop(self) -> None:
        """Returns at once."""
        if self._reader is not None:
            self._reader.request_stop()
        if self._main is not None:
            self._main.request_stop()

    def stop(self, timeout: float) -> None:
        """Tears the session down and ends the open tracks, in whatever state the connection is."""
        self.request_stop()
        deadline = time.monotonic() + timeout
        if self._reader is not None:
            self._reader.stop(timeout)
        if self._main is not None:
            self._main.stop(max(0.1, deadline - time.monotonic()))
        self._closed = True
        self._shared.loop.remove(self.camera)
        self._analysis.end_all(Reason.SHUTDOWN)

    def rename(self, config: CameraConfig) -> None:
        """Takes over settings that don't touch connection or detection."""
        self.config = config

    def detected(self, frame: Frame, rows: Rows, seconds: float) -> None:
        detail = self._main.picture_of(frame) if self._main is not None else None
        self._analysis.frame(frame, rows, self._shared.label, seconds, detail)
        if self._analysis.counts.in_view:
            for reader in (self._reader, self._main):
                if reader is not None:
                    reader.keep_awake()

    def detector_failed(self, frame: Frame) -> None:
        self._drops.add(Reason.DETECTOR)

    def tick(self, now: float) -> None:
        self._analysis.tick(now)

    def status(self) -> CameraStatus:
        """The camera's state for everyone."""
        health = self._health()
        counts = self._analysis.counts
        clock = self._shared.clock
        return CameraStatus(
            camera=self.camera,
            name=self.config.title,
            state=health.state,
            reason=health.reason,
            since=health.since,
            updated=clock.now(),
            source=redact(self.config.url),
            fps=health.fps,
            frame_age=None if health.last_frame is None else round(clock.monotonic() - health.last_frame, 3),
            width=health.width,
            height=health.height,
            next_retry=health.next_retry,
            reconnects=health.reconnects,
            frames=health.frames,
            detections=counts.detections,
            tracks=counts.in_view,
            crops=sum(counts.crops.values()),
            crops_by_kind=counts.crops,
            detector_ms=round(counts.detector_ms, 1),
            drops=self._drops.totals(),
            decoder=health.decoder,
        )

    def _health(self) -> CameraHealth:
        if self._reader is None:
            return CameraHealth(CameraState.DISABLED, Reason.NONE, self._created)
        return self._reader.health()

    def _on_state(self, health: CameraHealth) -> None:
        if self._closed:
            return
        what = "file" if file_of(self.config.url) else "camera"
        text = f"{what} {self.camera} {health.state.value.replace('_', ' ')}"
        if health.reason not in (Reason.NONE, Reason.SHUTDOWN):
            text += f": {REASON_TEXT[health.reason]}"
        self._shared.observer(Observation(ObservationKind.CAMERA, health.since, text, self.camera))
