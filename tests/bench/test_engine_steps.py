"""The engine's own account: no step twice, none lost unsaid, and shares as they are."""

from __future__ import annotations

import asyncio

import pytest

from pipeline.bench.engine_steps import RING, StepWatch, decode_only_seconds, encoder_use, summarise_steps


def step(started: float, seconds: float = 0.02, **kinds: float) -> dict[str, float]:
    counts = {"decode_tokens": 4, "prefill_tokens": 0, "slices": 0}
    times = ("encoder_seconds", "predicted_seconds", "encoder_predicted_seconds", "target_seconds")
    return {"started": started, "seconds": seconds, **counts, **dict.fromkeys(times, 0.0), **kinds}


class Ring:
    """A server whose engine takes ``rate`` steps between two questions."""

    def __init__(self, rate: int) -> None:
        self.rate = rate
        self.taken = 0
        self.asked = 0

    async def fetch(self) -> list[dict[str, float]]:
        self.asked += 1
        self.taken += self.rate
        return [step(float(number)) for number in range(max(0, self.taken - RING), self.taken)]


async def test_steps_before_the_start_do_not_count_and_each_later_one_once() -> None:
    ring = Ring(300)
    watch = StepWatch(ring.fetch)
    await watch.start()
    first, second = await watch.take(), await watch.take()
    await watch.stop()
    assert [s["started"] for s in first + second] == list(range(300, ring.taken))
    assert not watch.lost


async def test_a_ring_that_turned_over_between_two_questions_is_told() -> None:
    ring = Ring(RING + 1)
    watch = StepWatch(ring.fetch)
    await watch.start()
    await watch.take()
    await watch.stop()
    assert watch.lost


async def test_it_asks_by_itself_meanwhile() -> None:
    ring = Ring(900)
    watch = StepWatch(ring.fetch)
    await watch.start()
    while ring.asked < 3:
        await asyncio.sleep(0.01)
    assert len(await watch.take()) == (ring.asked - 1) * 900
    await watch.stop()


def test_shares_count_steps_with_decodes_only() -> None:
    steps = [step(0, 0.02), step(1, 0.03, prefill_tokens=64), step(2, 0.05, slices=1), step(3, 9.0, decode_tokens=0)]
    assert decode_only_seconds(steps) == 0.02
    found = summarise_steps(steps, 0.02, 45.0)
    two_thirds = pytest.approx(2 / 3, abs=1e-4)
    assert found["share_within"] == {"1.5x": two_thirds, "2x": two_thirds, "4x": 1.0, "target": two_thirds}
    assert (found["count"], found["with_decodes"], found["with_encoder"]) == (4, 3, 1)
    assert found["ms"]["max"] == 50.0


def test_without_a_decode_only_step_nothing_is_claimed() -> None:
    assert decode_only_seconds([step(0, slices=1)]) is None
    assert summarise_steps([], None, None)["share_within"] == {}


def test_what_the_scheduler_allowed_is_counted_where_there_was_a_bound() -> None:
    steps = [step(0, 0.02, target_seconds=0.04), step(1, 0.05, target_seconds=0.04), step(2, 9.0)]
    assert summarise_steps(steps, None, None)["share_within"] == {"allowed": 0.5}


def test_predictions_of_forward_and_slices_are_judged_apart_and_together() -> None:
    both = step(0, 0.03, encoder_seconds=0.01, predicted_seconds=0.01, encoder_predicted_seconds=0.02)
    unknown = step(1, 0.03, encoder_seconds=0.01, predicted_seconds=0.02)  # slices of which nothing was predicted
    error = summarise_steps([both, unknown, step(2)], None, None)["prediction"]
    assert error["forward"] == {"p5": 1.0, "median": 1.0, "p95": 2.0}
    assert error["encoder"] == {"p5": 0.5, "median": 0.5, "p95": 0.5}
    assert error["step"] == {"p5": 1.0, "median": 1.0, "p95": 1.0}


def test_the_encoders_seconds_are_differences_per_picture() -> None:
    before = {"encoder_seconds_sum": 10.0, "encoder_items_total": 3.0, "encoder_slices_total": 100.0}
    after = {"encoder_seconds_sum": 18.0, "encoder_items_total": 7.0, "encoder_slices_total": 500.0}
    use = encoder_use(before, after, 2)
    assert (use["busy_s"], use["pictures"], use["slices"]) == (8.0, 4.0, 400.0)
    assert (use["busy_s_per_picture"], use["busy_s_per_completed"]) == (2.0, 4.0)
    assert encoder_use({}, {}, 0)["busy_s_per_picture"] is None
