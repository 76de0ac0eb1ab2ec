"""The data folder and the machine's limits."""

from __future__ import annotations

import os
import resource
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from pipeline.cli.checks.finding import Finding, ok, problem, warning
from pipeline.config import StoreConfig

GIB = 1024**3
LEAST_FREE = 1 * GIB
LEAST_FILES = 1024
LEAST_SHARED = 64 * 1024**2
_NETWORK = {"nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "afs", "ceph", "glusterfs", "lustre", "gpfs", "fuse.sshfs"}


def check_data_folder(config: StoreConfig) -> Iterator[Finding]:
    """Writable, with room, and not on a network file system: SQLite's locks don't hold there (R71)."""
    subject, folder = "data folder", config.data_dir.absolute()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"watchword")
    except OSError as error:
        yield problem(subject, f"{folder} can't be written: {error.strerror}; set store.data_dir to one that can")
        return
    kind = file_system_of(folder)
    uses_sqlite = config.url is None or config.url.startswith("sqlite")
    if kind in _NETWORK and uses_sqlite:
        yield problem(
            subject,
            f"{folder} is on a network file system ({kind}), where SQLite says 'database is locked' sooner or later; "
            "set store.data_dir to a local folder, or store.url to PostgreSQL",
        )
    elif kind in _NETWORK:
        yield warning(subject, f"{folder} is on a network file system ({kind}): crops are slow to store")
    else:
        yield ok(subject, f"{folder} ({kind or 'local'})")
    free = shutil.disk_usage(folder).free
    if free < LEAST_FREE:
        yield warning("free space", f"{free / GIB:.1f} GiB free in {folder}; events and crops need room")
    else:
        yield ok("free space", f"{free / GIB:.0f} GiB")


def check_limits() -> Iterator[Finding]:
    """Open files, and the shared memory that pictures go through on their way to the engine (R73)."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if 0 <= soft < LEAST_FILES:
        yield warning("open files", f"the limit is {soft}; raise it to {LEAST_FILES} or more (ulimit -n, hard {hard})")
    else:
        yield ok("open files", f"limit {soft if soft >= 0 else 'none'}")
    shared = Path("/dev/shm")
    if not shared.is_dir():
        return
    size = shutil.disk_usage(shared).total
    if size < LEAST_SHARED:
        yield warning("shared memory", f"/dev/shm has {size >> 20} MiB; give the container 64 or more (shm_size)")
    else:
        yield ok("shared memory", f"/dev/shm {size >> 20} MiB")


def file_system_of(folder: Path, mounts: Path = Path("/proc/self/mountinfo")) -> str | None:
    """The type of the file system that holds ``folder``, such as ``ext4`` or ``nfs4``; None where nobody says."""
    if sys.platform != "linux":
        return None
    best, kind = "", None
    target = str(folder.resolve())
    for line in mounts.read_text(errors="replace").splitlines():
        head, _, tail = line.partition(" - ")
        # Fields of proc(5): the fifth is the mount point with octal escapes; after the dash comes the type.
        point = head.split(" ")[4].encode().decode("unicode_escape")
        inside = target == point or target.startswith(point.rstrip("/") + os.sep)
        if inside and len(point) >= len(best):
            best, kind = point, tail.split(" ")[0]
    return kind
