"""``watchword serve`` as its own process, and what memory it and its workers take."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import httpx

KNOBS = {"DTYPE": "float32", "DEVICE": "cpu", "KV_CACHE_MEMORY": str(64 * 1024**2), "MAX_MODEL_LEN": "2048"}


class ServeProcess:
    """``with ServeProcess(model, log) as server: server.url``; ready when entered."""

    def __init__(self, model: Path, log: Path, **knobs: object) -> None:
        given = {**KNOBS, **{name.upper(): str(value) for name, value in knobs.items()}}
        environ = {f"WATCHWORD_ENGINE__{name}": value for name, value in given.items()}
        self._log = log
        self._command = [sys.executable, "-m", "pipeline.cli", "serve", "--no-cameras", "--model", str(model)]
        self._environ = {**os.environ, **environ}
        self.url = ""

    def __enter__(self) -> ServeProcess:
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [*self._command, "--port", "0"], stdout=log, stderr=subprocess.STDOUT, env=self._environ
            )
        until = time.monotonic() + 180
        while not self._ready():
            assert self._process.poll() is None and time.monotonic() < until, self._log.read_text()[-4000:]
            time.sleep(0.2)
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def rss(self) -> dict[str, float]:
        """Resident MB of the server, and of its children together. Shared pages count in each."""
        children = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()
        return {"server": _rss(self.pid), "workers": round(sum(_rss(int(pid)) for pid in children), 1)}

    def _ready(self) -> bool:
        if not self.url:
            words = self._log.read_text().partition("listening on ")[2].split()
            if not words:
                return False
            self.url = words[0]
        try:
            return httpx.get(f"{self.url}/health/ready", timeout=5).status_code == 200
        except httpx.TransportError:
            return False


def _rss(pid: int) -> float:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except FileNotFoundError:
        return 0.0
    return round(next((int(line.split()[1]) for line in lines if line.startswith("VmRSS")), 0) / 1024, 1)
