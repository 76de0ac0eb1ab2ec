"""Pasted pictures: people where their boxes say, the same for the same seed."""

from __future__ import annotations

import numpy as np

from training.detector.compose import LEAST_HEIGHT, _Canvas, _paste, compose, no_one
from training.detector.people import CutOut
from training.detector.poses import from_above


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


def test_a_piece_of_a_street_hides_people_and_gets_no_box():
    rng = np.random.default_rng(1)
    streets = [rng.integers(0, 255, (200, 90, 3)).astype(np.uint8)]
    canvas = _Canvas(
        np.full((160, 160, 3), 90, np.uint8), np.ones((160, 160), np.int16), [(0, 0, 160, 160)], [160 * 160]
    )
    for _ in range(6):
        _paste(rng, canvas, no_one(rng, streets), 120.0, 150.0, labelled=False)
    assert canvas.boxes == [(0, 0, 160, 160)] and (canvas.image != 90).any()
    hidden = canvas.owner == 0
    assert hidden.any() and (canvas.owner[~hidden] == 1).all()
    assert (canvas.image[hidden] != 90).any(axis=1).mean() > 0.9


def test_from_above_shoulders_are_wider_than_feet():
    person = figures()[0]
    seen = [from_above(np.random.default_rng(seed), person).alpha > 127 for seed in range(8)]
    assert all(body.shape[0] <= 120 and body[10].sum() >= body[-10].sum() for body in seen)
    assert any(body[10].sum() > 1.2 * body[-10].sum() for body in seen)
