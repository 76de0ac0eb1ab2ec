"""Pasted pictures: people where their boxes say, the same for the same seed."""

from __future__ import annotations

import numpy as np

from training.detector.compose import LEAST_HEIGHT, compose
from training.detector.people import CutOut


def figures():
    rng = np.random.default_rng(0)
    found = []
    for _ in range(4):
        image = rng.integers(0, 255, (120, 50, 3)).astype(np.uint8)
        alpha = np.zeros((120, 50), np.uint8)
        alpha[4:116, 8:42] = 255
        found.append(CutOut(image, alpha))
    return found


def test_boxes_lie_in_the_picture_and_the_seed_decides_everything():
    people, count = figures(), 0
    for seed in range(40):
        first, second = (compose(np.random.default_rng(seed), 160, people, (), ()) for _ in range(2))
        assert np.array_equal(first.image, second.image) and first.boxes == second.boxes
        assert first.image.shape == (160, 160, 3)
        for x1, y1, x2, y2 in first.boxes:
            assert 0 <= x1 < x2 <= 160 and y1 >= 0 and y2 <= 160 and y2 - y1 >= LEAST_HEIGHT
        count += len(first.boxes)
    assert count > 40
