"""The picture of a stall measurement: every gap over time, both phases on one axis, milliseconds on a log scale."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pipeline.bench.phase import PhaseRecord
from pipeline.bench.statistics import percentile

COLOURS = ("#2a78b5", "#d1495b")
INK = "#333333"


def draw(records: Sequence[PhaseRecord], title: str, out: Path) -> None:
    """Writes the picture; the file's ending decides the format.

    A dot is a gap, at the time it began (one under a millisecond is drawn at one). Lines show each phase's p99 and
    largest gap; ticks below show when a prompt of the load was sent (down) and had its first token (up).
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot
    from matplotlib.ticker import LogLocator, NullFormatter

    figure, panel = pyplot.subplots(figsize=(11, 4.5), layout="constrained")
    start = 0.0
    for record, colour in zip(records, COLOURS, strict=True):
        _phase(panel, record, start, colour)
        start += record.seconds
    if any(record.gaps for record in records):
        panel.set_yscale("log")
        panel.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        panel.yaxis.set_minor_formatter(NullFormatter())
    else:
        panel.text(0.5, 0.5, "no chat had a second token", ha="center", color=INK, transform=panel.transAxes)
    panel.set_xlim(0, start)
    _load_ticks(panel, records)
    panel.set_xlabel("seconds")
    panel.set_ylabel("milliseconds between two tokens of a chat")
    panel.yaxis.set_major_formatter("{x:g}")
    panel.set_title(title, loc="left", fontsize=10)
    panel.grid(axis="y", color="#e5e5e5", linewidth=0.6)
    panel.set_axisbelow(True)
    panel.spines[["top", "right"]].set_visible(False)
    figure.savefig(out, dpi=120)
    pyplot.close(figure)


def _phase(panel: Any, record: PhaseRecord, start: float, colour: str) -> None:
    panel.plot(
        [start + at for at, _ in record.gaps],
        [max(1000 * gap, 1.0) for _, gap in record.gaps],
        ".",
        markersize=4,
        color=colour,
        alpha=0.6,
        markeredgewidth=0,
    )
    end = start + record.seconds
    if start > 0:
        panel.axvline(start, color=INK, linewidth=0.8)
    for name, share, below in (("p99", 0.99, True), ("max", 1.0, False)):
        value = percentile((gap for _, gap in record.gaps), share)
        if value is not None:
            panel.hlines(1000 * value, start, end, color=colour, linewidth=1.0, linestyle="-" if name == "p99" else ":")
            panel.annotate(
                f"{name} {1000 * value:.0f} ms", (end, 1000 * value), xytext=(-3, -2 if below else 2), fontsize=8,
                textcoords="offset points", ha="right", va="top" if below else "bottom", color=INK,
            )  # fmt: skip
    panel.annotate(
        record.name, (start, 1.0), xycoords=("data", "axes fraction"), xytext=(4, -4), textcoords="offset points",
        va="top", fontsize=9, color=colour, fontweight="bold",
    )  # fmt: skip


def _load_ticks(panel: Any, records: Sequence[PhaseRecord]) -> None:
    start = 0.0
    for record in records:
        sent = [start + ask.sent for ask in record.asks]
        first = [start + ask.sent + ask.first_token for ask in record.asks if ask.first_token is not None]
        shown = [at for at in first if at <= start + record.seconds]
        axis = panel.get_xaxis_transform()
        if sent:
            panel.plot(sent, [0.015] * len(sent), "v", color=INK, markersize=5, transform=axis, label="prompt sent")
        if shown:
            panel.plot(shown, [0.015] * len(shown), "^", color="#2a9d8f", markersize=5, transform=axis,
                       label="its first token")  # fmt: skip
        start += record.seconds
    if any(record.asks for record in records):
        panel.legend(loc="lower right", fontsize=8, frameon=False, ncols=2, bbox_to_anchor=(1.0, 1.0))
