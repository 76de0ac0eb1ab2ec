"""Pasted pictures: people where their boxes say, the same for the same seed."""

from __future__ import annotations

import numpy as np

from training.detector.compose import LEAST_HEIGHT, _Canvas, _paste, _Place, _stand, compose, no_one
from training.detector.people import CutOut
from training.detector.poses import from_above, leaning, reaching
from training.detector.sections import alone, section
from training.detector.upright import upright


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
        _paste(rng, canvas, no_one(rng, streets), _Place(120.0, 150.0, float(rng.uniform(0, 160))), labelled=False)
    assert canvas.boxes == [(0, 0, 160, 160)] and (canvas.image != 90).any()
    hidden = canvas.owner == 0
    assert hidden.any() and (canvas.owner[~hidden] == 1).all()
    assert (canvas.image[hidden] != 90).any(axis=1).mean() > 0.9


def test_a_tripod_or_a_sign_stands_where_somebody_might_and_gets_no_box():
    for seed in range(12):
        canvas = _Canvas(
            np.full((160, 160, 3), 90, np.uint8), np.ones((160, 160), np.int16), [(0, 0, 160, 160)], [160 * 160]
        )
        _stand(np.random.default_rng(seed), canvas, _Place(120.0, 150.0, 80.0))
        assert canvas.boxes == [(0, 0, 160, 160)]
        hidden = canvas.owner == 0
        assert hidden.any() and (canvas.image[hidden] != 90).any(axis=1).all()


def test_what_stands_there_is_as_tall_as_it_is_told_and_keeps_near_its_place():
    for seed in range(40):
        image = np.full((200, 300, 3), 255, np.uint8)
        upright(np.random.default_rng(seed), image, 150, 180, 100)
        ys, xs = np.where((image != 255).any(axis=2))
        assert 60 <= ys.max() - ys.min() <= 135 and ys.max() <= 195, seed
        assert xs.min() >= 50 and xs.max() <= 250, seed


def test_from_above_shoulders_are_wider_than_feet():
    person = figures()[0]
    seen = [from_above(np.random.default_rng(seed), person).alpha > 127 for seed in range(8)]
    assert all(body.shape[0] <= 120 and body[10].sum() >= body[-10].sum() for body in seen)
    assert any(body[10].sum() > 1.2 * body[-10].sum() for body in seen)


def test_an_arm_stretched_out_makes_the_person_wider_and_no_taller():
    for seed in range(12):
        person = figures()[seed % 4]
        reached = reaching(np.random.default_rng(seed), person)
        body, before = reached.alpha > 127, person.alpha > 127
        assert reached.size[0] == person.size[0] and reached.image.shape[:2] == reached.alpha.shape
        assert np.ptp(np.where(body.any(axis=0))[0]) > 1.2 * np.ptp(np.where(before.any(axis=0))[0])
        assert body[80:].sum() >= before[80:].sum()


def test_who_leans_is_seen_whole():
    person = figures()[0]
    upright = np.count_nonzero(person.alpha > 127)
    for degrees in (-38.0, -9.0, 0.0, 20.0, 38.0):
        image, alpha = leaning(person.image, person.alpha, degrees)
        assert alpha.shape[0] == person.size[0] and image.shape[:2] == alpha.shape
        # Turned about the feet, a corner of them goes below the picture's lower edge.
        assert 0.85 * upright < np.count_nonzero(alpha > 127) < 1.1 * upright


def test_a_sections_box_is_around_what_is_left_of_the_person():
    photo = np.full((400, 300, 3), 120, np.uint8)
    mask = np.zeros((400, 300), bool)
    mask[40:380, 110:190] = True
    photo[mask] = (20, 20, 240)
    boxes, cut, none = 0, 0, 0
    for seed in range(60):
        found = section(np.random.default_rng(seed), photo, mask, 320)
        if found is None:
            none += 1
            continue
        picture, people = found
        height, width = picture.shape[:2]
        assert width == 320 and len(people) <= 1
        for x1, y1, x2, y2 in people:
            assert 0 <= x1 < x2 <= width + 1 and 0 <= y1 < y2 <= height + 1
            boxes += 1
            cut += x1 < 1 or x2 > width - 1
    assert boxes > 40 and cut > 5 and none < 20


def test_a_mask_of_whom_the_teacher_saw_with_others_is_left_out():
    mask = np.zeros((100, 100), bool)
    mask[10:90, 40:60] = True
    assert alone([(38.0, 8.0, 62.0, 92.0)], mask)
    assert not alone([(38.0, 8.0, 62.0, 92.0), (0.0, 0.0, 9.0, 30.0)], mask)
    assert not alone([(0.0, 0.0, 30.0, 90.0)], mask) and not alone([], mask)
