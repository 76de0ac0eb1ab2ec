"""The step-time model predicts, inverts its prediction, and follows the machine."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vlm_engine import step_time
from vlm_engine.step_time import MISSES, MOST_MARGIN, Margin, StepTimeModel, calibrate

MODEL = StepTimeModel((1, 2, 4, 8, 64, 512), (0.010, 0.0102, 0.0106, 0.012, 0.05, 0.4), 1e-7, 1e-9)


def test_the_table_is_interpolated_and_extrapolated():
    assert MODEL.base(0) == 0
    assert MODEL.base(1) == pytest.approx(0.010)
    assert MODEL.base(36) == pytest.approx(0.031)
    assert MODEL.base(960) == pytest.approx(0.75)


def test_prefixes_cost_reading_and_scores():
    assert MODEL.predict([(1000, 8)]) == pytest.approx(0.012 + 1e-4 + 1e-9 * (16_000 + 64))


works = st.lists(st.tuples(st.integers(0, 4000), st.integers(1, 300)), min_size=1, max_size=6)


@given(works, st.floats(0.001, 2.0), st.integers(0, 4000), st.integers(1, 600))
def test_tokens_within_is_the_largest_number_that_keeps_the_time(work, seconds, prefix, most):
    so_far = sum(new for _, new in work)
    tokens = MODEL.tokens_within(seconds, so_far, prefix, most)

    def cost(count):
        return MODEL.predict([*work, (prefix, count)]) - MODEL.predict(work)

    assert 0 <= tokens <= most
    if tokens:
        assert cost(tokens) <= seconds * (1 + 1e-9) + 1e-12
    if tokens < most:
        assert cost(tokens + 1) > seconds * (1 - 1e-9)


def test_the_correction_follows_a_machine_that_got_slower_but_not_one_odd_step():
    decodes = [(0, 1)] * 8
    odd = MODEL.observed(decodes, MODEL.predict(decodes) * 100)
    assert odd.correction < 1.06
    model = MODEL
    for _ in range(200):
        model = model.observed(decodes, MODEL.predict(decodes) * 2)
    assert model.correction == pytest.approx(2.0, rel=0.02)
    assert model.chunk_correction == 1.0, "nothing was learned of prefill"


def test_what_chunks_add_is_learned_apart_from_what_decodes_cost():
    """Chunks that take three times what was measured at start must not make decodes look slow, nor the target grow."""
    work = [(100, 1)] * 4 + [(0, 40)]
    decodes = MODEL.predict(work[:4])
    model = MODEL
    for _ in range(300):
        model = model.observed(work, decodes + 3 * (MODEL.predict(work) - decodes))
    assert model.predict(work[:4]) == pytest.approx(decodes)
    assert model.predict(work) == pytest.approx(decodes + 3 * (MODEL.predict(work) - decodes), rel=0.02)


def test_calibration_finds_the_terms_of_a_machine_whose_times_are_known(monkeypatch):
    """A fake clock that moves by exactly what the formula says."""
    now = [0.0]
    monkeypatch.setattr(step_time.time, "perf_counter", lambda: now[0])

    def forward(prefix, new):
        now[0] += 0.01 + 0.0005 * new + 2e-7 * prefix + 3e-9 * (2 * prefix * new + new * new)

    model = calibrate(forward, 1024, 2000)
    assert model.sizes == (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
    for work in ([(0, 1)], [(0, 700)], [(3000, 1)], [(1500, 256)]):
        ((prefix, new),) = work
        truth = 0.01 + 0.0005 * new + 2e-7 * prefix + 3e-9 * (2 * prefix * new + new * new)
        assert model.predict(work) == pytest.approx(truth, rel=0.05)


def test_calibration_tells_reading_a_prefix_for_a_chunk_from_a_decode_and_from_its_scores(monkeypatch):
    """What a chunk costs behind a long prefix: a part whatever its size, and a part for each of its tokens."""
    now = [0.0]
    monkeypatch.setattr(step_time.time, "perf_counter", lambda: now[0])

    def true(prefix, new):
        behind = 3e-6 * prefix if new == 1 else 4.5e-6 * prefix + 1e-7 * prefix * new
        return 0.03 + 0.0005 * new + behind

    def forward(prefix, new):
        now[0] += true(prefix, new)

    model = calibrate(forward, 512, 4000)
    for work in ((4000, 1), (4000, 4), (6000, 16), (2000, 64), (1000, 200)):
        assert model.predict([work]) == pytest.approx(true(*work), rel=0.02), work


def test_the_margin_settles_where_nearly_all_steps_keep_their_target():
    """given: steps that take 0.8 to 1.3 times what was predicted; then: planned with the margin, few are over."""
    rng, margin = random.Random(1), Margin()
    over = []
    for _ in range(4000):
        ratio = rng.choice([0.8, 0.95, 1.0, 1.0, 1.02, 1.05, 1.1, 1.2, 1.3])
        over.append(ratio / margin.factor > 1.0)
        margin.observe(ratio / margin.factor, 1.0)
    assert sum(over[1000:]) / 3000 == pytest.approx(MISSES, abs=0.015)


def test_the_margin_has_bounds():
    margin = Margin()
    for _ in range(1000):
        margin.observe(2.0, 1.0)
    assert margin.factor == MOST_MARGIN
    for _ in range(3000):
        margin.observe(0.5, 1.0)
    assert margin.factor == 1.0
