"""Ingest as a whole: cameras in, track messages and crops out."""

from __future__ import annotations

import logging
import threading
import time

from pydantic import ValidationError

from ingest.camera_unit import CameraUnit, Surroundings
from ingest.commands import CommandListener
from ingest.counts import DropLedger
from ingest.decoder import DecoderDevices
from ingest.detector import PersonDetector
from ingest.detector_loop import DetectorLoop
from ingest.observation import Observer, ignore
from ingest.preview import PreviewBoard
from ingest.publisher import Publisher, PublisherHealth
from ingest.track import TrackNames
from ingest.weights import resolve_weights
from pipeline.clock import Clock, SystemClock
from pipeline.config import CameraConfig, WatchwordConfig
from pipeline.messages import CameraStatus, CommandKind, CommandMessage
from pipeline.queue.address import RedisAddress

log = logging.getLogger(__name__)

CAMERA_STOP_S = 2.5
FLUSH_S = 1.5
"""Kept of a stop's time for the last writes."""


class IngestWorker:
    """Watches the configured cameras until it is stopped; more can be added, changed and removed by command.

    Threads: one a camera, one detector, one publisher, one for commands. ``start`` and ``stop`` are for one thread, and
    for one time each.
    """

    def __init__(
        self,
        config: WatchwordConfig,
        redis_address: RedisAddress | str,
        *,
        clock: Clock | None = None,
        on_observation: Observer = ignore,
    ) -> None:
        self._config = config
        self._clock = clock or SystemClock()
        self._observer = on_observation
        self._previews = PreviewBoard(self._clock)
        self._drops = DropLedger()
        self._units: dict[str, CameraUnit] = {}
        self._lock = threading.Lock()  # guards _units; nothing is called while it is held
        self._changing = threading.Lock()  # held while cameras come and go, which takes seconds
        self._shared: Surroundings | None = None
        self._publisher = Publisher(
            redis_address, config.redis, self.statuses, self._drops, self._previews, self._clock, on_observation
        )
        self._listener = CommandListener(redis_address, self.handle)

    def start(self) -> None:
        """Loads the detector (seconds) and connects the cameras.

        Raises :class:`~ingest.weights.WeightsUnavailable` or :class:`~ingest.detector.DetectorError` before anything
        has been started.
        """
        weights = resolve_weights(self._config.detector.weights)
        self._listener.listen_from_now()
        log.info("detector: loading %s", weights)
        detector = PersonDetector(weights, self._config.detector)
        detector.warm_up()
        self._shared = Surroundings(
            self._config,
            detector.label,
            TrackNames(self._clock.now()),
            DetectorLoop(detector, self._clock),
            self._publisher,
            self._previews,
            self._drops,
            self._clock,
            self._observer,
            DecoderDevices(),
        )
        self._publisher.start()
        self._shared.loop.start()
        with self._changing:
            for camera in self._config.cameras:
                self._put(camera)
        self._listener.start()

    def stop(self, timeout: float = 8.0) -> None:
        """Tears all sessions down, ends the open tracks, writes what waits. Takes about ``timeout`` seconds at most."""
        deadline = time.monotonic() + timeout
        self._listener.request_stop()
        with self._changing:
            units = self._all_units()
            for unit in units:
                unit.request_stop()
            for unit in units:
                unit.stop(_until(deadline - FLUSH_S, CAMERA_STOP_S))
        if self._shared is not None and not self._shared.loop.stop(_until(deadline - FLUSH_S, timeout)):
            log.error("detector: did not end in time")
        self._publisher.stop(max(0.5, _until(deadline - 0.5, timeout)))
        self._listener.join(1.0)

    def run_forever(self, stop_event: threading.Event) -> None:
        """``start``, until the event is set, then ``stop``. Raises what ``start`` raises."""
        self.start()
        try:
            stop_event.wait()
        finally:
            self.stop()

    def statuses(self) -> list[CameraStatus]:
        return [unit.status() for unit in self._all_units()]

    def redis_health(self) -> PublisherHealth:
        return self._publisher.health()

    def handle(self, command: CommandMessage) -> None:
        """Does what serve asks; a command that doesn't fit is logged and changes nothing."""
        match command.kind:
            case CommandKind.WATCH:
                self._previews.watch(command.camera)
            case CommandKind.UNWATCH:
                self._previews.unwatch(command.camera)
            case CommandKind.REMOVE:
                self._remove(command.camera)
            case CommandKind.ADD | CommandKind.CHANGE:
                self._configure(command)
            case CommandKind.ENABLE | CommandKind.DISABLE:
                self._enable(command.camera, command.kind is CommandKind.ENABLE)

    def _configure(self, command: CommandMessage) -> None:
        try:
            camera = CameraConfig.model_validate({**command.settings, "id": command.camera})
        except ValidationError as error:
            faults = error.errors(include_input=False, include_url=False, include_context=False)
            told = "; ".join(f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}" for fault in faults)
            log.error("commands: settings of camera %s refused: %s", command.camera, told)
            return
        with self._changing:
            unit = self._unit(camera.id)
            if unit is not None and _same_source(unit.config, camera):
                unit.rename(camera)
            else:
                self._put(camera)

    def _enable(self, camera: str, enabled: bool) -> None:
        with self._changing:
            unit = self._unit(camera)
            if unit is None:
                log.warning("commands: there is no camera %s", camera)
            elif unit.config.enabled != enabled:
                self._put(unit.config.model_copy(update={"enabled": enabled}))

    def _put(self, camera: CameraConfig) -> None:
        """Starts a camera, in place of what ran under its id. The caller holds ``_changing``."""
        if self._shared is None:
            raise RuntimeError("the worker has not been started")
        before = self._unit(camera.id)
        if before is not None:
            before.stop(CAMERA_STOP_S)
        unit = CameraUnit(camera, self._shared)
        with self._lock:
            self._units[camera.id] = unit
        unit.start()

    def _remove(self, camera: str) -> None:
        with self._changing:
            unit = self._unit(camera)
            if unit is None:
                log.warning("commands: there is no camera %s", camera)
                return
            unit.stop(CAMERA_STOP_S)
            with self._lock:
                del self._units[camera]
            self._previews.unwatch(camera)
            self._publisher.forget(camera)

    def _unit(self, camera: str) -> CameraUnit | None:
        with self._lock:
            return self._units.get(camera)

    def _all_units(self) -> list[CameraUnit]:
        with self._lock:
            return list(self._units.values())


def _until(deadline: float, at_most: float) -> float:
    """Seconds left, at least a tenth."""
    return max(0.1, min(at_most, deadline - time.monotonic()))


def _same_source(a: CameraConfig, b: CameraConfig) -> bool:
    """Whether the two differ in nothing that ingest would have to start anew for."""
    neutral = {"name": "", "prompt": None}
    return a.model_copy(update=neutral) == b.model_copy(update=neutral)
