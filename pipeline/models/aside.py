"""Folders that are made once, whole or not at all, whoever else wants them at the same time."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def built_aside(out: Path, whole: Callable[[Path], bool]) -> Iterator[Path | None]:
    """A folder beside ``out`` that takes its name when the block ends well; None when ``out`` is there already.

    A second process that wants the same waits for the first. What an interrupted one left behind is removed, and an
    ``out`` that isn't ``whole`` is made anew.
    """
    out.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(out.parent / f".{out.name}.lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        if out.is_dir():
            if whole(out):
                yield None
                return
            shutil.rmtree(out)
        for left in out.parent.glob(f".{out.name}.*/"):
            shutil.rmtree(left, ignore_errors=True)
        folder = Path(tempfile.mkdtemp(prefix=f".{out.name}.", dir=out.parent))
        try:
            yield folder
            folder.chmod(0o755)
            for path in (*folder.rglob("*"), folder):
                _sync(path)
            folder.rename(out)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
    finally:
        os.close(descriptor)


def _sync(path: Path) -> None:
    """Onto the disk: after a power cut a folder of that name is whole."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
