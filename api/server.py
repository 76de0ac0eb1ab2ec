"""uvicorn around the app, in whatever event loop the process already runs."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

HEAD_S = 20.0
"""Longest wait for a request's head, from the connection's first byte or the last answer's end."""
BACKLOG = 2048
"""Connections that the system keeps until they are accepted."""
ACCEPTED_AT_ONCE = 4
"""Connections that a turn of the event loop accepts: hundreds at once would be a turn of a tenth of a second."""
SHUTDOWN_S = 8
"""Longest wait for open answers on shutdown; what is left then is cut."""


class BoundedHead(HttpToolsProtocol):
    """uvicorn's HTTP/1.1, and a client has so long to send a request's head: connections that never say what they want
    would otherwise use up the process's descriptors."""

    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._watch()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop()
        super().connection_lost(exc)

    @property
    def _wants_head(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    def _watch(self) -> None:
        if not self._wants_head:
            self._stop()
        elif self._timer is None:
            self._timer = self.loop.call_later(HEAD_S, self._too_late)

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _too_late(self) -> None:
        self._timer = None
        if self._wants_head and not self.transport.is_closing():
            self.transport.close()


class ApiServer(uvicorn.Server):
    """``await serve()`` runs until ``stop()``. Signals are the process's own business, not this server's.

    Args:
        port: 0 takes a free one; ``url`` says which.

    Raises:
        OSError: the address can't be used; raised here, before anything slow has begun.
    """

    def __init__(self, app: FastAPI, host: str, port: int) -> None:
        config = uvicorn.Config(
            app,
            host=host,
            port=port,
            log_config=None,
            access_log=False,
            server_header=False,
            lifespan="off",
            http=BoundedHead,
            ws="none",
            timeout_graceful_shutdown=SHUTDOWN_S,
            backlog=ACCEPTED_AT_ONCE,
        )
        super().__init__(config)
        self._closing: asyncio.Event = app.state.closing
        self._socket = _bind(host, port)

    @property
    def url(self) -> str:
        """Where it listens, as http://host:port."""
        host, port = self._socket.getsockname()[:2]
        return f"http://{f'[{host}]' if ':' in host else host}:{port}"

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        await super().serve(sockets=sockets or [self._socket])

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        for listener in sockets or ():
            # asyncio takes one number for what it accepts in a turn and for what the system keeps; the second is ours.
            listener.listen(BACKLOG)

    def stop(self) -> None:
        """Ends serve() soon: open event streams end now, other answers may finish for a while."""
        self._closing.set()
        self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._closing.set()
        await super().shutdown(sockets)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def _bind(host: str, port: int) -> socket.socket:
    family, kind, protocol, _, address = socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        # Not left to uvicorn, which does it when its loop comes to it: until then connections would be refused, and
        # with SO_REUSEADDR a port that another has bound but not listened on yet would seem free.
        listener.listen(BACKLOG)
    except OSError:
        listener.close()
        raise
    return listener
