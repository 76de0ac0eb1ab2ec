"""How a client of the demo camera gets its RTP packets: within the RTSP connection, or by UDP."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterable
from typing import Protocol

from ingest.demo_camera.rtsp import Datagrams, Interleaved

MAX_WAITING = 1 << 20
"""Bytes unsent to a client; beyond it the client gets nothing until the next keyframe, as with a slow viewer."""
_PORT_ATTEMPTS = 50


class Delivery(Protocol):
    """Sends without ever blocking."""

    @property
    def transport(self) -> str:
        """Value of the Transport header of SETUP's answer."""
        ...

    @property
    def congested(self) -> bool:
        """Whether the client takes less than it is sent."""
        ...

    def send(self, packets: Iterable[bytes]) -> None: ...

    def close(self) -> None: ...


class InterleavedDelivery:
    """RFC 2326, 10.12: ``$``, channel, length, packet."""

    def __init__(self, writer: asyncio.StreamWriter, channels: Interleaved) -> None:
        self._writer = writer
        self._channels = channels

    @property
    def transport(self) -> str:
        return f"RTP/AVP/TCP;unicast;interleaved={self._channels.rtp}-{self._channels.rtcp}"

    @property
    def congested(self) -> bool:
        return self._writer.transport.get_write_buffer_size() > MAX_WAITING

    def send(self, packets: Iterable[bytes]) -> None:
        framed = bytearray()
        for packet in packets:
            framed += b"$" + bytes((self._channels.rtp,)) + len(packet).to_bytes(2, "big") + packet
        self._writer.write(bytes(framed))

    def close(self) -> None:
        """The connection belongs to the session."""


class DatagramDelivery:
    """Two sockets of the camera's own, for RTP and RTCP; what comes in on them is not read.

    Raises OSError when no pair of ports is free.
    """

    def __init__(self, host: str, client: str, ports: Datagrams) -> None:
        self._sockets = _socket_pair(host)
        self._ports = ports
        self._client = client

    @property
    def transport(self) -> str:
        rtp, rtcp = (sock.getsockname()[1] for sock in self._sockets)
        return f"RTP/AVP;unicast;client_port={self._ports.rtp}-{self._ports.rtcp};server_port={rtp}-{rtcp}"

    @property
    def congested(self) -> bool:
        return False

    def send(self, packets: Iterable[bytes]) -> None:
        for packet in packets:
            try:
                self._sockets[0].sendto(packet, (self._client, self._ports.rtp))
            except OSError:  # a full buffer or a client that has left: UDP loses packets
                continue

    def close(self) -> None:
        for sock in self._sockets:
            sock.close()


def _socket_pair(host: str) -> tuple[socket.socket, socket.socket]:
    """An even port and the next one (RFC 3550, 11)."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for _ in range(_PORT_ATTEMPTS):
        first, second = socket.socket(family, socket.SOCK_DGRAM), socket.socket(family, socket.SOCK_DGRAM)
        try:
            first.bind((host, 0))
            port = first.getsockname()[1]
            if port % 2:
                raise OSError("an odd port")
            second.bind((host, port + 1))
        except OSError:
            first.close()
            second.close()
            continue
        for sock in (first, second):
            sock.setblocking(False)
        return first, second
    raise OSError(f"no pair of UDP ports is free on {host}")
