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


def test_idle_after_a_while_without_motion_and_awake_with_the_first():
    gate = IdleGate(after_s=5.0, now=0.0)
    still = picture()
    seen = [gate.idles(still, float(second)) for second in range(10)]
    assert seen == [False] * 5 + [True] * 5
    moved = still.copy()
    moved[40:60, 70:80] = 255 - moved[40:60, 70:80] // 2
    assert not gate.idles(moved, 10.0), "a person"
    assert not gate.idles(moved, 14.0)
    assert gate.idles(moved, 16.0)


def test_noise_and_a_change_of_exposure_are_no_motion():
    gate = IdleGate(after_s=5.0, now=0.0)
    still = np.full((360, 640, 3), 100, dtype=np.uint8)
    for second in range(1, 10):
        noisy = np.clip(still + RNG.normal(0, 6, still.shape) + 3 * (second % 5), 0, 255).astype(np.uint8)
        idle = gate.idles(noisy, float(second))
    assert idle


def test_somebody_in_view_keeps_it_awake():
    gate = IdleGate(after_s=5.0, now=0.0)
    for second in range(20):
        gate.keep_awake(float(second))
        assert not gate.idles(picture(), float(second))


def test_idle_is_off_at_zero():
    gate = IdleGate(after_s=0.0, now=0.0)
    assert not any(gate.idles(picture(), float(second)) for second in range(100))
