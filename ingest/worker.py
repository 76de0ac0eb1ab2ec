"""Ingest as a whole: cameras in, track messages and crops out."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence

from ingest.camera_changes import SharedChanges
from ingest.camera_keeper import CameraKeeper
from ingest.camera_unit import CameraUnit, Surroundings
from ingest.commands import CommandListener
from ingest.counts import DropLedger
from ingest.decoder import DecoderDevices
from ingest.detector import Detectors
from ingest.detector_loop import DetectorLoop
from ingest.metrics import IngestMetrics, MetricsServer
from ingest.observation import Observer, ignore
from ingest.preview import PreviewBoard
from ingest.publisher import Publisher, PublisherHealth
from ingest.track import TrackNames
from pipeline.clock import Clock, SystemClock
from pipeline.config import CameraConfig, WatchwordConfig
from pipeline.config.file_watch import ConfigFile
from pipeline.messages import CameraStatus, CommandKind, CommandMessage
from pipeline.queue.address import RedisAddress
from pipeline.queue.connect import sync_client
from pipeline.reasons import Reason

log = logging.getLogger(__name__)

CAMERA_STOP_S = 2.5
FLUSH_S = 1.5
"""Kept of a stop's time for the last writes."""


class IngestWorker:
    """Watches the configured cameras until it is stopped, and follows changes of the file and of the API meanwhile.

    Threads: one a camera, one detector, one publisher, one for commands, one that keeps the cameras. ``start`` and
    ``stop`` are for one thread, and for one time each.
    """

    def __init__(
        self,
        config: WatchwordConfig,
        redis_address: RedisAddress | str,
        *,
        clock: Clock | None = None,
        on_observation: Observer = ignore,
        file: ConfigFile | None = None,
    ) -> None:
        """``file``: followed for changes of its cameras, where there is one."""
        self._config = config
        self._clock = clock or SystemClock()
        self._observer = on_observation
        self._previews = PreviewBoard(self._clock)
        self._drops = DropLedger()
        self._units: dict[str, CameraUnit] = {}
        self._lock = threading.Lock()  # guards _units; nothing is called while it is held
        self._changing = threading.Lock()  # held while cameras come and go, which takes seconds
        self._shared: Surroundings | None = None
        self._stopped = False
        self._publisher = Publisher(
            redis_address, config.redis, self.statuses, self._drops, self._previews, self._clock, on_observation
        )
        self._listener = CommandListener(redis_address, self.handle)
        self.metrics = MetricsServer(config.ingest, IngestMetrics(self.statuses, self._publisher.health, self._clock))
        self._settings_client = sync_client(redis_address)
        self._keeper = CameraKeeper(
            file,
            config.cameras,
            SharedChanges(self._settings_client, config.store.data_dir),
            with_added=config.ingest.watch_added,
            apply=self.apply,
            tick=self.follow_schedules,
        )

    def start(self) -> None:
        """Loads the detector (seconds) and connects the cameras.

        Raises :class:`~ingest.weights.WeightsUnavailable` or :class:`~ingest.detector.DetectorError` before anything
        has been started.
        """
        detectors = Detectors(self._config.detector)
        detectors.find()
        self._listener.listen_from_now()
        detectors.load_own()
        self._shared = Surroundings(
            self._config,
            detectors,
            TrackNames(self._clock.now()),
            DetectorLoop(detectors, self._clock),
            self._publisher,
            self._previews,
            self._drops,
            self._clock,
            self._observer,
            DecoderDevices(),
        )
        self.metrics.start()
        self._publisher.start()
        self._shared.loop.start()
        self._keeper.start()
        self._listener.start()

    def stop(self, timeout: float = 8.0) -> None:
        """Tears all sessions down, ends the open tracks, writes what waits. Takes about ``timeout`` seconds at most."""
        deadline = time.monotonic() + timeout
        self._listener.request_stop()
        self._keeper.request_stop()
        with self._changing:
            self._stopped = True
            units = self._all_units()
            for unit in units:
                unit.request_stop()
            for unit in units:
                unit.stop(_until(deadline - FLUSH_S, CAMERA_STOP_S))
        if self._shared is not None and not self._shared.loop.stop(_until(deadline - FLUSH_S, timeout)):
            log.error("detector: did not end in time")
        self._publisher.stop(max(0.5, _until(deadline - 0.5, timeout)))
        self._listener.join(1.0)
        self._keeper.join(1.0)
        self._settings_client.close()
        self.metrics.stop()

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

    def reload(self) -> None:
        """Reads the configuration file again, changed or not. From any thread."""
        self._keeper.reload_file()

    def handle(self, command: CommandMessage) -> None:
        """Does what serve asks."""
        match command.kind:
            case CommandKind.WATCH:
                self._previews.watch(command.camera)
            case CommandKind.UNWATCH:
                self._previews.unwatch(command.camera)
            case CommandKind.CAMERAS:
                self._keeper.look_at_changes()

    def apply(self, cameras: Sequence[CameraConfig]) -> None:
        """Brings what is watched to ``cameras``. Those whose settings are the same go on, tracks and all."""
        wanted = {camera.id: camera for camera in cameras}
        with self._changing:
            if self._stopped:
                return
            units = {unit.camera: unit for unit in self._all_units()}
            anew = []
            for camera in wanted.values():
                unit = units.get(camera.id)
                if unit is not None and _same_source(unit.config, camera):
                    unit.rename(camera)
                else:
                    anew.append(camera)
            gone = [unit for name, unit in units.items() if name not in wanted]
            self._stop_units([*gone, *(units[camera.id] for camera in anew if camera.id in units)])
            for unit in gone:
                self._forget(unit.camera)
            for camera in anew:
                self._start_unit(camera)
            if self._shared is not None:
                self._shared.detectors.keep_only(unit.group for unit in self._all_units())

    def follow_schedules(self) -> None:
        """Connects and disconnects the cameras whose hours have begun or are over."""
        due = [unit for unit in self._all_units() if unit.is_due()]
        if not due:
            return
        with self._changing:
            if self._stopped:
                return
            self._stop_units(due)
            for unit in due:
                self._start_unit(unit.config)

    def _stop_units(self, units: Sequence[CameraUnit]) -> None:
        """All at once, each for a time of its own. The caller holds ``_changing``."""
        for unit in units:
            unit.request_stop()
        for unit in units:
            unit.stop(CAMERA_STOP_S, Reason.SWITCHED_OFF)

    def _start_unit(self, camera: CameraConfig) -> None:
        """In place of what ran under its id, which has been stopped. The caller holds ``_changing``."""
        if self._shared is None:
            raise RuntimeError("the worker has not been started")
        unit = CameraUnit(camera, self._shared)
        with self._lock:
            self._units[camera.id] = unit
        unit.start()

    def _forget(self, camera: str) -> None:
        with self._lock:
            del self._units[camera]
        self._previews.unwatch(camera)
        self._publisher.forget(camera)

    def _all_units(self) -> list[CameraUnit]:
        with self._lock:
            return list(self._units.values())


def _until(deadline: float, at_most: float) -> float:
    """Seconds left, at least a tenth."""
    return max(0.1, min(at_most, deadline - time.monotonic()))


def _same_source(a: CameraConfig, b: CameraConfig) -> bool:
    """Whether the two differ in nothing that ingest would have to start anew for."""
    neutral = {"name": "", "prompt": None, "output_schema": None, "schedule": None}
    return a.model_copy(update=neutral) == b.model_copy(update=neutral)
