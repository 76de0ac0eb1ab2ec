"""What is left of people who are to be unrecognisable."""

from __future__ import annotations

import cv2
import numpy as np
import pytest

from ingest.crop import crop_window, cut
from ingest.preview import Mark, Preview, draw
from ingest.privacy import CELLS, LEVELS, head_of, obscure, regions_of
from pipeline.config import CropConfig
from tests.ingest.helpers import frame_of

STANDING = (223.0, 404.0, 346.0, 861.0)
BESIDE = (48.0, 397.0, 238.0, 903.0)
"""Two people on ultralytics' bus.jpg."""


def detail(image: np.ndarray) -> np.ndarray:
    """What is finer than about a tenth of the picture's height (a filter's sigma of a thirty-second)."""
    grey = cv2.cvtColor(image, cv2.COLOR_BGR2GRAY).astype(np.float32)
    return grey - cv2.GaussianBlur(grey, (0, 0), image.shape[0] / 32)


@pytest.mark.parametrize("blur", ["head", "person"])
def test_a_region_keeps_a_few_coarse_cells_and_nothing_else(blur):
    """Given a picture and the same with all pixels shuffled within each cell, nobody can tell them apart afterwards."""
    across, down = CELLS[blur]
    rng = np.random.default_rng(1)
    picture = rng.integers(0, 255, (down * 20, across * 20, 3), dtype=np.uint8)
    shuffled = picture.copy()
    for row in range(down):
        for column in range(across):
            cell = shuffled[row * 20 : row * 20 + 20, column * 20 : column * 20 + 20]
            cell[:] = rng.permutation(cell.reshape(-1, 3)).reshape(cell.shape)
    whole = (0.0, 0.0, float(across * 20), float(down * 20))

    obscure(picture, [whole], blur)
    obscure(shuffled, [whole], blur)

    assert (picture == shuffled).all()
    centres = picture[10::20, 10::20]
    assert len(np.unique(centres)) <= LEVELS


@pytest.mark.parametrize("blur", ["head", "person"])
def test_no_detail_of_a_real_person_remains(photograph, blur):
    bus = photograph("bus.jpg")
    ((x1, y1, x2, y2),) = regions_of(blur, [STANDING])
    inside = np.s_[int(y1) + 2 : int(y2) - 2, int(x1) + 2 : int(x2) - 2]
    hidden = bus.copy()

    obscure(hidden, [(x1, y1, x2, y2)], blur)

    before, after = detail(bus[inside]), detail(hidden[inside])
    assert after.std() < 0.2 * before.std()
    assert abs(np.corrcoef(before.ravel(), after.ravel())[0, 1]) < 0.35
    outside = np.ones(bus.shape[:2], dtype=bool)
    outside[int(y1) : int(y2) + 1, int(x1) : int(x2) + 1] = False
    assert (hidden[outside] == bus[outside]).all()


def test_a_person_made_unrecognisable_is_no_person_to_the_detector(photograph, openvino_detector):
    bus = photograph("bus.jpg")
    found = [tuple(row[:4]) for row in openvino_detector.detect([bus])[0] if row[4] > 0.35 and row[5] == 0]
    assert len(found) >= 3

    obscure(bus, regions_of("person", found), "person")

    assert not [row for row in openvino_detector.detect([bus])[0] if row[4] > 0.35 and row[5] == 0]


def test_a_head_is_the_top_quarter_of_who_stands_and_more_of_who_is_cut_off():
    assert head_of((100, 100, 200, 500)) == (100, 100, 200, 200)
    assert head_of((100, 100, 300, 350)) == (100, 100, 300, 220)
    assert head_of((100, 100, 500, 200)) == (100, 100, 500, 200)


def test_everybody_in_a_crop_is_covered_not_only_the_one_it_is_of(photograph):
    bus = photograph("bus.jpg")
    window = crop_window(STANDING, 810, 1080, CropConfig(padding=0.5))
    left, top, *_ = window
    regions = regions_of("head", [STANDING, BESIDE])

    plain, hidden = cut(bus, window, 10**7), cut(bus, window, 10**7, regions, "head")

    for x1, y1, x2, y2 in regions:
        part = np.s_[max(0, int(y1) - top) : int(y2) - top, max(0, int(x1) - left) : max(1, int(x2) - left)]
        assert np.abs(plain[part].astype(int) - hidden[part]).mean() > 10
    assert (bus == photograph("bus.jpg")).all(), "the frame itself is as before"


def test_without_a_wish_nothing_changes(photograph):
    bus = photograph("bus.jpg")
    window = crop_window(STANDING, 810, 1080, CropConfig())

    assert regions_of("none", [STANDING]) == ()
    assert (cut(bus, window, 10**7) == bus[window[1] : window[3], window[0] : window[2]]).all()


def test_previews_are_covered_as_well(photograph):
    bus = photograph("bus.jpg")
    ((x1, y1, x2, y2),) = regions = regions_of("head", [STANDING])

    def shown(preview: Preview) -> np.ndarray:
        return cv2.imdecode(np.frombuffer(draw(preview), np.uint8), cv2.IMREAD_COLOR)

    marks = (Mark((700, 900, 760, 1000), "person 2"),)
    plain, hidden = shown(Preview(frame_of(bus), marks)), shown(Preview(frame_of(bus), marks, regions, "head"))

    assert (hidden.shape[1], plain.shape[1]) == (810, 810)
    part = np.s_[int(y1) + 4 : int(y2) - 4, int(x1) + 4 : int(x2) - 4]
    assert detail(hidden[part]).std() < 0.5 * detail(plain[part]).std()
    assert (bus == photograph("bus.jpg")).all()


def test_regions_outside_and_without_area_do_no_harm():
    image = np.full((50, 50, 3), 7, dtype=np.uint8)

    obscure(image, [(-30, -30, -10, -10), (60, 60, 90, 90), (10, 10, 10, 20), (20, 20, 21, 21)], "head")

    assert (np.delete(image.reshape(-1, 3), 20 * 50 + 20, axis=0) == 7).all()
