"""A whole installation for a test: a demo camera, and `watchword up` with its Valkey, ingest and serve processes."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx
import yaml

from ingest.demo_camera import DemoCamera, PhotoClip


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Station:
    """Starts with ``with``; ``processes`` names the parts that run now."""

    def __init__(self, folder: Path, model: Path, weights: Path) -> None:
        self.folder = folder
        self.url = f"http://127.0.0.1:{free_port()}"
        self.log = folder / "up.log"
        self._model = model
        self._weights = weights
        self._camera = DemoCamera(PhotoClip())
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Station:
        self._camera.start()
        config = self.folder / "watchword.yaml"
        config.write_text(yaml.safe_dump(self._config()))
        command = [sys.executable, "-m", "pipeline.cli", "up", "--config", str(config)]
        environment = os.environ | {"WATCHWORD_CACHE": str(self.folder / "cache")}
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=environment)
        return self

    def __exit__(self, *error: object) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        self._camera.stop()

    def stop(self) -> tuple[int, float]:
        """SIGINT, as Ctrl-C does it. Gives the exit code and how long the end took."""
        if self._process is None:
            raise RuntimeError("not started")
        started = time.monotonic()
        self._process.send_signal(signal.SIGINT)
        return self._process.wait(timeout=25), time.monotonic() - started

    def processes(self) -> dict[str, int]:
        """Part -> pid, by what their command lines say."""
        found: dict[str, int] = {}
        for pid in descendants(self._process.pid if self._process else 0):
            words = _command_line(pid)
            for part in ("ingest", "serve", "valkey-server"):
                # Valkey makes one word of its command line: path and address.
                if part in words or any(word.partition(" ")[0].endswith(f"/{part}") for word in words):
                    found.setdefault(part, pid)
        return found

    def get(self, path: str) -> dict:
        """JSON of the operator API; raises httpx.HTTPError while serve is away."""
        response = httpx.get(self.url + path, timeout=10)
        response.raise_for_status()
        return response.json()

    def tail(self) -> str:
        """The end of what the processes said, for a failure's message."""
        return self.log.read_text(errors="replace")[-8000:]

    def _config(self) -> dict:
        return {
            "cameras": [{"id": "door", "name": "Front door", "url": self._camera.url, "fps": 5}],
            "detector": {"weights": str(self._weights), "imgsz": 320, "confidence": 0.4},
            "crops": {"early_after_s": 0.5},
            "engine": {"model": str(self._model), "dtype": "float32", "device": "cpu", "num_threads": 1},
            "describer": {"output": "text", "max_tokens": 12},
            "store": {"data_dir": str(self.folder / "data")},
            "server": {"port": int(self.url.rpartition(":")[2])},
        }


def descendants(pid: int) -> list[int]:
    """All processes below one."""
    try:
        tasks = list(Path(f"/proc/{pid}/task").iterdir())
        children = [int(c) for task in tasks for c in (task / "children").read_text().split()]
    except OSError:
        return []
    return children + [d for child in children for d in descendants(child)]


def _command_line(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return []
