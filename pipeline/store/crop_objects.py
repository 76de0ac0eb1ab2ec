"""Pictures in an S3 bucket, named by their content, through fsspec.

Keys, region and another endpoint (MinIO, Ceph) come from where every AWS client looks: ``AWS_ACCESS_KEY_ID``,
``AWS_SECRET_ACCESS_KEY``, ``AWS_REGION``, ``AWS_ENDPOINT_URL``, ``~/.aws``, or the machine's role.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from pipeline.store.crop_files import GRACE_S, Picture, StoredFile, file_of, is_folder
from pipeline.store.database import UnusableDatabase

_LOCKS = 64


class CropObjects:
    """:class:`pipeline.store.crop_files.Pictures` under an ``s3://bucket/prefix`` URL. A PUT is whole or not there.

    Adding always writes, so that an object that is there is young again. Within a process a lock keeps whoever deletes
    from taking an object between the look at its age and its end; between processes there is none, and the time
    between the two is some milliseconds.

    Raises:
        UnusableDatabase: the package for S3 is not installed.
    """

    def __init__(self, url: str) -> None:
        try:
            import s3fs
        except ImportError:
            raise UnusableDatabase("store.crops_url: S3 needs the package s3fs; install watchword[s3]") from None
        self._root = url.removeprefix("s3://").rstrip("/")
        # What another process adds or deletes must be seen: no listings are kept.
        options: dict[str, Any] = {"use_listings_cache": False, "skip_instance_cache": True}
        self._files = s3fs.S3FileSystem(**options)
        self._locks = [threading.Lock() for _ in range(_LOCKS)]

    def add(self, jpeg: bytes) -> Picture:
        digest = hashlib.sha256(jpeg).hexdigest()
        with self._lock(digest), _as_os_errors():
            self._files.pipe_file(self._path(file_of(digest)), jpeg, ContentType="image/jpeg")
        return Picture(digest, len(jpeg))

    def read(self, sha256: str) -> bytes | None:
        with _as_os_errors():
            try:
                data: bytes = self._files.cat_file(self._path(file_of(sha256)))
            except FileNotFoundError:
                return None
        return data

    def size(self, sha256: str) -> int | None:
        found = self._info(self._path(file_of(sha256)))
        return None if found is None else int(found["size"])

    def folders(self) -> list[str]:
        with _as_os_errors():
            try:
                names = self._files.ls(self._root, detail=False)
            except FileNotFoundError:
                return []  # nothing was stored yet
        return sorted(name for name in (path.rpartition("/")[2] for path in names) if is_folder(name))

    def old_files(self, folder: str) -> list[StoredFile]:
        limit = time.time() - GRACE_S
        with _as_os_errors():
            try:
                entries = self._files.ls(f"{self._root}/{folder}", detail=True)
            except FileNotFoundError:
                return []  # its last object has gone meanwhile
        files = [
            StoredFile(folder, entry["name"].rpartition("/")[2], int(entry["size"]))
            for entry in entries
            if entry["type"] == "file" and entry["LastModified"].timestamp() < limit
        ]
        return [file for file in files if file.sha256 is not None]

    def delete_unused(self, files: Iterable[StoredFile], used: Callable[[list[str]], set[str]]) -> int:
        wanted = list(files)
        kept = used([file.sha256 for file in wanted if file.sha256 is not None])
        freed = 0
        for file in wanted:
            if file.sha256 is not None and file.sha256 not in kept:
                freed += self._delete_old(file, file.sha256)
        return freed

    def try_out(self) -> None:
        """Writes, reads and deletes an object of its own. Raises ``OSError`` when that can't be done."""
        path, content = f"{self._root}/.watchword-check", b"watchword"
        with _as_os_errors():
            self._files.pipe_file(path, content)
            if self._files.cat_file(path) != content:
                raise OSError("what was written is not what is read")
            self._files.rm_file(path)

    def _delete_old(self, file: StoredFile, sha256: str) -> int:
        path = self._path(file)
        with self._lock(sha256):
            found = self._info(path)
            if found is None or found["LastModified"].timestamp() >= time.time() - GRACE_S:
                return 0
            with _as_os_errors():
                self._files.rm_file(path)
        return int(found["size"])

    def _info(self, path: str) -> dict[str, Any] | None:
        with _as_os_errors():
            try:
                found: dict[str, Any] = self._files.info(path)
            except FileNotFoundError:
                return None
        return found

    def _path(self, file: StoredFile) -> str:
        return f"{self._root}/{file.folder}/{file.name}"

    def _lock(self, sha256: str) -> threading.Lock:
        return self._locks[int(sha256[:2], 16) % _LOCKS]


@contextmanager
def _as_os_errors() -> Iterator[None]:
    """Whatever the client raises when the service is away, refuses or is not configured, in the store's own terms."""
    try:
        yield
    except OSError:
        raise
    except Exception as error:
        raise OSError(f"store.crops_url: {type(error).__name__}: {error}") from error
