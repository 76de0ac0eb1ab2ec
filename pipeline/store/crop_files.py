"""Crops on disk, named by their content."""

from __future__ import annotations

import hashlib
import os
import tempfile
from pathlib import Path


class CropFiles:
    """``folder/ab/abcdef….jpg``: the same picture is one file, and a file is complete or not there."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def add(self, jpeg: bytes) -> str:
        """Stores the picture and gives its SHA-256. Raises ``OSError``."""
        digest = hashlib.sha256(jpeg).hexdigest()
        path = self.path(digest)
        if path.exists():
            return digest
        path.parent.mkdir(exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=".new-", suffix=".jpg", dir=path.parent)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(jpeg)
                file.flush()
                os.fsync(file.fileno())
            os.replace(name, path)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
        return digest

    def path(self, sha256: str) -> Path:
        """Where the picture lies."""
        return self._folder / sha256[:2] / f"{sha256}.jpg"
