"""Servers that measurements start and stop themselves: ours, and vLLM on a CPU as the peer."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

START_LIMIT_S = 600.0
STOP_LIMIT_S = 30.0
MODEL_NAME = "m"


class ServerError(RuntimeError):
    """A server did not start; the text ends with its last lines."""


@dataclass(frozen=True)
class ServerSpec:
    """How to start one.

    Attributes:
        name: for tables.
        argv: the command; ``{port}`` in an argument becomes the port.
        environ: added to ours.
        ready_path: answers 200 once the model is loaded.
        settings: what is worth keeping with the result.
    """

    name: str
    argv: tuple[str, ...]
    environ: Mapping[str, str] = field(default_factory=dict)
    ready_path: str = "/health"
    settings: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class RunningServer:
    """``base_url`` for clients, and how long it took until it was ready."""

    spec: ServerSpec
    base_url: str
    start_s: float


def watchword_server(model: str, engine: Mapping[str, Any], folder: Path) -> ServerSpec:
    """``watchword serve`` without cameras.

    Args:
        model: a local folder or a hub id.
        engine: the configuration's section ``engine``, beside the model.
        folder: where the configuration file is written.
    """
    section = {"model": model, "served_model_name": MODEL_NAME, **engine}
    path = folder / "watchword.yaml"
    path.write_text(json.dumps({"engine": section}, indent=1))  # JSON is YAML
    argv = (sys.executable, "-P", "-m", "pipeline.cli", "serve", "--no-cameras", "--config", str(path))
    return ServerSpec("watchword", (*argv, "--port", "{port}"), {}, "/health/ready", dict(engine))


def vllm_cpu_server(python: str, model: str, context: int) -> ServerSpec:
    """vLLM-CPU with its defaults, bound to all cores; requests may say whether pictures are split, as they may here.

    Args:
        python: of the environment that vLLM is installed in.
        model: a local folder.
        context: ``--max-model-len``.
    """
    cores = os.cpu_count() or 1
    environ = {"VLLM_CPU_KVCACHE_SPACE": "2", "VLLM_CPU_OMP_THREADS_BIND": f"0-{cores - 1}", "HF_HUB_OFFLINE": "1"}
    argv = (python, "-m", "vllm.entrypoints.openai.api_server", "--model", model, "--served-model-name", MODEL_NAME)
    rest = ("--host", "127.0.0.1", "--port", "{port}", "--dtype", "bfloat16", "--max-model-len", str(context))
    rest += ("--trust-request-mm-kwargs",)
    settings = {"dtype": "bfloat16", "max_model_len": context}
    return ServerSpec("vLLM-CPU", (*argv, *rest), environ, "/health", settings)


@contextmanager
def running(spec: ServerSpec, log: Path) -> Iterator[RunningServer]:
    """The server, ready; it and all its processes are gone afterwards.

    Args:
        spec: how to start it.
        log: takes what it says.

    Raises:
        ServerError: it ended, or was not ready within :data:`START_LIMIT_S`.
    """
    port = _free_port()
    argv = [argument.replace("{port}", str(port)) for argument in spec.argv]
    # Our own key would be asked for by a server of ours that inherits it.
    environ = {name: value for name, value in os.environ.items() if not name.startswith("WATCHWORD_")}
    # A virtual environment of its own must not see our import path.
    if argv[0] != sys.executable:
        environ.pop("PYTHONPATH", None)
    began = time.monotonic()
    with log.open("wb") as output:
        process = subprocess.Popen(
            argv, env=environ | dict(spec.environ), stdout=output, stderr=output, start_new_session=True
        )
    try:
        _wait_ready(process, f"http://127.0.0.1:{port}{spec.ready_path}", spec.name, log)
        yield RunningServer(spec, f"http://127.0.0.1:{port}/v1", round(time.monotonic() - began, 1))
    finally:
        _end(process)


def _wait_ready(process: subprocess.Popen[bytes], url: str, name: str, log: Path) -> None:
    deadline = time.monotonic() + START_LIMIT_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise ServerError(f"{name} ended with exit code {process.returncode}:\n{_tail(log)}")
        try:
            if httpx.get(url, timeout=5).status_code == 200:
                return
        except httpx.HTTPError:
            pass  # not listening yet
        time.sleep(0.2)
    raise ServerError(f"{name} was not ready within {START_LIMIT_S:g} s:\n{_tail(log)}")


def _end(process: subprocess.Popen[bytes]) -> None:
    """Asks it to end, then kills what is left of the process group that was made for it."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(STOP_LIMIT_S)
        except subprocess.TimeoutExpired:
            process.kill()
    with suppress(ProcessLookupError):  # nothing was left behind
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _tail(log: Path, lines: int = 15) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-lines:])


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
