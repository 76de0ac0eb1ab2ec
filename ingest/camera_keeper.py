"""Keeps the cameras that are watched in step with the configuration file, the API's changes and the time of day."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence

from ingest.camera_changes import SharedChanges
from pipeline.config import CameraConfig
from pipeline.config.file_watch import ConfigFile
from pipeline.config.overlay import in_force

log = logging.getLogger(__name__)

LOOK_S = 1.0
"""Between two looks at the file and at schedules."""
REDIS_EVERY_S = 5.0
"""A change is told by a command; this is for those that were missed."""


class CameraKeeper:
    """A thread that looks every second, and at once when it is told to.

    Args:
        file: the configuration file; None when there is none to follow.
        cameras: the file's cameras as they are now.
        with_added: also those that only the API knows.
        apply: brings what is watched to these cameras.
        tick: time goes on (schedules).
    """

    def __init__(
        self,
        file: ConfigFile | None,
        cameras: Sequence[CameraConfig],
        changes: SharedChanges,
        *,
        with_added: bool,
        apply: Callable[[Sequence[CameraConfig]], None],
        tick: Callable[[], None],
    ) -> None:
        self._file = file
        self._cameras = tuple(cameras)
        self._changes = changes
        self._with_added = with_added
        self._apply = apply
        self._tick = tick
        self._told: dict[str, str] = {}
        self._redis_due = 0.0
        self._wake = threading.Event()
        self._reload_file = False
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="cameras", daemon=True)

    def start(self) -> None:
        """Applies what is known now in the caller's thread, then goes on in its own."""
        self._changes.look()
        self._redis_due = time.monotonic() + REDIS_EVERY_S
        self._bring_into_force()
        self._thread.start()

    def request_stop(self) -> None:
        """Returns at once; nothing is applied any more once :meth:`join` has returned."""
        self._stopping.set()
        self._wake.set()

    def join(self, timeout: float) -> None:
        if self._thread.ident is not None:
            self._thread.join(timeout)

    def look_at_changes(self) -> None:
        """Serve says that there are new ones. From any thread."""
        self._redis_due = 0.0
        self._wake.set()

    def reload_file(self) -> None:
        """Reads the file whether it has changed or not. From any thread."""
        self._reload_file = True
        self._wake.set()

    def _run(self) -> None:
        while not self._stopping.is_set():
            self._wake.wait(LOOK_S)
            self._wake.clear()
            if self._stopping.is_set():
                return
            try:
                self._look()
            except Exception:  # what one look runs into must not end the looking
                log.exception("cameras: unexpected failure")

    def _look(self) -> None:
        changed = False
        if self._file is not None:
            wanted, self._reload_file = self._reload_file, False
            if self._file.reload() if wanted else self._file.poll():
                self._cameras = self._file.config.cameras
                changed = True
        if time.monotonic() >= self._redis_due:
            self._redis_due = time.monotonic() + REDIS_EVERY_S
            changed |= self._changes.look()
        if changed:
            self._bring_into_force()
        self._tick()

    def _bring_into_force(self) -> None:
        found = in_force(self._cameras, self._changes.now.cameras, with_added=self._with_added)
        for camera, text in found.problems.items():
            if self._told.get(camera) != text:
                log.error("camera %s: what the API changed is not in force: %s", camera, text)
        self._told = dict(found.problems)
        self._apply(found.configs)
