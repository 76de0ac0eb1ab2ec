"""``watchword demo``: everything in one command, and line by line what it sees."""

from __future__ import annotations

import json
import os
import shutil
import socket
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from pipeline.child import ChildSpec
from pipeline.cli.console import progress, stdout_console
from pipeline.cli.demo_models import DemoModel, choose_model, choose_weights
from pipeline.cli.errors import UsageProblem
from pipeline.cli.parts import part
from pipeline.cli.signals import on_stop_signals
from pipeline.cli.up import VALKEY_STOP_S
from pipeline.config import RedisConfig
from pipeline.embedded_redis import EmbeddedValkey
from pipeline.supervisor import PartChange, Supervisor

HOST = "127.0.0.1"
CAMERA = "demo"
PORTS_TRIED = 50


@dataclass(frozen=True, slots=True)
class DemoPlan:
    """Everything that is decided before anything is started."""

    port: int
    rtsp_port: int
    folder: Path
    weights: DemoModel
    model: DemoModel
    video: Path | None = None

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.port}"

    @property
    def camera_url(self) -> str:
        return f"rtsp://{HOST}:{self.rtsp_port}/demo"

    @property
    def config_path(self) -> Path:
        return self.folder / "demo.yaml"

    def config(self) -> dict[str, Any]:
        """The configuration as it goes into the file. It holds no secret: Redis' URL comes by the environment."""
        return {
            "cameras": [{"id": CAMERA, "name": "Demo camera", "url": self.camera_url}],
            "detector": {"weights": self.weights.value, "threads": 1},
            "engine": {
                "model": self.model.value,
                "kv_cache_memory": 1 << 28,
                "max_num_seqs": 8,
                "num_threads": engine_threads(usable_cores()),
            },
            "describer": {
                "output": "text",
                "max_tokens": 40,
                "concurrency": 1,
                "timeout_s": 110,
                **self.model.describer,
            },
            "store": {"data_dir": str(self.folder)},
            "server": {"host": HOST, "port": self.port},
        }

    def write_config(self) -> None:
        """JSON is YAML."""
        self.config_path.write_text(json.dumps(self.config(), indent=2))

    def parts(self, redis_url: str, environ: Mapping[str, str]) -> list[ChildSpec]:
        """In the order in which they end. Secrets and offline switches come to them by their environment."""
        inner = {**environ, **self.model.environ, "WATCHWORD_REDIS__URL": redis_url}
        video = ("--video", str(self.video.resolve())) if self.video else ()
        config = ("--config", str(self.config_path))
        return [
            part("ingest", *config, environ=inner),
            part("serve", *config, environ=inner),
            part("demo-camera", "--host", HOST, "--port", str(self.rtsp_port), *video, environ=environ),
        ]


def run_demo(*, port: int, video: Path | None, model: str | None, weights: str | None, data_dir: Path | None) -> int:
    """Until a signal comes; 0 when all ended well. Raises UsageProblem, EmbeddedValkeyError, ClipError."""
    with ExitStack() as opened:
        with progress("demo") as report:
            chosen_weights = choose_weights(weights)
            chosen_model = choose_model(model, report)
        folder = opened.enter_context(_data_folder(data_dir))
        plan = DemoPlan(free_port(port), free_port(0), folder, chosen_weights, chosen_model, video)
        plan.write_config()
        valkey = EmbeddedValkey(folder / "valkey")
        redis_url = valkey.start()
        opened.callback(valkey.stop, VALKEY_STOP_S)
        return _run(plan, redis_url)


def _run(plan: DemoPlan, redis_url: str) -> int:
    from pipeline.cli.narrator import Narrator

    console, lock = stdout_console(), threading.Lock()

    def say(line: str) -> None:
        with lock:
            console.print(f"{datetime.now():%H:%M:%S} {line}")

    def on_change(name: str, change: PartChange) -> None:
        if change is PartChange.RESTARTED:
            say(f"{name}: started again")

    console.print("\n".join(introduction(plan)))
    supervisor = Supervisor(plan.parts(redis_url, part_environ(os.environ)), on_change=on_change)
    narrator = Narrator(redis_url, RedisConfig(), plan.url, say)
    with on_stop_signals(supervisor.stop):
        narrator.start()
        try:
            return supervisor.run()
        finally:
            narrator.stop()


def introduction(plan: DemoPlan) -> list[str]:
    """What is where, and what the weights are worth."""
    return [
        f"page:            {plan.url}/",
        f"OpenAI base URL: {plan.url}/v1",
        f"camera:          {plan.camera_url}" + (f" (plays {plan.video})" if plan.video else ""),
        f"detector:        {Path(plan.weights.value).name}: {plan.weights.worth}",
        f"model:           {Path(plan.model.value).name}: {plan.model.worth}",
        "Loading; Ctrl-C ends it.",
    ]


def part_environ(environ: Mapping[str, str]) -> dict[str, str]:
    """The parts say only what is wrong, unless more was asked for; what happens is told here. Overrides of the
    configuration are left out: they are meant for another one."""
    kept = {name: value for name, value in environ.items() if not (name.startswith("WATCHWORD_") and "__" in name)}
    if kept.get("WATCHWORD_LOG_LEVEL", "info") == "info":
        kept["WATCHWORD_LOG_LEVEL"] = "warning"
    return kept


def usable_cores() -> int:
    """Cores that this process may use, which in a container can be fewer than the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def engine_threads(cores: int) -> int:
    """One core is left for camera and detector: torch's threads wait for the slowest of them at every operation."""
    return max(1, min(cores - 1, 8))


def free_port(first: int) -> int:
    """``first`` or the next one that is free; 0: any. Raises UsageProblem when too many are taken."""
    for port in range(first, first + PORTS_TRIED) if first else (0,):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((HOST, port))
            except (OSError, OverflowError):
                continue
            found: int = probe.getsockname()[1]
            return found
    raise UsageProblem(f"no port from {first} to {first + PORTS_TRIED - 1} is free; name another with --port")


@contextmanager
def _data_folder(wanted: Path | None) -> Iterator[Path]:
    if wanted is not None:
        try:
            wanted.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageProblem(f"{wanted} can't be made: {error.strerror}") from None
        yield wanted.resolve()
        return
    folder = Path(tempfile.mkdtemp(prefix="watchword-demo-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
