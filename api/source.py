"""``/source.tar.gz``: the very source that runs, for everyone who uses this server (AGPL-3.0, section 13)."""

from __future__ import annotations

import asyncio
import io
import tarfile
from functools import cache
from pathlib import Path

from fastapi import APIRouter, Response

PATH = "/source.tar.gz"

_ROOT = Path(__file__).resolve().parent.parent
_PACKAGES = ("api", "ingest", "pipeline", "vlm_engine")
_KINDS = frozenset({".py", ".pyi", ".lua", ".js", ".css", ".html", ".svg", ".typed"})
_BESIDE = ("LICENSE", "README.md", "pyproject.toml", "Makefile")

router = APIRouter()


@router.get(PATH, tags=["licence"], summary="The running source code, AGPL-3.0-or-later", response_class=Response)
async def source() -> Response:
    data = await asyncio.to_thread(_archive)
    headers = {"Content-Disposition": 'attachment; filename="watchword-source.tar.gz"'}
    return Response(data, media_type="application/gzip", headers=headers)


@cache
def _archive() -> bytes:
    """The packages' own files and nothing else: no configuration, no data, no keys."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for path in _files():
            archive.add(path, Path("watchword") / path.relative_to(_ROOT), recursive=False, filter=_anonymous)
    return buffer.getvalue()


def _files() -> list[Path]:
    own = [path for name in _PACKAGES for path in (_ROOT / name).rglob("*") if path.suffix in _KINDS]
    beside = [_ROOT / name for name in _BESIDE] if (_ROOT / "pyproject.toml").is_file() else []
    return sorted(path for path in own + beside if path.is_file() and not path.is_symlink())


def _anonymous(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    """Without the names and ids of whoever installed it."""
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    return entry
