"""R28: a picture that stands still is told from a scene that does."""

from __future__ import annotations

import numpy as np
import pytest

from ingest.frozen import FrozenPicture, same
from ingest.idle import IdleGate

RNG = np.random.default_rng(0)


def picture(seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 255, (90, 160, 3), dtype=np.uint8)


def test_r28_identical_across_keyframes_and_for_long_enough_is_frozen():
    watch = FrozenPicture(after_s=3.0, keyframes=2)
    seen = [watch.sees(picture(), keyframe=number % 10 == 0, now=number / 10) for number in range(60)]
    assert seen.index(True) == 30
    assert all(seen[30:])


def test_r28_a_long_group_of_pictures_is_no_frozen_camera():
    """An encoder skips what does not change: within one group of pictures a still scene is the same to the bit."""
    watch = FrozenPicture(after_s=3.0, keyframes=2)
    assert not any(watch.sees(picture(), keyframe=number == 0, now=number / 10) for number in range(600))


def test_r28_a_still_scene_whose_keyframes_carry_noise_is_not_frozen():
    watch = FrozenPicture(after_s=3.0, keyframes=2)
    assert not any(
        watch.sees(picture(number // 10), keyframe=number % 10 == 0, now=number / 10) for number in range(600)
    )


def test_r28_one_pixel_that_changes_is_life():
    watch = FrozenPicture(after_s=1.0, keyframes=2)
    image = picture()
    for number in range(100):
        image = image.copy()
        image[number % 90, number % 160, 1] ^= 1
        assert not watch.sees(image, keyframe=True, now=float(number))


def test_zero_switches_it_off():
    watch = FrozenPicture(after_s=0.0, keyframes=2)
    assert not any(watch.sees(picture(), keyframe=True, now=float(number)) for number in range(100))


@pytest.mark.parametrize("shape", [(90, 160, 3), (7, 9, 3), (1, 1, 3)])
def test_same_is_to_the_bit(shape):
    a = RNG.integers(0, 255, shape, dtype=np.uint8)
    assert same(a, a.copy())
    assert not same(a, a[:, ::-1][:, :0])
    for row in range(shape[0]):
        b = a.copy()
        b[row, -1, -1] ^= 1
        assert not same(a, b)


def test_idle_after_a_while_in_which_nothing_happens():
    gate = IdleGate(after_s=5.0, now=0.0)
    assert [gate.idles(float(second)) for second in range(8)] == [False] * 5 + [True] * 3
    gate.keep_awake(8.0)
    assert [gate.idles(float(second)) for second in range(8, 15)] == [False] * 5 + [True] * 2
    gate.keep_awake(3.0)
    assert gate.idles(13.0), "news of long ago"


def test_idle_is_off_at_zero():
    gate = IdleGate(after_s=0.0, now=0.0)
    assert not any(gate.idles(float(second)) for second in range(100))
