"""The real app behind a real uvicorn on a free port, in a thread with its own event loop."""

from __future__ import annotations

import asyncio
import threading
from types import TracebackType

from fastapi import FastAPI

from api.app import create_app
from api.server import ApiServer
from api.services import Services


class LiveServer:
    """``with LiveServer(services) as server: httpx.get(server.url + "/health/live")``."""

    def __init__(self, services: Services, port: int = 0) -> None:
        self.app: FastAPI = create_app(services)
        self._server = ApiServer(self.app, "127.0.0.1", port)
        self.url = self._server.url
        self._services = services
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=self._run, name="live-server", daemon=True)

    def _run(self) -> None:
        async def main() -> None:
            self._loop = asyncio.get_running_loop()
            await self._server.serve()
            if self._services.hub is not None:
                await self._services.hub.close()

        asyncio.run(main())

    def stop(self) -> None:
        """Asks it to end and waits until it has."""
        if self._loop is not None and self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._server.stop)
        self._thread.join(20)
        assert not self._thread.is_alive(), "the server did not end in time"

    def __enter__(self) -> LiveServer:
        # The socket is bound, so connections wait in its backlog until the server accepts them.
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.stop()
