"""Percentiles, shares, and what they are of nothing."""

from __future__ import annotations

from pipeline.bench.statistics import milliseconds, percentile, ratio, share_within


def test_percentiles_are_values_that_were_measured() -> None:
    values = [float(value) for value in range(1, 101)]
    assert [percentile(values, share) for share in (0.5, 0.9, 0.99, 1.0)] == [50, 90, 99, 100]
    assert percentile([3.0, 1.0], 0.5) == 1.0 and percentile([3.0, 1.0], 0.51) == 3.0
    assert percentile([7.0], 0.01) == 7.0


def test_one_long_gap_in_fifty_shows_in_p99_but_not_in_p90() -> None:
    spread = milliseconds([0.02] * 49 + [5.0])
    assert spread == {"p50": 20.0, "p90": 20.0, "p99": 5000.0, "max": 5000.0}


def test_of_nothing_there_is_nothing() -> None:
    assert milliseconds([]) == {"p50": None, "p90": None, "p99": None, "max": None}
    assert share_within([], 1.0) is None
    assert ratio(None, 2.0) is ratio(2.0, None) is ratio(2.0, 0.0) is None


def test_shares_include_the_limit() -> None:
    assert share_within([1.0, 2.0, 3.0, 4.0], 3.0) == 0.75
