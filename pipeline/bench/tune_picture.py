"""The picture of a tuning run: a column a knob; gaps, time to the first token, and what the gaps cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

INK, BLUE, RED, GREEN, SAND = "#333333", "#2a78b5", "#d1495b", "#2a9d8f", "#b98a00"
ROWS = 4

Point = Mapping[str, Any]


def draw(document: Mapping[str, Any], out: Path) -> None:
    """Writes the picture of a document of :func:`pipeline.bench.tune.tune`; the file's ending decides the format."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    budgets = [p for p in document["points"] if p["sweep"] == "max_num_batched_tokens"]
    targets = [p for p in document["points"] if p["sweep"] == "target_itl_ms"]
    figure, panels = pyplot.subplots(ROWS, 2, figsize=(11, 12), sharex="col", layout="constrained", squeeze=False)
    _column(panels[:, 0], budgets, document, "max_num_batched_tokens", "max_num_batched_tokens (target_itl_ms: null)")
    _column(panels[:, 1], targets, document, "target_itl_ms", "target_itl_ms")
    _prefix(panels[3, 0], budgets)
    _pictures(panels[3, 1], targets)
    for row in range(3):
        _share_scale(panels[row])
    figure.suptitle(f"{document['model']}: {document['plan']['streams']} chats beside one prompt after another")
    figure.savefig(out, dpi=110)
    pyplot.close(figure)


def _column(panels: Sequence[Any], points: Sequence[Point], document: Mapping[str, Any], knob: str, label: str) -> None:
    from matplotlib.ticker import LogLocator, NullFormatter, NullLocator

    gaps, first, rate, last = panels
    at = [point[knob] for point in points]
    alone = document["chats_alone"]["gap_ms"]["p99"]
    for name, colour in (("p50", BLUE), ("p99", RED)):
        _line(gaps, at, [point["beside_texts"]["gap_ms"][name] for point in points], colour, f"{name}, beside texts")
    pictures = [point.get("beside_pictures") for point in points]
    if any(pictures):
        _line(gaps, at, [phase and phase["gap_ms"]["p99"] for phase in pictures], SAND, "p99, beside pictures")
    gaps.axhline(alone, color=INK, linewidth=0.8, linestyle=":", label="p99, chats alone")
    gaps.axhline(document["recommendation"]["limit_ms"], color=INK, linewidth=0.8, linestyle="--", label="limit")
    gaps.set_yscale("log")
    gaps.set_ylabel("ms between two tokens")
    _line(first, at, [point["beside_texts"]["ttft_s"] for point in points], BLUE, "of a text, beside chats")
    if any("prefill_alone" in point for point in points):
        _line(first, at, [point["prefill_alone"]["ttft_s"] for point in points], GREEN, "of a text, alone")
    if any(pictures):
        _line(first, at, [phase and phase["ttft_s"] for phase in pictures], SAND, "of a picture, beside chats")
    first.set_yscale("log")
    first.set_ylabel("seconds to the first token")
    _line(rate, at, [point["beside_texts"]["prompt_tokens_per_s"] for point in points], BLUE, "prompt tokens")
    _line(rate, at, [point["beside_texts"]["chat_tokens_per_s"] for point in points], RED, "chat tokens")
    rate.set_ylabel("tokens a second")
    rate.set_yscale("log")
    chosen = document["recommendation"]
    for panel in panels:
        panel.set_xscale("log", base=2)
        panel.set_xticks(at, [f"{value:g}" for value in at])
        panel.xaxis.set_minor_locator(NullLocator())
        panel.spines[["top", "right"]].set_visible(False)
        panel.grid(axis="y", color="#e8e8e8", linewidth=0.6)
        if any(_is_chosen(point, chosen) for point in points):
            panel.axvline(chosen[knob], color=GREEN, linewidth=6, alpha=0.15, zorder=0)
    for panel in panels[:3]:
        panel.legend(fontsize=8, frameon=False)
        panel.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        panel.yaxis.set_minor_formatter(NullFormatter())
        panel.yaxis.set_major_formatter("{x:g}")
    last.set_xlabel(label)


def _prefix(panel: Any, points: Sequence[Point]) -> None:
    """How often a prompt token is read again as a prefix, and what that does to a prompt alone."""
    at = [point["max_num_batched_tokens"] for point in points]
    reads = [point["prefill_alone"]["prefix_reads_per_token"] for point in points]
    _line(panel, at, reads, RED, "prefix tokens read again, per prompt token")
    panel.set_ylabel("reads per token")
    other = panel.twinx()
    other.spines[["top"]].set_visible(False)
    _line(other, at, [point["prefill_alone"]["tokens_per_s"] for point in points], GREEN, "prefill alone, tokens/s")
    other.set_ylabel("tokens a second")
    other.set_ylim(bottom=0)
    handles = [*panel.get_lines(), *other.get_lines()]
    panel.legend(handles=[h for h in handles if not h.get_label().startswith("_")], fontsize=8, frameon=False)


def _pictures(panel: Any, points: Sequence[Point]) -> None:
    at = [point["target_itl_ms"] for point in points]
    phases = [point.get("beside_pictures") for point in points]
    if not any(phases):
        panel.text(0.5, 0.5, "the model takes no pictures", ha="center", color=INK, transform=panel.transAxes)
        return
    _line(panel, at, [phase and phase["pictures_per_s"] for phase in phases], SAND, "pictures a second")
    panel.set_ylabel("pictures a second")
    panel.set_ylim(bottom=0)
    panel.legend(fontsize=8, frameon=False)


def _line(panel: Any, at: Sequence[float], values: Sequence[float | None], colour: str, label: str) -> None:
    shown = [(x, y) for x, y in zip(at, values, strict=True) if y is not None]
    panel.plot([x for x, _ in shown], [y for _, y in shown], "o-", markersize=4, color=colour, label=label)


def _share_scale(pair: Sequence[Any]) -> None:
    """One scale for both columns, so that they can be compared."""
    low = min(panel.get_ylim()[0] for panel in pair)
    high = max(panel.get_ylim()[1] for panel in pair)
    for panel in pair:
        panel.set_ylim(low, high)


def _is_chosen(point: Point, chosen: Mapping[str, Any]) -> bool:
    return all(point[name] == chosen[name] for name in ("max_num_batched_tokens", "target_itl_ms"))
