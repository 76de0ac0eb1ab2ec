"""A real MQTT broker (amqtt) on a free port, and a client that remembers what it hears."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiomqtt
from amqtt.broker import Broker

logging.getLogger("amqtt").setLevel(logging.ERROR)
logging.getLogger("transitions").setLevel(logging.ERROR)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@asynccontextmanager
async def mqtt_broker(
    port: int | None = None, *, password_file: Path | None = None, tls: tuple[Path, Path] | None = None
) -> AsyncIterator[int]:
    """Gives its port. ``password_file``: then nobody comes in without; ``tls``: key and certificate."""
    port = port or free_port()
    listener: dict[str, Any] = {"type": "tcp", "bind": f"127.0.0.1:{port}"}
    if tls is not None:
        listener |= {"ssl": True, "keyfile": str(tls[0]), "certfile": str(tls[1])}
    plugins: dict[str, Any] = {"amqtt.plugins.authentication.AnonymousAuthPlugin": {"allow_anonymous": True}}
    if password_file is not None:
        plugins = {"amqtt.plugins.authentication.FileAuthPlugin": {"password_file": str(password_file)}}
    broker = Broker({"listeners": {"default": listener}, "plugins": plugins})
    await broker.start()
    try:
        yield port
    finally:
        with suppress(Exception):
            # It waits for ever for a client that left in the middle of a message.
            await asyncio.wait_for(broker.shutdown(), 5)


@dataclass
class Heard:
    """Messages by topic, in their order; ``retained``: those that were there before."""

    messages: list[tuple[str, bytes]] = field(default_factory=list)

    def of(self, topic: str) -> list[str]:
        return [payload.decode() for name, payload in self.messages if name == topic]

    def last(self, topic: str) -> str | None:
        found = self.of(topic)
        return found[-1] if found else None

    def json(self, topic: str) -> list[Any]:
        return [json.loads(payload) for payload in self.of(topic)]


@asynccontextmanager
async def listening(port: int, topic: str = "#", **client: Any) -> AsyncIterator[Heard]:
    """Subscribed before this returns."""
    heard = Heard()
    async with aiomqtt.Client("127.0.0.1", port, **client) as mqtt:
        await mqtt.subscribe(topic, qos=1)

        async def listen() -> None:
            async for message in mqtt.messages:
                heard.messages.append((str(message.topic), bytes(message.payload or b"")))

        task = asyncio.create_task(listen())
        try:
            yield heard
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError, aiomqtt.MqttError):
                await task
