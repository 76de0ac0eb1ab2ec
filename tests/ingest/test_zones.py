"""In which zones somebody is, has been, and what that decides."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingest.polygon import contains, covered_cells
from ingest.zones import CameraZones, foot_point
from pipeline.config import ZoneConfig

LEFT = ((0.0, 0.0), (0.5, 0.0), (0.5, 1.0), (0.0, 1.0))
LOWER = ((0.0, 0.5), (1.0, 0.5), (1.0, 1.0), (0.0, 1.0))
WHOLE = ((0.0, 0.0), (1.0, 0.0), (1.0, 1.0), (0.0, 1.0))
BAY = ((0.1, 0.1), (0.9, 0.1), (0.9, 0.9), (0.5, 0.3), (0.1, 0.9))
"""Open from below: its middle is outside."""


def standing(x: float, y: float) -> tuple[float, float, float, float]:
    """Somebody whose feet are there, on a frame of 640x480."""
    return (x * 640 - 20, y * 480 - 100, x * 640 + 20, y * 480)


def zone(name: str, points=LEFT, **settings) -> ZoneConfig:
    return ZoneConfig(name=name, points=points, **settings)


def at(zones: CameraZones, x: float, y: float, label: str = "person") -> tuple[str, ...]:
    return zones.at(standing(x, y), 640, 480, label)


def walk(zones: CameraZones, *places: tuple[float, float], track: str = "cam/1") -> None:
    for x, y in places:
        zones.see(track, standing(x, y), 640, 480, "person")


def test_the_feet_decide_not_the_head():
    zones = CameraZones([zone("upper", ((0.0, 0.0), (1.0, 0.0), (1.0, 0.5), (0.0, 0.5))), zone("lower", LOWER)])

    assert at(zones, 0.5, 0.6) == ("lower",), "most of the body is above"
    assert at(zones, 0.5, 0.4) == ("upper",)


@pytest.mark.parametrize(
    ("x", "y", "inside"),
    [(0.5, 0.2, True), (0.5, 0.6, False), (0.15, 0.6, True), (0.85, 0.6, True), (0.5, 0.95, False)],
)
def test_a_polygon_may_have_bays(x, y, inside):
    assert contains(BAY, x, y) is inside


@given(st.floats(0, 1), st.floats(0, 1))
def test_everybody_on_the_frame_is_in_a_zone_that_is_the_whole_frame(x, y):
    feet = foot_point((x * 640, 0, x * 640, y * 480), 640, 480)
    assert contains(WHOLE, *feet)


@given(
    st.lists(st.tuples(st.floats(0.01, 0.99), st.floats(0.01, 0.99)), min_size=3, max_size=8),
    st.floats(0.01, 0.99),
    st.floats(0.01, 0.99),
)
def test_a_cell_whose_middle_is_in_a_polygon_is_covered(points, x, y):
    """Two ways to the same answer; cells on the edge are covered too, so only this direction holds."""
    column, row = int(x * 64), int(y * 48)
    middle = (column + 0.5) / 64, (row + 0.5) / 48
    if contains(tuple(points), *middle):
        assert covered_cells([tuple(points)], 64, 48)[row, column]


def test_a_few_frames_in_a_row_make_somebody_be_in_a_zone():
    """Given boxes that tremble at the edge, then nobody is said to have been there."""
    zones = CameraZones([zone("left")])
    walk(zones, (0.49, 0.9), (0.49, 0.9), (0.51, 0.9), (0.49, 0.9), (0.49, 0.9), (0.51, 0.9))
    assert zones.visited("cam/1") == ()
    walk(zones, (0.49, 0.9), (0.49, 0.9), (0.49, 0.9))
    assert zones.visited("cam/1") == ("left",)
    walk(zones, *[(0.9, 0.9)] * 10)
    assert zones.visited("cam/1") == ("left",), "has been there"


def test_tracks_are_told_apart_and_forgotten():
    zones = CameraZones([zone("left", inertia=1), zone("lower", LOWER, inertia=1)])
    walk(zones, (0.2, 0.2), track="cam/1")
    walk(zones, (0.9, 0.9), track="cam/2")
    assert (zones.visited("cam/1"), zones.visited("cam/2")) == (("left",), ("lower",))
    zones.forget("cam/1")
    assert zones.visited("cam/1") == ()


def test_a_zone_may_take_some_classes_only():
    zones = CameraZones([zone("bay", WHOLE, classes=["truck"]), zone("yard", WHOLE)])
    assert at(zones, 0.5, 0.5) == ("yard",)
    assert at(zones, 0.5, 0.5, "truck") == ("bay", "yard")


def test_a_required_zone_admits_only_who_has_been_there():
    zones = CameraZones([zone("left", required=True, inertia=2), zone("lower", LOWER)])
    walk(zones, (0.9, 0.9), (0.9, 0.9), (0.4, 0.9))
    assert not zones.admits("cam/1", "person")
    walk(zones, (0.4, 0.9))
    assert zones.admits("cam/1", "person")
    walk(zones, *[(0.9, 0.9)] * 5)
    assert zones.admits("cam/1", "person")


def test_what_is_required_of_people_is_not_of_dogs():
    zones = CameraZones([zone("left", required=True, classes=["person"])])
    assert not zones.admits("cam/1", "person")
    assert zones.admits("cam/1", "dog")


def test_without_required_zones_everybody_is_admitted():
    assert CameraZones([]).admits("cam/1", "person")
    assert CameraZones([zone("left")]).admits("cam/1", "person")
