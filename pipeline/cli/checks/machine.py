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
FILES_BESIDE, FILES_A_CAMERA = 256, 8
TASKS_BESIDE, TASKS_A_CAMERA = 256, 4
LEAST_SHARED = 256 * 1024**2
"""Docker gives 64 MiB unless told otherwise."""


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


def check_limits(cameras: int = 0) -> Iterator[Finding]:
    """Open files, processes and threads, and the shared memory that pictures go through to the engine (R73)."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    files = max(LEAST_FILES, FILES_BESIDE + FILES_A_CAMERA * cameras)
    if 0 <= soft < files:
        yield warning(
            "open files",
            f"the limit is {soft}; raise it to {files} or more (ulimit -n, LimitNOFILE, ulimits; hard {hard})",
        )
    else:
        yield ok("open files", f"limit {soft if soft >= 0 else 'none'}")
    yield _check_tasks(cameras)
    shared = Path("/dev/shm")
    if not shared.is_dir():
        return
    usage = shutil.disk_usage(shared)
    if usage.total < LEAST_SHARED:
        yield warning(
            "shared memory",
            f"/dev/shm has {usage.total >> 20} MiB; give the container {LEAST_SHARED >> 20} or more (shm_size): "
            "where it is full, requests with pictures are turned away",
        )
    elif usage.free < LEAST_SHARED // 4:
        yield warning("shared memory", f"/dev/shm has {usage.free >> 20} of {usage.total >> 20} MiB left")
    else:
        yield ok("shared memory", f"/dev/shm {usage.total >> 20} MiB")


def _check_tasks(cameras: int) -> Finding:
    """Threads count as processes, for the user's limit and for the container's alike."""
    subject, needed = "processes", TASKS_BESIDE + TASKS_A_CAMERA * cameras
    soft = resource.getrlimit(resource.RLIMIT_NPROC)[0]
    limits = {"ulimit -u": soft if soft >= 0 else None, "pids_limit": container_task_limit()}
    set_ones = {name: limit for name, limit in limits.items() if limit is not None}
    if not set_ones:
        return ok(subject, "limit none")
    name = min(set_ones, key=lambda known: set_ones[known])
    limit = set_ones[name]
    if limit < needed:
        return warning(subject, f"the limit is {limit} ({name}), threads included; raise it to {needed} or more")
    return ok(subject, f"limit {limit} ({name})")


def container_task_limit(root: Path = Path("/sys/fs/cgroup"), groups: Path = Path("/proc/self/cgroup")) -> int | None:
    """``pids.max`` of the control group that this process is in, or of the nearest one around it that has a limit."""
    try:
        lines = groups.read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers not in ("", "pids"):
            continue
        top = root / controllers
        folder = top / path.lstrip("/")
        while folder.is_relative_to(top):
            try:
                text = (folder / "pids.max").read_text().strip()
            except OSError:
                text = "max"
            if text.isdecimal():
                return int(text)
            folder = folder.parent
    return None
