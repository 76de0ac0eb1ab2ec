"""``watchword describe``: pictures into words, once."""

from __future__ import annotations

import asyncio
import signal
import sys
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.cli.console import progress
from pipeline.cli.engine_config import (
    engine_config,
    engine_model,
    quiet_transformers,
    ready_model,
    refuse_missing_folder,
)
from pipeline.cli.errors import UsageProblem
from pipeline.config import WatchwordConfig
from pipeline.config.load import load_config
from pipeline.config.prompt_template import fill

if TYPE_CHECKING:
    from vlm_engine import Message, VLMEngine


def run_describe(
    images: list[Path], *, model: str | None, prompt: str | None, max_tokens: int, config_path: Path | None
) -> int:
    """0: every picture described; 1: some could not be. Raises UsageProblem, ModelLoadError, ConfigError."""
    pictures = [(path, _read(path)) for path in images]
    config = load_config(config_path)
    refuse_missing_folder(model or config.engine.model)
    quiet_transformers()
    with progress("starting") as report:
        model = ready_model(model or engine_model(config.engine), report)
        report("loading torch")
        from vlm_engine import VLMEngine

        engine = VLMEngine(engine_config(config.engine, model), on_progress=report)
        engine.start()
    try:
        if not engine.takes_images:
            raise UsageProblem(f"{engine.model_name} is a text model; it takes no pictures")
        return asyncio.run(_describe_all(engine, pictures, prompt or _own_question(config), max_tokens))
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # a second Ctrl-C must not leave the engine's processes behind
        engine.shutdown()


async def _describe_all(engine: VLMEngine, pictures: list[tuple[Path, bytes]], prompt: str, max_tokens: int) -> int:
    from dataclasses import replace

    from vlm_engine import InvalidRequestError

    params = replace(engine.default_params, max_tokens=max_tokens, temperature=0.0)
    failures = 0
    for index, (path, data) in enumerate(pictures):
        if len(pictures) > 1:
            print(f"{'' if index == 0 else chr(10)}{path}:")
        try:
            async for piece in engine.generate([_question(data, prompt)], params):
                print(piece.text, end="", flush=True)
            print()
        except InvalidRequestError as error:
            failures += 1
            print(f"watchword: {path}: {error}", file=sys.stderr)
    return 1 if failures else 0


def _question(image: bytes, prompt: str) -> Message:
    return {"role": "user", "content": [{"type": "image", "image": image}, {"type": "text", "text": prompt}]}


def _own_question(config: WatchwordConfig) -> str:
    """The configured question; of a picture from a file neither camera nor zones are known."""
    now = f"{datetime.now().astimezone():%Y-%m-%d %H:%M}"
    values = {"camera": "a file", "camera_id": "file", "label": "person", "zones": "none", "time": now}
    return fill(config.describer.prompt, values)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UsageProblem(f"{path}: {error.strerror}") from None
