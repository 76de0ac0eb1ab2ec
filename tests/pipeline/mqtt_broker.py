"""A real MQTT broker (Mosquitto) on a free port, and a client that remembers what it hears."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiomqtt
import pytest


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def program(name: str) -> str:
    """Skips where Mosquitto is not installed."""
    found = shutil.which(name) or shutil.which(name, path="/usr/sbin:/usr/local/sbin")
    if found is None:
        pytest.skip("needs an MQTT broker (apt-get install mosquitto) to try delivery on one")
    return found


def mqtt_passwords(path: Path, user: str, password: str) -> Path:
    """A password file for the broker."""
    subprocess.run(
        [program("mosquitto_passwd"), "-b", "-c", str(path), user, password], check=True, capture_output=True
    )
    return path


@contextmanager
def mqtt_broker(
    port: int | None = None, *, password_file: Path | None = None, tls: tuple[Path, Path] | None = None
) -> Iterator[int]:
    """Gives its port. ``password_file``: then nobody comes in without; ``tls``: key and certificate."""
    port = port or free_port()
    lines = [f"listener {port} 127.0.0.1", "persistence false"]
    lines += [f"password_file {password_file}"] if password_file else ["allow_anonymous true"]
    lines += [f"keyfile {tls[0]}", f"certfile {tls[1]}"] if tls else []
    lines += ["user root"] if os.geteuid() == 0 else []  # another account could not read the test's files
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "mosquitto.conf"
        config.write_text("\n".join(lines) + "\n")
        with open(Path(folder) / "log", "w+b") as log:
            broker = subprocess.Popen([program("mosquitto"), "-c", str(config)], stdout=log, stderr=log)
            try:
                _wait_until_it_listens(broker, port, Path(log.name))
                yield port
            finally:
                broker.kill()
                broker.wait(10)


def _wait_until_it_listens(broker: subprocess.Popen[bytes], port: int, log: Path) -> None:
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        with suppress(subprocess.TimeoutExpired):
            broker.wait(0.02)
            break
    raise AssertionError(f"the broker did not start:\n{log.read_text()}")


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
