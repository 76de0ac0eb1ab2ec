"""The demo camera: an RTSP server of our own, with faults on demand."""

from __future__ import annotations

import asyncio
import logging
import random
import ssl
import threading
from collections import Counter, deque
from collections.abc import Collection, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

import cv2
import numpy as np

from ingest.demo_camera.access import Access
from ingest.demo_camera.clip import ClipSource, Picture
from ingest.demo_camera.encoder import AccessUnit, H264Encoder
from ingest.demo_camera.faults import Faults, ScheduledFault, damage
from ingest.demo_camera.rtsp import session_description
from ingest.demo_camera.session import ClientSession, StreamFacts

log = logging.getLogger(__name__)

STOP_TIMEOUT_S = 5.0
MAX_BEHIND_S = 1.0
TRANSPORTS = ("tcp", "udp")
REMEMBERED = 4096


@dataclass(frozen=True, slots=True)
class SentPicture:
    """What became of the picture ``index``."""

    index: int
    keyframe: bool
    damaged: bool
    skipped: bool


@dataclass(slots=True)
class ServerCounts:
    """Since the start, for tests and the log. ``requests`` counts each method; ``sent`` holds the last pictures."""

    connections: int = 0
    teardowns: int = 0
    pictures: int = 0
    requests: Counter[str] = field(default_factory=Counter)
    sent: deque[SentPicture] = field(default_factory=lambda: deque(maxlen=REMEMBERED))


@dataclass(frozen=True, slots=True)
class StreamShape:
    """What the encoder is set up for."""

    width: int
    height: int
    pixel_format: str


class DemoCamera:
    """Serves one stream to any number of clients, RTP within the connection or over UDP.

    ``start`` returns when the port is bound; ``url`` is known from then on. All methods may be called from any thread,
    and the attributes of ``faults`` set by any. One encoder serves all clients and rests while there are none.
    ``port=0`` takes a free one.
    """

    def __init__(
        self,
        source: ClipSource,
        host: str = "127.0.0.1",
        port: int = 0,
        path: str = "/demo",
        fps: float = 10,
        gop: int | None = None,
        *,
        transports: Collection[str] = TRANSPORTS,
        access: Access | None = None,
        tls: ssl.SSLContext | None = None,
        faults: Faults | None = None,
        script: Sequence[ScheduledFault] = (),
    ) -> None:
        """``gop``: pictures from keyframe to keyframe; one second's when not given. ``tls`` makes it rtsps."""
        self._source = source
        self._host = host
        self._port = port
        self._path = "/" + path.strip("/")
        self._fps = fps
        self._gop = gop or max(1, round(fps))
        self._transports = tuple(transports)
        self._access = access
        self._tls = tls
        self._script = tuple(script)
        self.faults = faults or Faults()
        self._shape = self._wanted_shape()
        self._encoder = self._new_encoder(self._shape)
        self._rng = random.Random(0)
        self._shown: Picture | None = None
        self._parameter_sets: tuple[bytes, ...] = ()
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
        return f"{'rtsps' if self._tls else 'rtsp'}://{self._host}:{self._port}{self._path}"

    @property
    def port(self) -> int:
        return self._port

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
        self.faults.stalled = True

    def resume(self) -> None:
        """Ends :meth:`stall`."""
        self.faults.stalled = False

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
            await self._loop.run_in_executor(encoder, self._encode, 0)
            facts = self._facts()

            async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                await self._serve_client(reader, writer, facts)

            server = await asyncio.start_server(accept, self._host, self._port, ssl=self._tls)
            bound.set_result(server.sockets[0].getsockname()[1])
            self._schedule(self._loop)
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

    def _facts(self) -> StreamFacts:
        return StreamFacts(
            host=self._host,
            path=self._path,
            fps=self._fps,
            transports=self._transports,
            access=self._access,
            faults=self.faults,
            sdp=lambda: session_description(
                self._host, self._parameter_sets, self._fps, self.faults.codec_name, self.faults.title
            ),
            next_index=lambda: self._index + 1,
            places=lambda: sum(session.has_place for session in self._sessions),
            seen=self._count_request,
        )

    def _count_request(self, method: str) -> None:
        self.counts.requests[method] += 1

    def _schedule(self, loop: asyncio.AbstractEventLoop) -> None:
        """Timers for the scripted faults; those of the first moment are there before the first client."""
        for fault in self._script:
            if fault.start:
                loop.call_later(fault.start, fault.begin, self)
            else:
                fault.begin(self)
            if fault.seconds is not None:
                loop.call_later(fault.start + fault.seconds, fault.end, self)

    async def _serve_client(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, facts: StreamFacts
    ) -> None:
        session = ClientSession(reader, writer, facts)
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
            if self.faults.stalled or not self.viewers:
                continue
            unit = await loop.run_in_executor(encoder, self._encode, due)
            self.counts.pictures += 1
            damaged = self._rng.random() < self.faults.corrupt
            skipped = not unit.keyframe and self._rng.random() < self.faults.skip
            self.counts.sent.append(SentPicture(due, unit.keyframe, damaged, skipped))
            if damaged:
                unit = damage(unit, self._rng)
            if not self.faults.stalled and not skipped:
                for session in list(self._sessions):
                    session.send(unit)

    def _encode(self, index: int) -> AccessUnit:
        """Runs in the encoder's thread. A new shape is a new encoder, which starts with a keyframe."""
        shape = self._wanted_shape()
        if shape != self._shape:
            self._shape = shape
            self._encoder = self._new_encoder(shape)
            self._parameter_sets = ()
        if self._shown is None or not self.faults.frozen:
            self._shown = self._scaled(self._source.picture(index / self._fps))
        unit = self._encoder.encode(index, self._shown)
        if unit.keyframe:
            self._parameter_sets = unit.nals
        return unit

    def _wanted_shape(self) -> StreamShape:
        width, height = self.faults.size or (self._source.width, self._source.height)
        return StreamShape(width, height, self.faults.pixel_format)

    def _new_encoder(self, shape: StreamShape) -> H264Encoder:
        return H264Encoder(shape.width, shape.height, self._fps, self._gop, shape.pixel_format)

    def _scaled(self, picture: Picture) -> Picture:
        if picture.shape[:2] == (self._shape.height, self._shape.width):
            return picture
        return np.asarray(cv2.resize(picture, (self._shape.width, self._shape.height)), dtype=np.uint8)

    def _close_sessions(self) -> None:
        for session in list(self._sessions):
            session.close()
