"""Slice times: fitted per kind, corrected online, robust to outliers, kept as JSON."""

from __future__ import annotations

import pytest

from vlm_engine.encoder_cost import EncoderCost
from vlm_engine.row_cuts import SliceWork


def truth(work: SliceWork) -> float:
    return 0.001 + 2e-5 * work.rows + 3e-9 * work.pairs


def test_three_terms_are_found_from_three_sizes_and_predict_others():
    works = [SliceWork("block", p, p * p) for p in (64, 256, 1024, 4096)]
    cost = EncoderCost.fit([(work, truth(work)) for work in works])
    for p in (100, 700, 3000):
        work = SliceWork("block", p, p * p)
        assert cost.predict(work) == pytest.approx(truth(work), rel=1e-3)


def test_one_size_is_enough_for_a_tower_of_one_size():
    cost = EncoderCost.fit([(SliceWork("mlp", 256), 0.008)] * 3 + [(SliceWork("attend", 256, 256 * 1024), 0.006)] * 3)
    assert cost.predict(SliceWork("mlp", 256)) == pytest.approx(0.008)
    assert cost.predict(SliceWork("mlp", 128)) == pytest.approx(0.004)
    assert cost.predict(SliceWork("attend", 128, 128 * 1024)) == pytest.approx(0.003)


def test_the_median_counts_so_that_one_hiccup_at_start_does_not():
    samples = [(SliceWork("mlp", 256), 0.008)] * 6 + [(SliceWork("mlp", 256), 0.9)]
    assert EncoderCost.fit(samples).predict(SliceWork("mlp", 256)) == pytest.approx(0.008)


def test_no_term_is_negative_whatever_was_measured():
    """Larger pictures that were faster (a cold start) must not make time run backwards."""
    cost = EncoderCost.fit([(SliceWork("block", 64, 64 * 64), 0.020), (SliceWork("block", 512, 512 * 512), 0.010)])
    assert all(term >= 0 for term in cost.terms["block"])
    assert cost.predict(SliceWork("block", 128, 128 * 128)) > 0


def test_corrections_are_by_kind_and_follow_a_machine_that_became_slower():
    cost = EncoderCost({"mlp": (0.0, 1e-5, 0.0), "attend": (0.0, 0.0, 1e-8)})
    work = SliceWork("mlp", 1000)
    for _ in range(200):
        cost.observe(work, 0.020)
    assert cost.predict(work) == pytest.approx(0.020, rel=0.02)
    assert cost.predict(SliceWork("attend", 1, 1000)) == pytest.approx(1e-5)


def test_an_outlier_moves_little():
    cost = EncoderCost({"mlp": (0.0, 1e-5, 0.0)})
    cost.observe(SliceWork("mlp", 1000), 60.0)
    assert cost.predict(SliceWork("mlp", 1000)) < 0.011


def test_an_unknown_kind_is_learned_from_its_first_slice():
    cost = EncoderCost()
    assert cost.predict(SliceWork("finish", 100)) == 0.0
    cost.observe(SliceWork("finish", 100), 0.002)
    assert cost.predict(SliceWork("finish", 200)) == pytest.approx(0.004)


def test_json_keeps_predictions_and_refuses_nonsense():
    cost = EncoderCost({"mlp": (0.001, 1e-5, 0.0)})
    cost.observe(SliceWork("mlp", 1000), 0.030)
    again = EncoderCost.from_json(cost.as_json())
    assert again.predict(SliceWork("mlp", 500)) == pytest.approx(cost.predict(SliceWork("mlp", 500)))
    for bad in ({"mlp": [1.0, 2.0]}, {"mlp": [-1.0, 0.0, 0.0]}, {"mlp": [float("nan"), 0.0, 0.0]}, {"mlp": "abc"}):
        with pytest.raises((ValueError, TypeError)):
            EncoderCost.from_json(bad)
