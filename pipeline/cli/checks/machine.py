"""The data folder and the machine's limits."""

from __future__ import annotations

import resource
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from pipeline.cli.checks.finding import Finding, ok, problem, warning
from pipeline.config import StoreConfig
from pipeline.store.file_system import file_system_of, network_file_system

GIB = 1024**3
LEAST_FREE = 1 * GIB
LEAST_FILES = 1024
LEAST_SHARED = 64 * 1024**2


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
    kind = network_file_system(folder)
    uses_sqlite = config.url is None or config.url.startswith("sqlite")
    if kind is not None and uses_sqlite:
        yield problem(
            subject,
            f"{folder} is on a network file system ({kind}), where SQLite says 'database is locked' sooner or later; "
            "set store.data_dir to a local folder, or store.url to PostgreSQL",
        )
    elif kind is not None:
        yield warning(subject, f"{folder} is on a network file system ({kind}): crops are slow to store")
    else:
        yield ok(subject, f"{folder} ({file_system_of(folder) or 'local'})")
    free = shutil.disk_usage(folder).free
    if free < LEAST_FREE:
        yield warning("free space", f"{free / GIB:.1f} GiB free in {folder}; events and crops need room")
    else:
        yield ok("free space", f"{free / GIB:.0f} GiB")


def check_pictures(config: StoreConfig) -> Iterator[Finding]:
    """Whether a picture can be written to the bucket, read back and deleted."""
    if config.crops_url is None:
        return
    from pipeline.store.crop_objects import CropObjects
    from pipeline.store.database import UnusableDatabase

    subject = "pictures"
    try:
        CropObjects(config.crops_url).try_out()
    except (OSError, UnusableDatabase) as error:
        yield problem(subject, f"{config.crops_url}: {error}")
    else:
        yield ok(subject, config.crops_url)


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
