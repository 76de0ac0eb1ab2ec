"""A whole queue at work: Valkey, a source of people and `watchword serve`, each a process that is started again when it
dies."""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import redis

from benchmarks.queue_load.book import Book
from pipeline.child import Backoff, ChildProcess, ChildSpec
from pipeline.embedded_redis import EmbeddedValkey
from pipeline.queue import keys
from pipeline.queue.connect import sync_client

ROOT = Path(__file__).resolve().parents[2]
BACKOFF = Backoff(first=0.1, longest=1.0, healthy_s=2.0)


class QueueStation:
    """``parts`` names what can be killed.

    Args:
        engine_url: of an OpenAI-compatible server.
        source: options of :mod:`benchmarks.queue_load.source`, names without dashes.
        sections: of serve's configuration, over those that are needed.
        appendfsync: of Valkey's append-only file.
    """

    def __init__(
        self,
        folder: Path,
        engine_url: str,
        *,
        source: Mapping[str, float] | None = None,
        sections: Mapping[str, Mapping[str, Any]] | None = None,
        appendfsync: str = "always",
    ) -> None:
        self.folder = folder
        self.journal = folder / "journal"
        self.database = folder / "data" / "watchword.db"
        self.valkey = EmbeddedValkey(folder / "valkey", appendfsync=appendfsync)
        self._engine_url = engine_url
        self._source = source
        self._sections = sections or {}
        self._children: dict[str, ChildProcess] = {}
        self.client: redis.Redis | None = None
        self.serve_url = ""

    def __enter__(self) -> QueueStation:
        url = self.valkey.start()
        self.client = sync_client(url)
        environ = {**os.environ, "WATCHWORD_REDIS__URL": url, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        config = self.folder / "watchword.json"
        config.write_text(json.dumps(self._config()))
        commands = {"serve": ("pipeline.cli", "serve", "--config", str(config))}
        if self._source is not None:
            options = (f"--{name}={value}" for name, value in self._source.items())
            commands["source"] = ("benchmarks.queue_load.source", f"--journal={self.journal}", *options)
        for name, (module, *arguments) in commands.items():
            argv = (sys.executable, "-m", module, *arguments)
            spec = ChildSpec(name, argv, environ, cwd=self.folder, output=self.folder / f"{name}.log")
            self._children[name] = child = ChildProcess(spec, backoff=BACKOFF)
            child.start()
        return self

    def __exit__(self, *_: object) -> None:
        for child in self._children.values():
            child.kill()
        for child in self._children.values():
            child.join(10)
        if self.client is not None:
            self.client.close()
        self.valkey.stop()

    @property
    def parts(self) -> tuple[str, ...]:
        return (*self._children, "valkey")

    def pid(self, part: str) -> int | None:
        """Of a part that runs, None between two lives."""
        return self.valkey.pid if part == "valkey" else self._children[part].pid

    def end(self, part: str, seconds: float = 25.0) -> tuple[int | None, float]:
        """SIGTERM, for good; the exit code (None: it did not end in time) and how long it took."""
        child, began = self._children[part], time.monotonic()
        child.terminate()
        ended = child.join(seconds)
        return child.last_exit if ended else None, time.monotonic() - began

    def left(self) -> int:
        """Entries in all crop streams and in the stream of tracks, held ones included. Raises ``redis.RedisError``."""
        assert self.client is not None
        cameras = [name.decode() for name in self.client.smembers(keys.CAMERAS)]
        return sum(int(self.client.xlen(name)) for name in [keys.TRACKS, *map(keys.crops, cameras)])

    def drain(self, seconds: float) -> bool:
        """Waits until nothing is left."""
        return wait_until(lambda: self.left() == 0, seconds)

    def book(self) -> Book:
        """The accounts, once all is over."""
        assert self.client is not None
        return Book.close(self.client, self.database, self.journal)

    def tail(self, part: str = "serve") -> str:
        """The end of what a part said."""
        path = self.folder / f"{part}.log"
        return path.read_text(errors="replace")[-3000:] if path.exists() else ""

    def _config(self) -> dict[str, Any]:
        port = free_port()
        self.serve_url = f"http://127.0.0.1:{port}"
        tree: dict[str, Any] = {
            "engine": {"backend": "openai", "base_url": self._engine_url, "model": "paced"},
            "describer": {"concurrency": 4, "timeout_s": 60},
            "redis": {"picture_ttl_s": 3600, "claim_idle_s": 5},
            "store": {"data_dir": str(self.folder / "data")},
            "server": {"port": port},
        }
        return {name: {**tree.get(name, {}), **self._sections.get(name, {})} for name in {*tree, *self._sections}}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_until(condition: Callable[[], object], seconds: float) -> bool:
    """Whether it came about in time. While Redis is away it has not."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            if condition():
                return True
        except redis.RedisError:
            pass
        time.sleep(0.05)
    return False
