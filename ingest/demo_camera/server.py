"""The demo camera: an RTSP server of our own, with faults on demand."""

from __future__ import annotations

import asyncio
import logging
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from ingest.demo_camera.clip import ClipSource
from ingest.demo_camera.encoder import AccessUnit, H264Encoder
from ingest.demo_camera.rtsp import session_description
from ingest.demo_camera.session import ClientSession, StreamFacts

log = logging.getLogger(__name__)

STOP_TIMEOUT_S = 5.0
MAX_BEHIND_S = 1.0


@dataclass(slots=True)
class Faults:
    """What is wrong with the camera at the moment. Set by any thread, read by the server's loop."""

    stalled: bool = False
    """Connections stay open, nothing is encoded or sent: a camera whose encoder hangs."""


@dataclass(slots=True)
class ServerCounts:
    """Since the start, for tests and the log."""

    connections: int = 0
    teardowns: int = 0
    pictures: int = 0


class DemoCamera:
    """Serves one stream to any number of clients over TCP-interleaved RTP.

    ``start`` returns when the port is bound; ``url`` is known from then on. All methods may be called from any thread.
    One encoder serves all clients and rests while there are none. ``port=0`` takes a free one.
    """

    def __init__(
        self,
        source: ClipSource,
        host: str = "127.0.0.1",
        port: int = 0,
        path: str = "/demo",
        fps: int = 10,
        gop: int | None = None,
    ) -> None:
        """``gop``: pictures from keyframe to keyframe; one second's when not given."""
        self._source = source
        self._host = host
        self._port = port
        self._path = "/" + path.strip("/")
        self._fps = fps
        self._encoder = H264Encoder(source.width, source.height, fps, gop or fps)
        self._faults = Faults()
        self._sessions: set[ClientSession] = set()
        self._index = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping: asyncio.Event | None = None
        self._thread: threading.Thread | None = None
        self.counts = ServerCounts()

    def start(self) -> None:
        """Raises OSError when the port can't be bound, and what the source or the encoder raises."""
        if self._thread is not None:
            raise RuntimeError("the demo camera is already running")
        bound: Future[int] = Future()
        self._thread = threading.Thread(target=self._run, args=(bound,), name="demo-camera", daemon=True)
        self._thread.start()
        try:
            self._port = bound.result()
        except BaseException:
            self._thread.join(STOP_TIMEOUT_S)
            self._thread = None
            raise

    def stop(self) -> None:
        """Ends all connections and the server; idempotent."""
        thread, self._thread = self._thread, None
        if thread is None:
            return
        if self._loop is not None and self._stopping is not None:
            self._loop.call_soon_threadsafe(self._stopping.set)
        thread.join(STOP_TIMEOUT_S)

    @property
    def url(self) -> str:
        return f"rtsp://{self._host}:{self._port}{self._path}"

    @property
    def clients(self) -> int:
        """Connections that are being served now."""
        return len(self._sessions)

    @property
    def viewers(self) -> int:
        """Clients that the picture is sent to now."""
        return sum(session.playing for session in list(self._sessions))

    @property
    def index(self) -> int:
        """Number of the newest picture, counted at the frame rate since the start."""
        return self._index

    def stall(self) -> None:
        """From now on no picture is sent; connections stay and requests are answered."""
        self._faults.stalled = True

    def resume(self) -> None:
        """Ends :meth:`stall`."""
        self._faults.stalled = False

    def close_clients(self) -> None:
        """Closes every connection, as a camera does that restarts; new ones are accepted."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._close_sessions)

    def _run(self, bound: Future[int]) -> None:
        try:
            asyncio.run(self._serve(bound))
        except Exception as error:
            if bound.done():
                log.exception("the demo camera failed")
            else:
                bound.set_exception(error)

    async def _serve(self, bound: Future[int]) -> None:
        self._loop = asyncio.get_running_loop()
        self._stopping = asyncio.Event()
        with ThreadPoolExecutor(1, thread_name_prefix="demo-encoder") as encoder:
            first = await self._loop.run_in_executor(encoder, self._encode, 0)
            facts = StreamFacts(self._path, session_description(self._host, first.nals, self._fps), self._fps)

            async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                await self._serve_client(reader, writer, facts)

            server = await asyncio.start_server(accept, self._host, self._port)
            bound.set_result(server.sockets[0].getsockname()[1])
            pump = asyncio.create_task(self._pump(encoder))
            stopped = asyncio.create_task(self._stopping.wait())
            await asyncio.wait((pump, stopped), return_when=asyncio.FIRST_COMPLETED)
            server.close()
            self._close_sessions()
            pump.cancel()
            stopped.cancel()
            failed = (await asyncio.gather(pump, return_exceptions=True))[0]
            if isinstance(failed, Exception):
                raise failed

    async def _serve_client(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, facts: StreamFacts
    ) -> None:
        session = ClientSession(reader, writer, facts, lambda: self._index + 1)
        self._sessions.add(session)
        self.counts.connections += 1
        try:
            await session.serve()
        finally:
            self._sessions.discard(session)
            self.counts.teardowns += session.torn_down
            session.close()

    async def _pump(self, encoder: ThreadPoolExecutor) -> None:
        """One picture per frame time; times are counted from the start, so that the clip never drifts.

        A busy machine makes pictures late, not missing, unless it falls behind by more than a second.
        """
        loop = asyncio.get_running_loop()
        started = loop.time()
        while True:
            due = max(self._index + 1, int((loop.time() - started - MAX_BEHIND_S) * self._fps))
            await asyncio.sleep(started + due / self._fps - loop.time())
            self._index = due
            if self._faults.stalled or not self.viewers:
                continue
            unit = await loop.run_in_executor(encoder, self._encode, due)
            self.counts.pictures += 1
            if not self._faults.stalled:
                for session in self._sessions:
                    session.send(unit)

    def _encode(self, index: int) -> AccessUnit:
        return self._encoder.encode(index, self._source.picture(index / self._fps))

    def _close_sessions(self) -> None:
        for session in list(self._sessions):
            session.close()
