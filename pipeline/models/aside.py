"""Folders that are made once, whole or not at all, whoever else wants them at the same time."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def built_aside(out: Path) -> Iterator[Path | None]:
    """A folder beside ``out`` that takes its name when the block ends well; None when ``out`` is there already.

    A second process that wants the same waits for the first.
    """
    out.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(out.parent / f".{out.name}.lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        if (out / "config.json").is_file():
            yield None
            return
        folder = Path(tempfile.mkdtemp(prefix=f".{out.name}.", dir=out.parent))
        try:
            yield folder
            folder.chmod(0o755)
            folder.rename(out)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
    finally:
        os.close(descriptor)
