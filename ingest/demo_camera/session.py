"""One client of the demo camera: its RTSP dialogue and its RTP stream."""

from __future__ import annotations

import asyncio
import random
import secrets
from collections.abc import Callable, Collection
from dataclasses import dataclass

from ingest.demo_camera.access import Access
from ingest.demo_camera.delivery import MAX_WAITING, DatagramDelivery, Delivery, InterleavedDelivery
from ingest.demo_camera.encoder import AccessUnit
from ingest.demo_camera.faults import Faults
from ingest.demo_camera.rtp import RtpPacketizer
from ingest.demo_camera.rtsp import METHODS, Interleaved, MalformedRequest, RtspRequest, chosen_transport, response

MAX_HEAD = 16 * 1024
MAX_BODY = 64 * 1024
SESSION_TIMEOUT_S = 60
_OPEN_TO_ALL = ("OPTIONS",)


@dataclass(frozen=True, slots=True)
class StreamFacts:
    """What all sessions share.

    Attributes:
        sdp: gives the session description as it is now.
        next_index: number of the next picture.
        places: how many clients have a place, from SETUP on.
        seen: told of every request's method.
    """

    host: str
    path: str
    fps: float
    transports: Collection[str]
    access: Access | None
    faults: Faults
    sdp: Callable[[], bytes]
    next_index: Callable[[], int]
    places: Callable[[], int]
    seen: Callable[[str], None]


class ClientSession:
    """Runs in the server's event loop.

    The session lives as long as the connection, over UDP too. A request that doesn't fit the session's state is refused
    with RFC 2326's codes, never answered by silence, unless a fault asks for that.
    """

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, facts: StreamFacts) -> None:
        self._reader = reader
        self._writer = writer
        self._facts = facts
        self._rtp = RtpPacketizer(secrets.randbits(32), secrets.randbits(16), secrets.randbits(32), facts.fps)
        self._rng = random.Random(0)
        self._id = ""
        self._delivery: Delivery | None = None
        self._awaits_keyframe = True
        self._keyframes_from = 0.0
        self.playing = False
        self.torn_down = False

    async def serve(self) -> None:
        """Answers requests until the client leaves or breaks the protocol."""
        try:
            while not self.torn_down:
                request = await self._next_request()
                self._facts.seen(request.method)
                if request.method in self._facts.faults.hang_at:
                    continue
                self._writer.write(self._answer(request))
                await self._writer.drain()
        except MalformedRequest:
            self._writer.write(response(None, 400, {}))
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, ConnectionError):
            pass  # the client has left
        finally:
            self.playing = False

    @property
    def has_place(self) -> bool:
        """Whether it counts among the viewers that the camera has room for."""
        return self._delivery is not None and not self.torn_down

    def close(self) -> None:
        """Ends the connection; what is not sent yet is thrown away."""
        self.playing = False
        if self._delivery is not None:
            self._delivery.close()
        unsent = self._writer.transport.get_write_buffer_size()
        self._writer.transport.abort() if unsent > MAX_WAITING // 2 else self._writer.close()

    def send(self, unit: AccessUnit) -> None:
        """Queues a picture for the client; starts at a keyframe, and again at one after the client fell behind."""
        if not self.playing or self._delivery is None or (self._awaits_keyframe and not unit.keyframe):
            return
        if unit.keyframe and asyncio.get_running_loop().time() < self._keyframes_from:
            return
        self._awaits_keyframe = self._delivery.congested
        if self._awaits_keyframe:
            return
        packets = self._rtp.packets(unit, self._facts.faults.time_shift_s)
        self._delivery.send(packet for packet in packets if not self._is_lost())

    def _is_lost(self) -> bool:
        loss = self._facts.faults.loss
        return loss > 0 and self._rng.random() < loss

    async def _next_request(self) -> RtspRequest:
        """Skips what the client sends on the interleaved channels (RTCP receiver reports)."""
        while True:
            first = await self._reader.readexactly(1)
            if first == b"$":
                header = await self._reader.readexactly(3)
                await self._reader.readexactly(int.from_bytes(header[1:], "big"))
            elif first not in b"\r\n":
                break
        head = first + await self._reader.readuntil(b"\r\n\r\n")
        request = RtspRequest.parse(head)
        if request.content_length > MAX_BODY:
            raise MalformedRequest("body too long")
        await self._reader.readexactly(request.content_length)
        return request

    def _answer(self, request: RtspRequest) -> bytes:
        if not request.version.startswith("RTSP/1."):
            return response(request, 505, {})
        if "cseq" not in request.headers:
            return response(request, 400, {})
        refused = self._facts.faults.status_at.get(request.method)
        if refused is not None:
            return response(request, refused, {"WWW-Authenticate": 'Basic realm="demo"'} if refused == 401 else {})
        access = self._facts.access
        if access is not None and request.method not in _OPEN_TO_ALL:
            given = request.headers.get("authorization", "")
            if not access.admits(request.method, given):
                return response(request, 401, {"WWW-Authenticate": access.challenge})
        handlers = {
            "OPTIONS": self._options,
            "DESCRIBE": self._describe,
            "SETUP": self._setup,
            "PLAY": self._play,
            "GET_PARAMETER": self._keep_alive,
            "SET_PARAMETER": self._keep_alive,
            "TEARDOWN": self._teardown,
        }
        handler = handlers.get(request.method)
        return handler(request) if handler else response(request, 501, {"Public": ", ".join(METHODS)})

    def _options(self, request: RtspRequest) -> bytes:
        return response(request, 200, {"Public": ", ".join(METHODS)})

    def _describe(self, request: RtspRequest) -> bytes:
        if not self._is_ours(request.url):
            return response(request, 404, {})
        base = request.url.rstrip("/") + "/"
        return response(request, 200, {"Content-Base": base, "Content-Type": "application/sdp"}, self._facts.sdp())

    def _setup(self, request: RtspRequest) -> bytes:
        if not self._is_ours(request.url):
            return response(request, 404, {})
        if self.playing:
            return response(request, 455, {})
        allowed = self._facts.faults.max_viewers
        if allowed is not None and self._delivery is None and self._facts.places() >= allowed:
            return response(request, 453, {})
        transport = chosen_transport(request.headers.get("transport", ""), self._facts.transports)
        if transport is None:
            return response(request, 461, {})
        if self._delivery is not None:
            self._delivery.close()
        try:
            if isinstance(transport, Interleaved):
                self._delivery = InterleavedDelivery(self._writer, transport)
            else:
                client = self._writer.get_extra_info("peername")[0]
                self._delivery = DatagramDelivery(self._facts.host, client, transport)
        except OSError:
            self._delivery = None
            return response(request, 503, {})
        self._id = self._id or secrets.token_hex(8)
        session = f"{self._id};timeout={SESSION_TIMEOUT_S}"
        return response(request, 200, {"Transport": self._delivery.transport, "Session": session})

    def _play(self, request: RtspRequest) -> bytes:
        if not self._id:
            return response(request, 455, {})
        if not self._names_session(request):
            return response(request, 454, {})
        late = self._facts.faults.late_keyframe_s
        self._awaits_keyframe = not late
        self._keyframes_from = asyncio.get_running_loop().time() + late
        self.playing = True
        url = request.url.rstrip("/") + "/trackID=0"
        rtp_time = self._rtp.timestamp(self._facts.next_index(), self._facts.faults.time_shift_s)
        info = f"url={url};seq={self._rtp.next_sequence};rtptime={rtp_time}"
        return response(request, 200, {"Session": self._id, "Range": "npt=0.000-", "RTP-Info": info})

    def _keep_alive(self, request: RtspRequest) -> bytes:
        if "session" in request.headers and not self._names_session(request):
            return response(request, 454, {})
        return response(request, 200, {"Session": self._id} if self._id else {})

    def _teardown(self, request: RtspRequest) -> bytes:
        if not self._id or not self._names_session(request):
            return response(request, 454, {})
        self.playing = False
        self.torn_down = True
        return response(request, 200, {"Session": self._id})

    def _names_session(self, request: RtspRequest) -> bool:
        return request.headers.get("session", "").partition(";")[0].strip() == self._id

    def _is_ours(self, url: str) -> bool:
        """Whether the URL is the stream's or its track's."""
        path = "/" + url.split("://", 1)[-1].partition("/")[2]
        path = path.partition("?")[0].rstrip("/")
        return path in (self._facts.path, f"{self._facts.path}/trackID=0")
