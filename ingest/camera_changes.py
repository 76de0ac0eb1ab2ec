"""What the API changed of the cameras, as this ingest knows it: from Redis, and from its own copy on disk."""

from __future__ import annotations

import logging
import os
import tempfile
from pathlib import Path

import redis

from pipeline.config.overlay import ChangeSet, MalformedChanges
from pipeline.logs import ThrottledLogger
from pipeline.queue.camera_changes import ChangesReader

log = logging.getLogger(__name__)

FILE_NAME = "camera-changes.json"


class SharedChanges:
    """The newest changes that serve shared. For one thread.

    A copy lies in the data folder (it holds passwords: nobody else may read it), so that a camera that was switched off
    or removed stays so when ingest starts while Redis is empty or away.
    """

    def __init__(self, client: redis.Redis, data_dir: Path) -> None:
        self._reader = ChangesReader(client)
        self._path = data_dir / FILE_NAME
        self._failures = ThrottledLogger(log)
        self.now = self._copy()

    def look(self) -> bool:
        """Asks Redis; True when :attr:`now` has changed. Redis may be away, empty, or hold nonsense."""
        try:
            found = self._reader.read()
        except (redis.RedisError, MalformedChanges) as error:
            name = type(error).__name__
            self._failures.log(logging.WARNING, name, "cameras: the API's changes can't be read (%s)", name)
            return False
        if found is None or found == self.now:
            return False
        self.now = found
        self._keep(found)
        return True

    def _copy(self) -> ChangeSet:
        try:
            return ChangeSet.from_json(self._path.read_bytes())
        except FileNotFoundError:
            return ChangeSet()
        except (OSError, MalformedChanges) as error:
            log.warning("cameras: %s can't be read (%s)", self._path, type(error).__name__)
            return ChangeSet()

    def _keep(self, changes: ChangeSet) -> None:
        """Writes a new file beside the old one and puts it in its place, so that there is never half of one."""
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            handle, name = tempfile.mkstemp(dir=self._path.parent, prefix=FILE_NAME)  # readable by us alone
            try:
                with os.fdopen(handle, "w", encoding="utf-8") as file:
                    file.write(changes.to_json())
                os.replace(name, self._path)
            except BaseException:
                Path(name).unlink(missing_ok=True)
                raise
        except OSError as error:
            reason = error.strerror or type(error).__name__
            self._failures.log(logging.WARNING, "copy", "cameras: %s can't be written: %s", self._path, reason)
