"""The configuration file as it changes under a running process."""

from __future__ import annotations

import logging
import os
from pathlib import Path

from pipeline.config import WatchwordConfig
from pipeline.config.load import ConfigProblem, load_config

log = logging.getLogger(__name__)

Signature = tuple[int, int, int]
"""Of a file: inode, size, time of change. An editor that writes a new file and renames it changes the inode."""

HOT = "cameras"
"""The one section that takes effect while the process runs."""


class ConfigFile:
    """Asked every second or so whether there is something new. For one thread.

    A file is read once it is the same in two looks, so that one that is being written isn't taken for finished. One
    that is wrong changes nothing: the log has it with its line, and :attr:`problem` until a good one comes.
    """

    def __init__(self, path: Path, config: WatchwordConfig) -> None:
        """``config``: what was read from the file just now."""
        self.path = path
        self.config = config
        self.problem: str | None = None
        self._seen = self._read = self._signature()

    def poll(self) -> bool:
        """Looks at the file; True when the configuration has been read anew and differs."""
        found = self._signature()
        settled, self._seen = found == self._seen, found
        if found is None or not settled or found == self._read:
            return False  # a file that is gone for a moment is about to be replaced
        return self.reload()

    def reload(self) -> bool:
        """Reads the file now, changed or not: somebody asks for it. True when the configuration differs."""
        self._read = self._seen = self._signature()
        try:
            config = load_config(self.path)
        except ConfigProblem as error:
            self.problem = str(error)
            log.error("configuration not taken over, the cameras stay as they are. %s", error)
            return False
        self.problem = None
        before, self.config = self.config, config
        self._tell_others(before)
        if config.cameras == before.cameras:
            log.info("configuration %s read again: the cameras are the same", self.path)
            return False
        log.info("configuration %s read again: the cameras have changed", self.path)
        return True

    def _tell_others(self, before: WatchwordConfig) -> None:
        changed = [
            name
            for name in WatchwordConfig.model_fields
            if name != HOT and getattr(before, name) != getattr(self.config, name)
        ]
        if changed:
            log.warning("configuration %s: changes in %s take effect after a restart", self.path, ", ".join(changed))

    def _signature(self) -> Signature | None:
        try:
            status = os.stat(self.path)
        except OSError:
            return None
        return status.st_ino, status.st_size, status.st_mtime_ns
