"""RTSP 1.0 messages (RFC 2326), as far as a camera needs them, and the session description (RFC 4566)."""

from __future__ import annotations

import base64
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from ingest.demo_camera.encoder import NAL_PPS, NAL_SPS, nal_type
from ingest.demo_camera.rtp import CLOCK_RATE, PAYLOAD_TYPE

METHODS = ("OPTIONS", "DESCRIBE", "SETUP", "PLAY", "GET_PARAMETER", "SET_PARAMETER", "TEARDOWN")
STATUS_TEXT = {
    200: "OK",
    400: "Bad Request",
    401: "Unauthorized",
    403: "Forbidden",
    404: "Not Found",
    453: "Not Enough Bandwidth",
    454: "Session Not Found",
    455: "Method Not Valid in This State",
    461: "Unsupported Transport",
    500: "Internal Server Error",
    501: "Not Implemented",
    503: "Service Unavailable",
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


def response(request: RtspRequest | None, status: int, headers: Mapping[str, str], body: bytes = b"") -> bytes:
    """A response with the request's CSeq, and Content-Length where there is a body."""
    lines = [f"RTSP/1.0 {status} {STATUS_TEXT[status]}"]
    if request is not None and "cseq" in request.headers:
        lines.append(f"CSeq: {request.headers['cseq']}")
    lines.append("Server: Watchword-Demo-Camera")
    lines += [f"{name}: {value}" for name, value in headers.items()]
    if body:
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


@dataclass(frozen=True, slots=True)
class Interleaved:
    """RTP and RTCP within the RTSP connection, on these channels."""

    rtp: int
    rtcp: int


@dataclass(frozen=True, slots=True)
class Datagrams:
    """RTP and RTCP over UDP to these ports of the client."""

    rtp: int
    rtcp: int


Transport = Interleaved | Datagrams


def chosen_transport(header: str, allowed: Collection[str]) -> Transport | None:
    """The first offer of a Transport header that is ``allowed`` ("tcp", "udp"); None when there is none.

    Offers look like ``RTP/AVP/TCP;unicast;interleaved=0-1`` and ``RTP/AVP;unicast;client_port=5000-5001``.
    """
    for offer in header.split(","):
        profile, *fields = [field.strip() for field in offer.split(";")]
        parameters = {name.lower(): value for name, _, value in (field.partition("=") for field in fields)}
        if profile.upper() == "RTP/AVP/TCP" and "tcp" in allowed:
            channels = _pair(parameters.get("interleaved", "0-1"), 255)
            if channels is not None:
                return Interleaved(*channels)
        elif profile.upper() in ("RTP/AVP", "RTP/AVP/UDP") and "udp" in allowed and "multicast" not in parameters:
            ports = _pair(parameters.get("client_port", ""), 65535)
            if ports is not None:
                return Datagrams(*ports)
    return None


def _pair(text: str, highest: int) -> tuple[int, int] | None:
    """``4-5`` or ``4`` (then the next is the second)."""
    first, _, second = text.partition("-")
    if not (first.isascii() and first.isdigit()) or (second and not (second.isascii() and second.isdigit())):
        return None
    pair = int(first), int(second) if second else int(first) + 1
    return pair if max(pair) <= highest else None


def session_description(
    host: str, nals: tuple[bytes, ...], fps: float, codec_name: str = "H264", title: bytes = b"Watchword demo camera"
) -> bytes:
    """SDP with the stream's parameter sets, so that a client knows size and profile before the first packet."""
    sets = [nal for nal in nals if nal_type(nal) in (NAL_SPS, NAL_PPS)]
    sprop = ",".join(base64.b64encode(nal).decode() for nal in sets)
    profile = next(nal for nal in sets if nal_type(nal) == NAL_SPS)[1:4].hex().upper()
    lines = (
        f"c=IN IP4 {host}",
        "t=0 0",
        "a=control:*",
        f"m=video 0 RTP/AVP {PAYLOAD_TYPE}",
        f"a=rtpmap:{PAYLOAD_TYPE} {codec_name}/{CLOCK_RATE}",
        f"a=fmtp:{PAYLOAD_TYPE} packetization-mode=1;profile-level-id={profile};sprop-parameter-sets={sprop}",
        f"a=framerate:{fps:g}",
        "a=control:trackID=0",
    )
    head = f"v=0\r\no=- 0 0 IN IP4 {host}\r\ns=".encode() + title + b"\r\n"
    return head + "\r\n".join(lines).encode() + b"\r\n"
