"""Numbers out of measurements. Percentiles are nearest-rank: each is a measured value, none is interpolated."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

SHARES: Mapping[str, float] = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "max": 1.0}


def percentile(values: Iterable[float], share: float) -> float | None:
    """The smallest value that at least ``share`` (0 to 1) of all values don't exceed; None of nothing."""
    ordered = sorted(values)
    if not ordered:
        return None
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def spread(values: Iterable[float], *, scale: float = 1.0, digits: int = 3) -> dict[str, float | None]:
    """p50, p90, p99 and max, each times ``scale`` and rounded."""
    ordered = sorted(values)
    found = {name: percentile(ordered, share) for name, share in SHARES.items()}
    return {name: None if value is None else round(scale * value, digits) for name, value in found.items()}


def milliseconds(seconds: Iterable[float]) -> dict[str, float | None]:
    """:func:`spread` of seconds, in milliseconds."""
    return spread(seconds, scale=1000.0, digits=1)


def share_within(values: Sequence[float], limit: float) -> float | None:
    """Which share of the values is at most ``limit``; None of nothing."""
    return round(sum(value <= limit for value in values) / len(values), 4) if values else None


def ratio(value: float | None, base: float | None, digits: int = 2) -> float | None:
    """``value / base``; None where one is missing or the base is 0."""
    return round(value / base, digits) if value is not None and base else None
