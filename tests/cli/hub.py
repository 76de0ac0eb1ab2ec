"""A Hugging Face hub of one model on a local port, as far as huggingface_hub asks; it can break off and go away."""

from __future__ import annotations

import hashlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Hub:
    """``with Hub("owner/name", folder) as hub: ... hub.url``

    Attributes:
        cut: file name -> bytes after which its next transfer breaks off, once.
        hold: file names whose transfers stop half way until :attr:`go_on` is set.
        half: set when such a transfer stands.
        ranges: file name -> the Range headers of its transfers, None for those without.
        status: answered to everything instead, when set.
        elsewhere: file name -> where its transfers are sent to.
        page: a firewall's, answered to everything.
    """

    def __init__(self, model: str, folder: Path) -> None:
        self.model, self.folder = model, folder
        self.cut: dict[str, int] = {}
        self.hold: set[str] = set()
        self.half, self.go_on = threading.Event(), threading.Event()
        self.ranges: dict[str, list[str | None]] = {}
        self.status: int | None = None
        self.elsewhere: dict[str, str] = {}
        self.page: bytes | None = None
        hub = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_HEAD(self) -> None:
                hub._answer(self, body=False)

            def do_GET(self) -> None:
                hub._answer(self, body=True)

            def log_message(self, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    def __enter__(self) -> Hub:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.go_on.set()
        self._server.shutdown()
        self._server.server_close()

    def _answer(self, request: BaseHTTPRequestHandler, *, body: bool) -> None:
        path = request.path.partition("?")[0]
        if self.status is not None:
            self._send(request, self.status, b"", {}, body)
        elif self.page is not None:
            self._send(request, 200, self.page, {"Content-Type": "text/html; charset=utf-8"}, body)
        elif path.rpartition("/")[2] in self.elsewhere:
            self._send(request, 302, b"", {"Location": self.elsewhere[path.rpartition("/")[2]]}, body)
        elif path.startswith(f"/api/models/{self.model}/revision/"):
            siblings = [{"rfilename": file.name} for file in self._files]
            self._json(request, {"_id": "1", "id": self.model, "sha": COMMIT, "siblings": siblings})
        elif path == f"/api/models/{self.model}/tree/{COMMIT}":
            files = [{"type": "file", "path": f.name, "size": f.stat().st_size, "oid": "0" * 40} for f in self._files]
            self._json(request, files)
        elif path.startswith(f"/{self.model}/resolve/") and (self.folder / path.rpartition("/")[2]).is_file():
            self._file(request, self.folder / path.rpartition("/")[2], body)
        else:
            self._send(request, 404, b"", {"X-Error-Code": "RepoNotFound"}, body)

    @property
    def _files(self) -> list[Path]:
        return sorted(self.folder.iterdir())

    def _json(self, request: BaseHTTPRequestHandler, value: object) -> None:
        self._send(request, 200, json.dumps(value).encode(), {"Content-Type": "application/json"}, body=True)

    def _file(self, request: BaseHTTPRequestHandler, file: Path, body: bool) -> None:
        content = file.read_bytes()
        headers = {
            "ETag": f'"{hashlib.sha256(content).hexdigest()}"',
            "X-Repo-Commit": COMMIT,
            "Accept-Ranges": "bytes",
        }
        asked = request.headers.get("Range")
        if not body:
            self._send(request, 200, content, headers, body)
            return
        self.ranges.setdefault(file.name, []).append(asked)
        if asked is not None:
            start = int(asked.removeprefix("bytes=").partition("-")[0])
            headers["Content-Range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
            self._send(request, 206, content[start:], headers, body)
        elif file.name in self.cut:
            self._send(request, 200, content, headers, body, stop=self.cut.pop(file.name))
        elif file.name in self.hold:
            self._send(request, 200, content, headers, body, stop=len(content) // 2, wait=True)
        else:
            self._send(request, 200, content, headers, body)

    def _send(
        self,
        request: BaseHTTPRequestHandler,
        status: int,
        content: bytes,
        headers: dict[str, str],
        body: bool,
        stop: int | None = None,
        wait: bool = False,
    ) -> None:
        request.send_response(status)
        for name, value in headers.items():
            request.send_header(name, value)
        request.send_header("Content-Length", str(len(content)))
        request.end_headers()
        if body:
            request.wfile.write(content[:stop])
            request.wfile.flush()
        if wait:
            self.half.set()
            self.go_on.wait(60)
        if stop is not None:
            request.close_connection = True
