"""A real HTTP server that takes webhooks and answers as a test says."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass(frozen=True)
class Received:
    """One request as it came."""

    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> dict[str, Any]:
        return json.loads(self.body)

    @property
    def id(self) -> str:
        return self.headers["webhook-id"]

    @property
    def data(self) -> dict[str, Any]:
        return self.json["data"]


@dataclass
class WebhookTarget:
    """``answers``: statuses for the next requests, then 204. ``hold``: requests wait until it is set."""

    url: str = ""
    received: list[Received] = field(default_factory=list)
    answers: list[int] = field(default_factory=list)
    headers: dict[str, str] = field(default_factory=dict)
    hold: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self.hold.set()

    @property
    def ids(self) -> list[str]:
        return [request.id for request in self.received]


@contextmanager
def webhook_target(port: int = 0, wrap: Any = None) -> Iterator[WebhookTarget]:
    """``wrap``: makes the listening socket one of TLS."""
    target = WebhookTarget()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            headers = {name.lower(): value for name, value in self.headers.items()}
            target.received.append(Received(self.path, headers, body))
            target.hold.wait(30)
            try:
                self.send_response(target.answers.pop(0) if target.answers else 204)
                for name, value in target.headers.items():
                    self.send_header(name, value)
                self.end_headers()
            except OSError:
                return  # whoever asked did not wait

        def log_message(self, *_: Any) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    server.daemon_threads = True
    if wrap is not None:
        server.socket = wrap(server.socket)
    scheme = "https" if wrap is not None else "http"
    target.url = f"{scheme}://127.0.0.1:{server.server_port}/hook/a-long-secret-path"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield target
    finally:
        target.hold.set()
        server.shutdown()
        server.server_close()
        thread.join(10)
