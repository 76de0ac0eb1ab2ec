"""Pictures on disk, named by their content."""

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
from typing import Protocol

GRACE_S = 300.0
"""A picture so young may belong to a row that is just being written; it is never deleted."""
_NAME = re.compile(r"[0-9a-f]{64}\.jpg")
_FOLDER = re.compile(r"[0-9a-f]{2}")


@dataclass(frozen=True, slots=True)
class Picture:
    """A stored picture: its SHA-256 and its size in bytes."""

    sha256: str
    size: int


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file where pictures are kept: ``ab/abcdef….jpg``, or what a killed process left of one. ``size`` in bytes."""

    folder: str
    name: str
    size: int = 0

    @property
    def sha256(self) -> str | None:
        """Of the picture that it is; None when it is half of one."""
        return self.name.removesuffix(".jpg") if _NAME.fullmatch(self.name) else None


def file_of(sha256: str) -> StoredFile:
    """Where the picture of this SHA-256 lies."""
    return StoredFile(sha256[:2], f"{sha256}.jpg")


def is_folder(name: str) -> bool:
    """Whether pictures lie in a folder of this name; of other names there may be any, and they are not ours."""
    return _FOLDER.fullmatch(name) is not None


class Pictures(Protocol):
    """Where pictures are kept. Blocking; raises ``OSError``."""

    def add(self, jpeg: bytes) -> Picture:
        """Stores the picture, whole or not at all; one that is there already is young again."""
        ...

    def read(self, sha256: str) -> bytes | None:
        """The picture, None when it is gone."""
        ...

    def size(self, sha256: str) -> int | None:
        """Bytes of the picture, None when it is gone."""
        ...

    def folders(self) -> list[str]:
        """Names of the folders that hold pictures."""
        ...

    def old_files(self, folder: str) -> list[StoredFile]:
        """What is in a folder past the grace."""
        ...

    def delete_unused(self, files: Iterable[StoredFile], used: Callable[[list[str]], set[str]]) -> int:
        """Deletes these files but for young ones and those whose SHA-256 ``used`` gives back. Returns the bytes freed.

        ``used`` is asked before, and what was added since is young.
        """
        ...


class CropFiles:
    """:class:`Pictures` in a folder: the same picture is one file, and a file is complete or not there.

    A file is stored before the row that names it, so whoever deletes must not take it in between. Both sides hold a
    lock (``flock``, also between processes) for a moment, and adding makes a file that is there young again.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def add(self, jpeg: bytes) -> Picture:
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
        return self._path(file_of(sha256))

    def read(self, sha256: str) -> bytes | None:
        """A link is none of our files, wherever it leads."""
        path = self.path(sha256)
        try:
            return None if path.is_symlink() else path.read_bytes()
        except FileNotFoundError:
            return None

    def size(self, sha256: str) -> int | None:
        try:
            return self.path(sha256).stat().st_size
        except FileNotFoundError:
            return None

    def folders(self) -> list[str]:
        return sorted(path.name for path in self._folder.iterdir() if is_folder(path.name))

    def old_files(self, folder: str) -> list[StoredFile]:
        limit = time.time() - GRACE_S
        found = []
        with os.scandir(self._folder / folder) as entries:
            for entry in entries:
                ours = _NAME.fullmatch(entry.name) or entry.name.startswith(".new-")
                if ours and entry.is_file(follow_symlinks=False) and (state := entry.stat()).st_mtime < limit:
                    found.append(StoredFile(folder, entry.name, state.st_size))
        return found

    def delete_unused(self, files: Iterable[StoredFile], used: Callable[[list[str]], set[str]]) -> int:
        """``used`` is asked while nobody can add, so that its answer still holds when the files go."""
        freed = 0
        with self._locked(fcntl.LOCK_EX):
            limit = time.time() - GRACE_S
            wanted = list(files)
            kept = used([file.sha256 for file in wanted if file.sha256 is not None])
            for file in wanted:
                path = self._path(file)
                try:
                    state = path.stat()
                    if file.sha256 not in kept and state.st_mtime < limit:
                        path.unlink()
                        freed += state.st_size
                except FileNotFoundError:
                    continue
        return freed

    def _path(self, file: StoredFile) -> Path:
        return self._folder / file.folder / file.name

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
