"""One client of the demo camera: its RTSP dialogue and its RTP stream over the same connection."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from dataclasses import dataclass

from ingest.demo_camera.encoder import AccessUnit
from ingest.demo_camera.rtp import RtpPacketizer
from ingest.demo_camera.rtsp import METHODS, MalformedRequest, RtspRequest, interleaved_channels, response

MAX_HEAD = 16 * 1024
MAX_BODY = 64 * 1024
MAX_WAITING = 1 << 20
"""Bytes unsent to a client; beyond it the client gets nothing until the next keyframe, as with a slow viewer."""

SESSION_TIMEOUT_S = 60


@dataclass(frozen=True, slots=True)
class StreamFacts:
    """What a session tells its client about the stream."""

    path: str
    sdp: str
    fps: int


class ClientSession:
    """Runs in the server's event loop.

    The session lives as long as the connection: interleaved RTP can't outlive it. A request that doesn't fit the
    session's state is refused with RFC 2326's codes, never answered by silence.
    """

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        facts: StreamFacts,
        next_index: Callable[[], int],
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._facts = facts
        self._next_index = next_index
        self._rtp = RtpPacketizer(secrets.randbits(32), secrets.randbits(16), secrets.randbits(32), facts.fps)
        self._id = ""
        self._channel = 0
        self._awaits_keyframe = True
        self.playing = False
        self.torn_down = False

    async def serve(self) -> None:
        """Answers requests until the client leaves or breaks the protocol."""
        try:
            while not self.torn_down:
                request = await self._next_request()
                self._writer.write(self._answer(request))
                await self._writer.drain()
        except MalformedRequest:
            self._writer.write(response(None, 400, {}))
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, ConnectionError):
            pass  # the client has left
        finally:
            self.playing = False

    def close(self) -> None:
        """Ends the connection; what is not sent yet is thrown away."""
        self.playing = False
        self._writer.transport.abort() if self._unsent > MAX_WAITING // 2 else self._writer.close()

    def send(self, unit: AccessUnit) -> None:
        """Queues a picture for the client; starts at a keyframe, and again at one after the client fell behind."""
        if not self.playing or (self._awaits_keyframe and not unit.keyframe):
            return
        self._awaits_keyframe = self._unsent > MAX_WAITING
        if self._awaits_keyframe:
            return
        framed = bytearray()
        for packet in self._rtp.packets(unit):
            framed += b"$" + bytes((self._channel,)) + len(packet).to_bytes(2, "big") + packet
        self._writer.write(bytes(framed))

    @property
    def _unsent(self) -> int:
        return self._writer.transport.get_write_buffer_size()

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
        return response(request, 200, {"Content-Base": base, "Content-Type": "application/sdp"}, self._facts.sdp)

    def _setup(self, request: RtspRequest) -> bytes:
        if not self._is_ours(request.url):
            return response(request, 404, {})
        if self.playing:
            return response(request, 455, {})
        channels = interleaved_channels(request.headers.get("transport", ""))
        if channels is None:
            return response(request, 461, {})
        self._channel = channels[0]
        self._id = self._id or secrets.token_hex(8)
        transport = f"RTP/AVP/TCP;unicast;interleaved={channels[0]}-{channels[1]}"
        return response(request, 200, {"Transport": transport, "Session": f"{self._id};timeout={SESSION_TIMEOUT_S}"})

    def _play(self, request: RtspRequest) -> bytes:
        if not self._id:
            return response(request, 455, {})
        if not self._names_session(request):
            return response(request, 454, {})
        self.playing = True
        url = request.url.rstrip("/") + "/trackID=0"
        rtp_time = self._rtp.timestamp(self._next_index())
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
