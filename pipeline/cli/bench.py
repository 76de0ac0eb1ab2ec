"""``watchword bench``: measurements against a running server."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.cli.console import progress, stdout_console
from pipeline.cli.errors import UsageProblem

if TYPE_CHECKING:
    from pipeline.bench.stall import StallResult


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """The load as the command line names it; see :func:`pipeline.bench.stall.load_named`."""

    kind: str
    rate: float
    one_tile: bool
    prompt_tokens: int | None
    every_s: float


def run_stall(
    base_url: str,
    model: str | None,
    api_key: str | None,
    options: LoadOptions,
    settings: dict[str, Any],
    out: Path,
) -> int:
    """0: measured; 1: measured, and prompts of the load failed. Raises UsageProblem where nothing could be."""
    from pipeline.bench.endpoint import EndpointError
    from pipeline.bench.stall import StallSettings, load_named, run

    try:
        load = load_named(
            options.kind,
            rate=options.rate,
            one_tile=options.one_tile,
            prompt_tokens=options.prompt_tokens,
            every_s=options.every_s,
        )
    except ValueError as error:
        raise UsageProblem(f"--{error}") from None
    check_writable(out)
    try:
        with progress("stall") as report:
            result = run(base_url, load, StallSettings(**settings), model=model, api_key=api_key, report=report)
    except EndpointError as error:
        raise UsageProblem(str(error)) from None
    write_result(result, out)
    say = stdout_console().print
    for line in lines(result.document):
        say(line)
    say(f"{out} and {out.with_suffix('.png')}")
    return 1 if any(ask.error is not None for ask in result.records[1].asks) else 0


def write_result(result: StallResult, out: Path) -> None:
    """JSON at ``out``, the picture beside it."""
    from pipeline.bench.stall_picture import draw

    out.write_text(json.dumps(result.document, indent=1) + "\n")
    settings, server = result.document["settings"], result.document["server"]
    title = f"{server['model']}: {settings['streams']} chats, alone and beside {settings['load']['title']}"
    draw(result.records, title, out.with_suffix(".png"))


def lines(document: dict[str, Any]) -> list[str]:
    """A measurement in a few lines."""
    out = []
    for phase in document["phases"]:
        gap = phase["gap_ms"]
        gaps = " / ".join(f"{gap[name]:g}" if gap[name] is not None else "-" for name in ("p50", "p90", "p99", "max"))
        out.append(f"{phase['phase']}: gap p50 / p90 / p99 / max {gaps} ms, {phase['tokens_per_s']:g} chat tokens/s")
        if load := phase.get("load"):
            ttft = load["ttft_s"]["p50"]
            out.append(
                f"  load: {load['completed']} of {load['sent']} finished, {load['unfinished']} unfinished after the "
                f"drain, {load['failed']} failed; first token p50 {'-' if ttft is None else f'{ttft:g} s'}"
            )
            if load["first_error"]:
                out.append(f"  first failure: {load['first_error']}")
    compared = document["compared"]
    out.append(
        f"p99 gap {compared['p99_gap_over_p99_alone']} times and largest gap {compared['max_gap_over_p99_alone']} "
        "times the p99 gap alone"
    )
    if engine := document.get("engine"):
        within = engine["beside the load"]["share_within"]
        shares = ", ".join(f"{name}: {100 * share:.1f} %" for name, share in within.items() if share is not None)
        out.append(
            f"a step that only decodes takes {engine['decode_only_ms']} ms; steps within so much of it: {shares}"
        )
    return out


def check_writable(out: Path) -> None:
    """Says before anything is measured that the result could not be kept. Raises UsageProblem."""
    if not out.parent.is_dir():
        raise UsageProblem(f"{out}: there is no folder {out.parent}")
