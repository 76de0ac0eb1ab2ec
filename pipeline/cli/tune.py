"""``watchword tune``: what the engine's two budgets cost and give on this machine."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from pipeline.cli.bench import check_writable
from pipeline.cli.console import progress, stdout_console
from pipeline.cli.engine_config import engine_config, quiet_transformers, ready_model, refuse_missing_folder
from pipeline.cli.errors import UsageProblem
from pipeline.config.load import load_config

if TYPE_CHECKING:
    from pipeline.bench.tune import TunePlan

N = TypeVar("N", int, float)
QUICK_SECONDS, QUICK_PROMPT, QUICK_CHAT = 6.0, 1024, 128


@dataclass(frozen=True, slots=True)
class TuneOptions:
    """The command line's; None takes the plan's own."""

    quick: bool
    budgets: str | None
    targets: str | None
    streams: int
    seconds: float | None
    prompt_tokens: int | None
    limit_ms: float | None


def run_tune(config_path: Path | None, model: str | None, options: TuneOptions, out: Path) -> int:
    """0: measured. Raises UsageProblem, ConfigProblem, ConfigError, ModelLoadError."""
    check_writable(out)
    plan = make_plan(options)
    config = load_config(config_path)
    section = config.engine
    if section.backend != "inprocess" and model is None:
        raise UsageProblem(f"engine.backend is {section.backend}: there is no engine of ours to tune; give --model")
    if model is None and "model" not in section.model_fields_set:
        raise UsageProblem("no model is configured: give --model DIR_OR_ID, or --config with engine.model")
    refuse_missing_folder(model or section.model)
    quiet_transformers()
    from pipeline.bench.endpoint import EndpointError
    from pipeline.bench.tune import tune
    from pipeline.bench.tune_picture import draw

    try:
        with progress("tune") as report:
            model = ready_model(model or section.model, report)
            document = asyncio.run(tune(engine_config(section, model), plan, report))
    except EndpointError as error:
        raise UsageProblem(f"the engine refuses what it is to be measured with: {error}") from None
    out.with_suffix(".json").write_text(json.dumps(document, indent=1) + "\n")
    draw(document, out)
    say = stdout_console().print
    say(document["recommendation"]["text"])
    say(f"{out} and {out.with_suffix('.json')}")
    return 0


def make_plan(options: TuneOptions) -> TunePlan:
    """Options over what is usual or quick. Raises UsageProblem for lists that hold none or no numbers."""
    from pipeline.bench.tune import QUICK_BUDGETS, QUICK_MULTIPLES, TunePlan

    usual = TunePlan(streams=options.streams, limit_ms=options.limit_ms)
    budgets = QUICK_BUDGETS if options.quick else usual.budgets
    multiples = QUICK_MULTIPLES if options.quick else usual.multiples
    return TunePlan(
        budgets=_numbers("--budgets", options.budgets, int, 16) if options.budgets else budgets,
        multiples=_numbers("--targets", options.targets, float, 1.0) if options.targets else multiples,
        streams=options.streams,
        chat_tokens=QUICK_CHAT if options.quick else usual.chat_tokens,
        seconds=options.seconds or (QUICK_SECONDS if options.quick else usual.seconds),
        prompt_tokens=options.prompt_tokens or (QUICK_PROMPT if options.quick else usual.prompt_tokens),
        limit_ms=options.limit_ms,
    )


def _numbers(name: str, text: str, kind: Callable[[str], N], least: N) -> list[N]:
    try:
        values = sorted({kind(part) for part in text.split(",") if part.strip()})
    except ValueError:
        raise UsageProblem(f"{name} is {text!r}; it takes numbers with commas between them") from None
    if not values or values[0] < least:
        raise UsageProblem(f"{name} is {text!r}; it takes numbers of at least {least:g}")
    return values
