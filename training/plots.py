"""Curves of a training, from the lines that it leaves."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any


def numbers(row: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, float]]:
    """Every number of a nested row, by its path."""
    for name, value in row.items():
        if isinstance(value, Mapping):
            yield from numbers(value, f"{before}{name}.")
        elif isinstance(value, int | float):
            yield f"{before}{name}", float(value)


def draw_curves(log: Path, out: Path, axis: str, groups: Mapping[str, str]) -> None:
    """Draws a picture.

    Args:
        log: a JSON object a line.
        axis: name of the number that goes to the right.
        groups: title -> how the names of its numbers end (``.balanced``), a panel each.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    rows = [dict(numbers(json.loads(line))) for line in log.read_text().splitlines() if line.strip()]
    figure, panels = pyplot.subplots(1, len(groups), figsize=(6 * len(groups), 4), squeeze=False)
    for panel, (title, ending) in zip(panels[0], groups.items(), strict=True):
        for name in sorted({name for row in rows for name in row if name.endswith(ending)}):
            points = [(row[axis], row[name]) for row in rows if name in row]
            panel.plot(*zip(*points, strict=True), marker=".", label=name.removesuffix(ending) or name)
        panel.set_title(title)
        panel.set_xlabel(axis)
        panel.grid(alpha=0.3)
        panel.legend(fontsize=7)
    figure.tight_layout()
    figure.savefig(out, dpi=80)
    pyplot.close(figure)
