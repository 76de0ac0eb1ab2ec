"""``watchword serve``: the serving side as a process."""

from __future__ import annotations

import asyncio
import logging
import multiprocessing
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from pipeline.cli.engine_config import refuse_missing_folder
from pipeline.cli.errors import UsageProblem
from pipeline.cli.signals import leave_at_once, on_stop_signals
from pipeline.config import WatchwordConfig
from pipeline.config.file_watch import ConfigFile
from pipeline.config.load import load_config

if TYPE_CHECKING:
    from pipeline.cli.serve_runtime import ServeRuntime

logger = logging.getLogger("watchword.serve")

SWITCH_INTERVAL_S = 0.0001
"""Every system call and every torch operation gives the interpreter's lock away, and a thread that computes keeps it
for this long. With Python's own 5 ms, an event loop that reads from twenty connections while bodies are decoded needs
100 ms for one turn, and the engine waits as long between its operations."""


def run_serve(path: Path | None, *, model: str | None, host: str | None, port: int | None, cameras: bool) -> int:
    """0: ended when asked; 1: the engine broke. Raises what has a readable reason: ConfigProblem, UsageProblem,
    ModelLoadError, ConfigError."""
    loaded = load_config(path)
    config = with_options(loaded, model=model, host=host, port=port)
    if (text := config.server.open_to_network()) is not None:
        raise UsageProblem(text)
    if cameras and not config.redis.is_named:
        raise UsageProblem(
            "serve needs redis.url (or WATCHWORD_REDIS__URL), the same as ingest. --no-cameras serves the model alone; "
            "`watchword up` brings a Valkey of its own"
        )
    if config.engine.backend == "inprocess":
        refuse_missing_folder(config.engine.model)
    from pipeline.cli.serve_runtime import EngineDied, ServeRuntime

    sys.setswitchinterval(SWITCH_INTERVAL_S)
    runtime = ServeRuntime(
        config,
        cameras=cameras,
        on_progress=lambda text: logger.info("model: %s", text),
        file=ConfigFile(path, loaded) if path is not None else None,
    )
    try:
        asyncio.run(_serve(runtime))
    except EngineDied:
        return 1
    except OSError as error:
        where = f"{config.server.host}:{config.server.port}"
        raise UsageProblem(f"can't listen on {where}, or write the data folder: {error.strerror or error}") from None
    if runtime.loading or runtime.stuck:
        _leave_at_once()
    return 0


def _leave_at_once() -> NoReturn:
    """Nothing interrupts a load or a step, and Python would wait for their threads at its end."""
    for child in multiprocessing.active_children():
        child.kill()
    logging.shutdown()
    os._exit(0)


def with_options(
    config: WatchwordConfig, *, model: str | None = None, host: str | None = None, port: int | None = None
) -> WatchwordConfig:
    """Command-line options over the configuration. They are valid by themselves: typer checked them."""
    engine = config.engine.model_copy(update={} if model is None else {"model": model})
    given = {"host": host, "port": port}
    server = config.server.model_copy(update={name: value for name, value in given.items() if value is not None})
    return config.model_copy(update={"engine": engine, "server": server})


async def _serve(runtime: ServeRuntime) -> None:
    loop = asyncio.get_running_loop()
    with on_stop_signals(
        lambda: _soon(loop, runtime.request_stop), lambda: _soon(loop, runtime.reload), again=leave_at_once
    ):
        try:
            await runtime.start()
            logger.info("listening on %s (OpenAI base URL %s/v1)", runtime.url, runtime.url)
            waiting = asyncio.create_task(_say_when_ready(runtime))
            try:
                await runtime.wait()
            finally:
                waiting.cancel()
            logger.info("stopping")
        finally:
            await runtime.stop()


def _soon(loop: asyncio.AbstractEventLoop, work: Callable[[], None]) -> None:
    """From a signal handler."""
    loop.call_soon_threadsafe(work)


async def _say_when_ready(runtime: ServeRuntime) -> None:
    await runtime.ready()
    engine = runtime.engine
    if engine is not None:
        logger.info("model %s is ready (%d tokens of context)", engine.model_name, engine.max_model_len)
