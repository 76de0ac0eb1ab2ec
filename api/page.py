"""The operator page: a handful of static files, shipped with the package."""

from __future__ import annotations

from hashlib import sha256
from importlib.metadata import version
from pathlib import Path

from fastapi import APIRouter, Request, Response

from api.errors import ApiError

FOLDER = Path(__file__).with_name("web")

_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}


class Page:
    """All files of the page in memory, so that no request ever touches the file system."""

    def __init__(self, folder: Path = FOLDER) -> None:
        self._files = {
            path.name: (path.read_bytes(), _TYPES[path.suffix]) for path in folder.iterdir() if path.suffix in _TYPES
        }
        self._etags = {name: f'"{sha256(data).hexdigest()[:20]}"' for name, (data, _) in self._files.items()}

    def answer(self, name: str, request: Request) -> Response:
        """The file, or 304 when the browser has this very version. Raises 404."""
        if name not in self._files:
            raise ApiError(404, f"There is no page file '{name[:100]}'.", code="not_found")
        # no-cache: kept, but asked about each time, so that an update shows at once.
        headers = {"ETag": self._etags[name], "Cache-Control": "no-cache"}
        if request.headers.get("if-none-match") == self._etags[name]:
            return Response(status_code=304, headers=headers)
        data, media_type = self._files[name]
        return Response(data, media_type=media_type, headers=headers)


router = APIRouter(include_in_schema=False)


@router.get("/")
async def index(request: Request) -> Response:
    page: Page = request.app.state.page
    return page.answer("index.html", request)


@router.get("/web/{name}")
async def file(name: str, request: Request) -> Response:
    page: Page = request.app.state.page
    return page.answer(name, request)


@router.get("/favicon.ico")
async def favicon(request: Request) -> Response:
    page: Page = request.app.state.page
    return page.answer("icon.svg", request)


def watchword_version() -> str:
    """The installed distribution's version."""
    return version("watchword")
