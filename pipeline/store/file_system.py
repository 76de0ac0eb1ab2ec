"""Which file system a folder is on, and whether SQLite's locks can be trusted there (R71)."""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path

# Magic numbers from statfs(2) and linux/magic.h.
_NETWORK_MAGIC = {
    0x6969: "nfs",
    0x517B: "smb",
    0xFF534D42: "cifs",
    0xFE534D42: "smb2",
    0x01021997: "9p",
    0x5346414F: "afs",
    0x6B414653: "afs",
    0x73757245: "coda",
    0x00C36400: "ceph",
    0x0BD00BD0: "lustre",
    0x47504653: "gpfs",
    0x19830326: "beegfs",
    0x01161970: "gfs2",
    0x7461636F: "ocfs2",
    0x786F4256: "vboxsf",
}
_FUSE_MAGIC = 0x65735546
_NETWORK_FUSE = frozenset(
    f"fuse.{name}"
    for name in (
        "sshfs",
        "glusterfs",
        "ceph",
        "s3fs",
        "rclone",
        "gcsfuse",
        "goofys",
        "blobfuse2",
        "juicefs",
        "curlftpfs",
    )
)
_STATFS_BYTES = 256  # struct statfs has 120 of them on 64-bit Linux


def network_file_system(folder: Path) -> str | None:
    """The name of the network file system that holds ``folder``, None for a local one. Raises ``OSError``.

    By ``statfs``; what FUSE hides behind its one number, the list of mounts tells.
    """
    if sys.platform != "linux":
        return None
    magic = _magic_of(folder)
    if magic == _FUSE_MAGIC:
        kind = file_system_of(folder)
        return kind if kind in _NETWORK_FUSE else None
    return _NETWORK_MAGIC.get(magic)


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


def _magic_of(folder: Path) -> int:
    """``f_type``, the first field of what statfs(2) fills in: a long, of which magic numbers take the low 32 bits."""
    libc = ctypes.CDLL(None, use_errno=True)
    buffer = ctypes.create_string_buffer(_STATFS_BYTES)
    if libc.statfs(os.fsencode(folder), buffer) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), str(folder))
    return ctypes.c_long.from_buffer(buffer).value & 0xFFFFFFFF
