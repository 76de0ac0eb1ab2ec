"""Crops on disk, named by their content."""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

GRACE_S = 300.0
"""A file so young may belong to a row that is just being written; it is never deleted."""
_NAME = re.compile(r"[0-9a-f]{64}\.jpg")


@dataclass(frozen=True, slots=True)
class Picture:
    """A stored picture: its SHA-256 and its size in bytes."""

    sha256: str
    size: int


class CropFiles:
    """``folder/ab/abcdef….jpg``: the same picture is one file, and a file is complete or not there.

    A file is stored before the row that names it, so whoever deletes must not take it in between. Both sides hold a
    lock (``flock``, also between processes) for a moment, and adding makes a file that is there young again.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def add(self, jpeg: bytes) -> Picture:
        """Stores the picture. Raises ``OSError``."""
        digest = hashlib.sha256(jpeg).hexdigest()
        path = self.path(digest)
        with self._locked(fcntl.LOCK_SH):
            try:
                os.utime(path)
            except FileNotFoundError:
                _write_whole(path, jpeg)
        return Picture(digest, len(jpeg))

    def path(self, sha256: str) -> Path:
        """Where the picture lies."""
        return self._folder / sha256[:2] / f"{sha256}.jpg"

    def read(self, sha256: str) -> bytes | None:
        """The picture, None when it is gone."""
        try:
            return self.path(sha256).read_bytes()
        except FileNotFoundError:
            return None

    def size(self, sha256: str) -> int | None:
        """Bytes of the picture's file, None when it is gone."""
        try:
            return self.path(sha256).stat().st_size
        except FileNotFoundError:
            return None

    def subfolders(self) -> list[Path]:
        """Those that hold pictures; of other names there may be any, and they are none of our business."""
        return sorted(path for path in self._folder.iterdir() if re.fullmatch("[0-9a-f]{2}", path.name))

    def old_files(self, subfolder: Path) -> list[Path]:
        """Pictures, and halves of such that a killed process left behind, past the grace."""
        limit = time.time() - GRACE_S
        found = []
        with os.scandir(subfolder) as entries:
            for entry in entries:
                ours = _NAME.fullmatch(entry.name) or entry.name.startswith(".new-")
                if ours and entry.is_file(follow_symlinks=False) and entry.stat().st_mtime < limit:
                    found.append(Path(entry.path))
        return found

    def delete_unused(self, paths: Iterable[Path], used: Callable[[list[str]], set[str]]) -> int:
        """Deletes these files but for young ones and those whose SHA-256 ``used`` gives back. Returns the bytes freed.

        ``used`` is asked while nobody can add, so that its answer still holds when the files go.
        """
        freed = 0
        with self._locked(fcntl.LOCK_EX):
            limit = time.time() - GRACE_S
            wanted = list(paths)
            kept = used([path.stem for path in wanted if _NAME.fullmatch(path.name)])
            for path in wanted:
                try:
                    state = path.stat()
                    if path.stem not in kept and state.st_mtime < limit:
                        path.unlink()
                        freed += state.st_size
                except FileNotFoundError:
                    continue
        return freed

    @contextmanager
    def _locked(self, kind: int) -> Iterator[None]:
        with open(self._folder / ".lock", "ab") as file:
            fcntl.flock(file, kind)
            yield


def _write_whole(path: Path, jpeg: bytes) -> None:
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
