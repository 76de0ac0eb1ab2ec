"""While crops wait too long they are read with fewer tokens, step by step, and with more again afterwards."""

from __future__ import annotations

import time

import pytest
from pydantic import ValidationError

from pipeline.config.engine import DescriberConfig
from pipeline.image_ladder import ImageLadder, StepChange
from pipeline.messages import DescriptionState
from pipeline.queue import keys
from pipeline.queue.crops import CropWriter
from tests.pipeline.material import crop_of, jpeg_of
from tests.pipeline.test_describer import SlowBackend, describing, event_of, state_of
from tests.pipeline.waiting import until

CONFIG = DescriberConfig(
    image_ladder=(512, 256, 64), image_ladder_age_s=30, image_ladder_recovered_age_s=10, image_ladder_hold_s=5
)


class Hands:
    """A clock that goes when it is told to."""

    def __init__(self) -> None:
        self.seconds = 1000.0

    def now(self) -> float:
        return self.seconds

    def monotonic(self) -> float:
        return self.seconds


@pytest.fixture
def clock() -> Hands:
    return Hands()


def watch(ladder: ImageLadder, clock: Hands, ages: list[float | None]) -> list[int | None]:
    """The bound after each look, one a second."""
    bounds = []
    for age in ages:
        ladder.observe(age)
        bounds.append(ladder.tokens)
        clock.seconds += 1
    return bounds


def test_a_young_queue_changes_nothing(clock):
    ladder = ImageLadder(CONFIG, clock)
    assert watch(ladder, clock, [None, 5, 29, 30, None] * 4) == [None] * 20
    assert ladder.changes == {StepChange.LOWERED: 0, StepChange.RAISED: 0}


def test_over_the_limit_it_goes_down_at_once_and_then_after_each_hold_to_the_last_step(clock):
    ladder = ImageLadder(CONFIG, clock)
    assert watch(ladder, clock, [31] * 20) == [512] * 5 + [256] * 5 + [64] * 10
    assert (ladder.step, ladder.num_steps, ladder.changes[StepChange.LOWERED]) == (3, 3, 3)


def test_between_the_limits_it_stays(clock):
    ladder = ImageLadder(CONFIG, clock)
    watch(ladder, clock, [31])
    assert set(watch(ladder, clock, [30, 20, 10] * 10)) == {512}


def test_under_the_lower_limit_for_the_hold_it_goes_up_step_by_step(clock):
    ladder = ImageLadder(CONFIG, clock)
    watch(ladder, clock, [31] * 11)
    assert ladder.tokens == 64
    assert watch(ladder, clock, [9, None] * 10) == [64] * 5 + [256] * 5 + [512] * 5 + [None] * 5
    assert ladder.changes == {StepChange.LOWERED: 3, StepChange.RAISED: 3}


def test_a_queue_that_is_short_only_now_and_then_does_not_raise_it(clock):
    ladder = ImageLadder(CONFIG, clock)
    watch(ladder, clock, [31])
    assert set(watch(ladder, clock, [None, None, 15] * 20)) == {512}


def test_without_steps_it_is_off(clock):
    ladder = ImageLadder(DescriberConfig(image_ladder=()), clock)
    assert set(watch(ladder, clock, [1000] * 50)) == {None}


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"image_ladder": (256, 512)}, "the steps 256, 512 don't fall"),
        ({"image_ladder": (64, 64)}, "the steps 64, 64 don't fall"),
        ({"image_ladder": (0,)}, "greater than or equal to 1"),
        ({"image_ladder_age_s": 5}, "image_ladder_recovered_age_s is 10, more than image_ladder_age_s 5"),
    ],
)
def test_a_ladder_that_makes_no_sense_is_refused(values, message):
    with pytest.raises(ValidationError, match=message):
        DescriberConfig(**values)


async def test_crops_are_described_with_the_ladders_bound_and_events_say_so(client, redis_url, redis_config, store):
    """Two crops wait for longer than the limit while a third is in work; with the queue empty the bound is lifted."""
    old = time.time() - 60
    ladder = ImageLadder(
        DescriberConfig(
            image_ladder=(300, 200), image_ladder_age_s=30, image_ladder_recovered_age_s=10, image_ladder_hold_s=0.01
        )
    )
    writer = CropWriter(client, redis_config)
    for n in range(3):
        writer.publish(crop_of(f"c{n}", camera=f"cam{n}", track=f"cam{n}/a-1", time=old), jpeg_of(n))
    backend = SlowBackend(1.5)
    async with describing(redis_url, store, backend, DescriberConfig(concurrency=1), ladder=ladder):
        await until(lambda: state_of(store, "cam2/a-1") == DescriptionState.DRAFT, 30)
        await until(lambda: ladder.step == 0 and ladder.changes[StepChange.RAISED] > 0, 30)
    assert not list(client.scan_iter("ww:crop:*")) and client.exists(keys.CAMERAS)
    assert backend.bounds[-1] in (300, 200)
    shown = [event_of(store, f"cam{n}/a-1") for n in range(3)]
    assert [event.image_tokens for event in shown] == [bound or 1000 for bound in backend.bounds]
    assert shown[0].to_api()["image_tokens"] == (backend.bounds[0] or 1000)
