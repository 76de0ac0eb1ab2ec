"""RTSP 1.0 messages (RFC 2326), as far as a camera needs them, and the session description (RFC 4566)."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass

from ingest.demo_camera.encoder import NAL_PPS, NAL_SPS, nal_type
from ingest.demo_camera.rtp import CLOCK_RATE, PAYLOAD_TYPE

METHODS = ("OPTIONS", "DESCRIBE", "SETUP", "PLAY", "GET_PARAMETER", "SET_PARAMETER", "TEARDOWN")
STATUS_TEXT = {
    200: "OK",
    400: "Bad Request",
    404: "Not Found",
    454: "Session Not Found",
    455: "Method Not Valid in This State",
    461: "Unsupported Transport",
    501: "Not Implemented",
    505: "RTSP Version Not Supported",
}


class MalformedRequest(ValueError):
    """Not an RTSP request."""


@dataclass(frozen=True, slots=True)
class RtspRequest:
    """Header names are in lower case."""

    method: str
    url: str
    version: str
    headers: Mapping[str, str]

    @classmethod
    def parse(cls, head: bytes) -> RtspRequest:
        """Reads a request's lines up to the empty one. Raises MalformedRequest."""
        lines = head.decode("utf-8", "replace").strip("\r\n").split("\r\n")
        parts = lines[0].split(" ")
        if len(parts) != 3 or not parts[2].startswith("RTSP/"):
            raise MalformedRequest("no request line")
        headers: dict[str, str] = {}
        for line in lines[1:]:
            name, colon, value = line.partition(":")
            if not colon:
                raise MalformedRequest("a header line without a colon")
            headers[name.strip().lower()] = value.strip()
        return cls(parts[0].upper(), parts[1], parts[2], headers)

    @property
    def content_length(self) -> int:
        """Bytes of the body that follows. Raises MalformedRequest."""
        text = self.headers.get("content-length", "0")
        if not text.isascii() or not text.isdigit():
            raise MalformedRequest("Content-Length is not a number")
        return int(text)


def response(request: RtspRequest | None, status: int, headers: Mapping[str, str], body: str = "") -> bytes:
    """A response with the request's CSeq, and Content-Length where there is a body."""
    lines = [f"RTSP/1.0 {status} {STATUS_TEXT[status]}"]
    if request is not None and "cseq" in request.headers:
        lines.append(f"CSeq: {request.headers['cseq']}")
    lines.append("Server: Watchword-Demo-Camera")
    lines += [f"{name}: {value}" for name, value in headers.items()]
    data = body.encode()
    if data:
        lines.append(f"Content-Length: {len(data)}")
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + data


def interleaved_channels(transport: str) -> tuple[int, int] | None:
    """The channels asked for by a Transport header, e.g. ``RTP/AVP/TCP;unicast;interleaved=0-1``; None for UDP."""
    for offer in transport.split(","):
        fields = [field.strip() for field in offer.split(";")]
        if fields[0].upper() != "RTP/AVP/TCP":
            continue
        for field in fields[1:]:
            name, _, value = field.partition("=")
            if name.lower() == "interleaved":
                first, _, second = value.partition("-")
                if first.isdigit() and int(first) < 255 and (not second or second.isdigit()):
                    return int(first), int(second) if second else int(first) + 1
        return 0, 1
    return None


def session_description(host: str, nals: tuple[bytes, ...], fps: int) -> str:
    """SDP with the stream's parameter sets, so that a client knows size and profile before the first packet."""
    sets = [nal for nal in nals if nal_type(nal) in (NAL_SPS, NAL_PPS)]
    sprop = ",".join(base64.b64encode(nal).decode() for nal in sets)
    profile = next(nal for nal in sets if nal_type(nal) == NAL_SPS)[1:4].hex().upper()
    lines = (
        "v=0",
        f"o=- 0 0 IN IP4 {host}",
        "s=Watchword demo camera",
        f"c=IN IP4 {host}",
        "t=0 0",
        "a=control:*",
        f"m=video 0 RTP/AVP {PAYLOAD_TYPE}",
        f"a=rtpmap:{PAYLOAD_TYPE} H264/{CLOCK_RATE}",
        f"a=fmtp:{PAYLOAD_TYPE} packetization-mode=1;profile-level-id={profile};sprop-parameter-sets={sprop}",
        f"a=framerate:{fps}",
        "a=control:trackID=0",
    )
    return "\r\n".join(lines) + "\r\n"
