"""When a camera is watched: windows on days, over midnight, and where clocks are put forward and back."""

from __future__ import annotations

from datetime import datetime
from zoneinfo import ZoneInfo

import pytest
from pydantic import ValidationError

from pipeline.config import CameraConfig, ScheduleConfig
from pipeline.config.load import ConfigProblem, load_config

BERLIN = "Europe/Berlin"


def at(text: str, zone: str = BERLIN, fold: int = 0) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone), fold=fold).timestamp()


def schedule(*windows: dict, timezone: str = BERLIN) -> ScheduleConfig:
    return ScheduleConfig.model_validate({"timezone": timezone, "windows": list(windows)})


def test_a_window_over_midnight_belongs_to_the_day_on_which_it_starts():
    nights = schedule({"days": ["fri"], "start": "22:00", "end": "06:00"})
    assert not nights.is_open(at("2026-03-06 21:59"))  # a Friday
    assert nights.is_open(at("2026-03-06 22:00"))
    assert nights.is_open(at("2026-03-07 05:59"))
    assert not nights.is_open(at("2026-03-07 06:00"))
    assert not nights.is_open(at("2026-03-07 23:00"))
    assert nights.next_change(at("2026-03-06 12:00")) == at("2026-03-06 22:00")
    assert nights.next_change(at("2026-03-06 23:30")) == at("2026-03-07 06:00")
    assert nights.next_change(at("2026-03-07 12:00")) == at("2026-03-13 22:00")


def test_windows_that_touch_or_overlap_are_one():
    week = schedule({"start": "00:00", "end": "12:00"}, {"start": "11:00", "end": "24:00"})
    assert week.is_open(at("2026-05-05 12:00"))
    assert week.next_change(at("2026-05-05 12:00")) is None


def test_in_spring_an_hour_is_left_out():
    """On 29 March 2026 Berlin's clocks go from 02:00 to 03:00."""
    nights = schedule({"start": "02:30", "end": "04:00"})
    opens, closes = at("2026-03-29 03:00"), at("2026-03-29 04:00")
    assert nights.next_change(at("2026-03-29 01:59")) == opens
    assert nights.is_open(opens)
    assert nights.next_change(opens) == closes == opens + 3600


def test_in_autumn_an_hour_comes_twice():
    """On 25 October 2026 Berlin's clocks go from 03:00 back to 02:00."""
    nights = schedule({"start": "02:00", "end": "02:30"})
    first, second = at("2026-10-25 02:00"), at("2026-10-25 02:00", fold=1)
    assert second - first == 3600
    assert [nights.is_open(moment) for moment in (first, first + 1800, second, second + 1800)] == [
        True, False, True, False,
    ]  # fmt: skip
    assert nights.next_change(first) == first + 1800
    assert nights.next_change(first + 1800) == second
    long = schedule({"start": "22:00", "end": "06:00"})
    assert long.next_change(at("2026-10-24 22:00")) - at("2026-10-24 22:00") == 9 * 3600


def test_zones_of_half_hours_and_of_the_other_side():
    kathmandu = schedule({"days": ["mon"], "start": "09:15", "end": "09:45"}, timezone="Asia/Kathmandu")
    assert kathmandu.next_change(at("2026-06-01 00:00", "Asia/Kathmandu")) == at("2026-06-01 09:15", "Asia/Kathmandu")
    auckland = schedule({"days": ["mon"], "start": "00:00", "end": "01:00"}, timezone="Pacific/Auckland")
    assert auckland.is_open(at("2026-05-31 12:30", "UTC"))  # Sunday in Greenwich


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"timezone": "Europe/Berln", "windows": [{}]}, "'Europe/Berln' is no time zone"),
        ({"timezone": "../../etc/passwd", "windows": [{}]}, "is no time zone"),
        ({"timezone": BERLIN, "windows": []}, "at least 1"),
        ({"timezone": BERLIN, "windows": [{"start": "25:00"}]}, "a time of day such as 07:30"),
        ({"timezone": BERLIN, "windows": [{"start": "24:30"}]}, "a time of day such as 07:30"),
        ({"timezone": BERLIN, "windows": [{"days": ["monday"]}]}, "'mon'"),
        ({"timezone": BERLIN, "windows": [{"days": ["mon", "mon"]}]}, "named twice"),
        ({"windows": [{}]}, "timezone"),
    ],
)
def test_what_is_no_schedule(settings, told):
    with pytest.raises(ValidationError, match=told):
        ScheduleConfig.model_validate(settings)


def test_unquoted_times_in_yaml_are_what_they_look_like(tmp_path):
    """YAML 1.1 reads 18:00 as a number to the base 60, and 07:00 as text."""
    file = tmp_path / "watchword.yaml"
    file.write_text(
        "cameras:\n  - id: door\n    url: rtsp://h/x\n    schedule:\n      timezone: Europe/Berlin\n      windows:\n"
        "        - days: [mon, tue]\n          start: 18:00\n          end: 07:00\n"
    )
    [camera] = load_config(file, {}).cameras
    assert camera.schedule is not None
    assert (camera.schedule.windows[0].start, camera.schedule.windows[0].end) == ("18:00", "07:00")


def test_a_wrong_window_is_told_with_its_line(tmp_path):
    file = tmp_path / "watchword.yaml"
    file.write_text(
        "cameras:\n  - id: door\n    url: rtsp://h/x\n    schedule:\n      timezone: UTC\n      windows:\n"
        "        - dayz: [mon]\n"
    )
    with pytest.raises(ConfigProblem) as error:
        load_config(file, {})
    assert "line 7: cameras[0].schedule.windows[0].dayz: unknown key; did you mean 'days'?" in str(error.value)


def test_a_camera_without_a_schedule_has_none():
    assert CameraConfig(id="a", url="rtsp://h/x").schedule is None
