"""Everything of one camera in one place: its reader, its slot, its analysis, its status."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass

from ingest.analysis import CameraAnalysis
from ingest.camera import CameraHealth, CameraReader
from ingest.counts import DropLedger
from ingest.decoder import DecoderDevices
from ingest.detection import Labels, Rows
from ingest.detector import DetectorError, DetectorGroup, Detectors
from ingest.detector_loop import DetectorLoop
from ingest.frame import Frame, FrameSlot
from ingest.hours import Hours
from ingest.main_stream import MainStream
from ingest.motion import MotionGate
from ingest.observation import Observation, ObservationKind, Observer
from ingest.preview import PreviewBoard
from ingest.publisher import Publisher
from ingest.rate import Rate
from ingest.source import file_of
from ingest.track import TrackNames
from ingest.weights import WeightsUnavailable
from pipeline.clock import Clock
from pipeline.config import CameraConfig, WatchwordConfig
from pipeline.messages import CameraState, CameraStatus
from pipeline.reasons import REASON_TEXT, Reason
from pipeline.redaction import redact, register_secret

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What all cameras of a worker share."""

    config: WatchwordConfig
    detectors: Detectors
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

    A disabled camera has a unit, too, and so has one outside its hours: a status but no thread and no connection.
    """

    def __init__(self, config: CameraConfig, shared: Surroundings) -> None:
        """Loads the camera's network if no other camera has yet, which takes seconds.

        A camera whose network can't be used is UNSUPPORTED and stays disconnected; the others go on.
        """
        register_secret(config.password.get_secret_value() if config.password else None)
        self.config = config
        self._shared = shared
        self._hours = Hours(config, shared.clock)
        self._watched = self._hours.are_open()
        self._drops = shared.drops.of(config.id)
        self._slot = FrameSlot(self._drops, shared.loop.wake)
        self._created = shared.clock.now()
        self._closed = False
        self._processed = Rate()
        self.group = DetectorGroup.of(config, shared.config.detector)
        self._labels = self._network_labels() if self._watched else {}
        self._gate = MotionGate(config.motion, shared.config.tracking.lost_s)
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
        if self._labels:
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

    def stop(self, timeout: float, reason: Reason = Reason.SHUTDOWN) -> None:
        """Tears the session down and ends the open tracks, in whatever state the connection is."""
        self.request_stop()
        deadline = time.monotonic() + timeout
        if self._reader is not None:
            self._reader.stop(timeout)
        if self._main is not None:
            self._main.stop(max(0.1, deadline - time.monotonic()))
        self._closed = True
        self._shared.loop.remove(self.camera)
        self._analysis.end_all(reason)

    def rename(self, config: CameraConfig) -> None:
        """Takes over settings that don't touch connection or detection."""
        if config.schedule != self.config.schedule:
            self._hours = Hours(config, self._shared.clock)
        self.config = config

    def is_due(self) -> bool:
        """Whether its hours have begun, or are over, since it was made."""
        return self._hours.are_open() != self._watched

    def wants(self, frame: Frame) -> bool:
        in_view = self._analysis.counts.in_view > 0
        wanted = self._gate.wants(frame, in_view) or self._must_blur()
        if not wanted:
            self._drops.add(Reason.FRAME_STILL)
            self._analysis.unseen(frame)
        if self._reader is not None and (
            in_view or self._gate.is_open(frame.monotonic) or self._shared.previews.watched(self.camera)
        ):
            self._reader.keep_awake()
        return wanted

    def _network_labels(self) -> Labels:
        """What the camera looks for; nothing, and an error in the log, when its network can't be used."""
        try:
            network = self._shared.detectors.load(self.group)
            return network.labels(self.config.classes or self._shared.config.detector.classes)
        except (DetectorError, WeightsUnavailable) as error:
            log.error("camera %s: %s", self.camera, error)
            return {}

    def _must_blur(self) -> bool:
        """Who watches a camera on which people are made unrecognisable sees frames on which people were looked for."""
        return self.config.privacy.blur != "none" and self._shared.previews.wants(self.camera)

    def detected(self, frame: Frame, rows: Rows, seconds: float) -> None:
        self._processed.count(self._shared.clock.monotonic())
        detail = self._main.picture_of(frame) if self._main is not None else None
        self._analysis.frame(frame, rows, self._labels, seconds, detail)
        counts = self._analysis.counts
        if counts.in_view and self._main is not None:
            self._main.keep_awake()
        if counts.found:
            self._gate.hold(frame.monotonic)

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
            next_change=self._hours.next_change() if self.config.enabled else None,
            fps_in=health.fps_in,
            fps_processed=round(self._processed.per_second(clock.monotonic()), 2),
        )

    def _health(self) -> CameraHealth:
        if self._reader is None and self._watched:
            return CameraHealth(CameraState.UNSUPPORTED, Reason.NETWORK, self._created)
        if self._reader is None:
            reason = Reason.SCHEDULE if self.config.enabled else Reason.SWITCHED_OFF
            return CameraHealth(CameraState.DISABLED, reason, self._created)
        return self._reader.health()

    def _on_state(self, health: CameraHealth) -> None:
        if self._closed:
            return
        what = "file" if file_of(self.config.url) else "camera"
        text = f"{what} {self.camera} {health.state.value.replace('_', ' ')}"
        if health.reason not in (Reason.NONE, Reason.SHUTDOWN):
            text += f": {REASON_TEXT[health.reason]}"
        self._shared.observer(Observation(ObservationKind.CAMERA, health.since, text, self.camera))
