"""``watchword trace``: a picture of the engine's last steps, tokens by kind and milliseconds over time."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx

from pipeline.cli.errors import fail

_COLOURS = {"decode": "#2a9d8f", "prefill": "#e9c46a", "encoder": "#e76f51", "predicted": "#264653"}


def run_trace(url: str, api_key: str | None, out: Path) -> int:
    """Fetches the steps of a running server and writes them as JSON or as a picture, by the file's ending."""
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    try:
        answer = httpx.get(f"{url.rstrip('/')}/api/engine/steps", headers=headers, timeout=30)
        answer.raise_for_status()
    except httpx.HTTPStatusError as error:
        fail(f"{url} answered {error.response.status_code}: {reason_in(error.response)}")
    except httpx.HTTPError as error:
        fail(f"{url} can't be reached: {type(error).__name__}")
    steps = answer.json()["steps"]
    if not steps:
        fail("the engine has taken no step yet")
    if out.suffix == ".json":
        out.write_text(json.dumps(steps, indent=1))
    else:
        draw(steps, out)
    print(f"{out}: {len(steps)} steps over {_span(steps):.1f} s")
    return 0


def draw(steps: list[dict[str, Any]], out: Path) -> None:
    """Two panels over time: new tokens of each step by kind, and its milliseconds with what was predicted.

    Args:
        steps: as ``GET /api/engine/steps`` gives them, oldest first.
        out: picture file; the ending decides the format (svg, png, pdf).
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    began = steps[0]["started"]
    at = [step["started"] - began for step in steps]
    widths = [max(step["seconds"], 1e-4) for step in steps]
    figure, (tokens, times) = pyplot.subplots(2, 1, figsize=(12, 6), sharex=True, layout="constrained")
    _stack(
        tokens, at, widths, [("decode", _column(steps, "decode_tokens")), ("prefill", _column(steps, "prefill_tokens"))]
    )
    tokens.set_ylabel("new tokens a step")
    encoder = [1000 * value for value in _column(steps, "encoder_seconds")]
    rest = [1000 * step["seconds"] - ms for step, ms in zip(steps, encoder, strict=True)]
    # The forward takes the colour of what it was for: a step with prefill in it, or decodes alone.
    prefill = [ms if step["prefill_tokens"] else 0.0 for step, ms in zip(steps, rest, strict=True)]
    decode = [ms - part for ms, part in zip(rest, prefill, strict=True)]
    _stack(times, at, widths, [("decode", decode), ("prefill", prefill), ("encoder", encoder)])
    predicted = [1000 * value for value in _column(steps, "predicted_seconds")]
    middles = [start + width / 2 for start, width in zip(at, widths, strict=True)]
    times.plot(middles, predicted, ".", markersize=3, color=_COLOURS["predicted"], label="predicted (forward)")
    times.set_ylabel("milliseconds a step")
    times.set_xlabel("seconds")
    for panel in (tokens, times):
        panel.legend(loc="upper right", frameon=False)
        panel.spines[["top", "right"]].set_visible(False)
    figure.savefig(out, dpi=120)
    pyplot.close(figure)


def _stack(panel: Any, at: list[float], widths: list[float], parts: list[tuple[str, list[float]]]) -> None:
    bottom = [0.0] * len(at)
    for kind, values in parts:
        panel.bar(at, values, widths, bottom=bottom, align="edge", color=_COLOURS[kind], label=kind, linewidth=0)
        bottom = [low + value for low, value in zip(bottom, values, strict=True)]


def _column(steps: list[dict[str, Any]], name: str) -> list[float]:
    return [float(step[name]) for step in steps]


def _span(steps: list[dict[str, Any]]) -> float:
    return float(steps[-1]["started"] + steps[-1]["seconds"] - steps[0]["started"])


def reason_in(response: httpx.Response) -> str:
    """Why a server of ours refused."""
    try:
        return str(response.json()["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return "no reason given"
