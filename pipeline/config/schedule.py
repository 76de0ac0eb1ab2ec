"""When a camera is watched: days and times of a time zone."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from functools import lru_cache
from typing import Annotated, Any, Literal
from zoneinfo import ZoneInfo

from pydantic import BeforeValidator, Field, field_validator, model_validator

from pipeline.config.base import Section

Day = Literal["mon", "tue", "wed", "thu", "fri", "sat", "sun"]
DAYS: tuple[Day, ...] = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")

MINUTES_A_DAY = 24 * 60
LOOK_AHEAD = 8 * MINUTES_A_DAY
"""A schedule repeats itself every week; a day more for clocks that are put forward or back."""
_CLOCK = re.compile(r"([01]?\d|2[0-4]):([0-5]\d)")


def _time_of_day(value: Any) -> Any:
    """``"18:00"`` as it is; 1080 too, which is what YAML 1.1 makes of an unquoted 18:00 (a number to the base 60)."""
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MINUTES_A_DAY:
        return f"{value // 60:02}:{value % 60:02}"
    match = _CLOCK.fullmatch(value) if isinstance(value, str) else None
    if match is None or minutes_of(value) > MINUTES_A_DAY:
        raise ValueError("must be a time of day such as 07:30, from 00:00 to 24:00")
    return value


TimeOfDay = Annotated[str, BeforeValidator(_time_of_day)]


def minutes_of(clock: str) -> int:
    """``"07:30"`` -> 450."""
    hours, _, minutes = clock.partition(":")
    return int(hours) * 60 + int(minutes)


class ScheduleWindow(Section):
    """Hours of some days. One that ends before it starts goes on into the next day."""

    days: tuple[Day, ...] = Field(
        DAYS, title="Days", description="mon to sun on which it starts; default: every day.", min_length=1
    )
    start: TimeOfDay = Field("00:00", title="Start", description="Time of day, such as 18:00.")
    end: TimeOfDay = Field("24:00", title="End", description="Time of day; before or at the start: of the next day.")

    def holds(self, weekday: int, minute: int) -> bool:
        """Whether it is open at that minute of that day (0 is Monday)."""
        start, end = minutes_of(self.start), minutes_of(self.end)
        if start < end:
            return DAYS[weekday] in self.days and start <= minute < end
        today, yesterday = DAYS[weekday] in self.days, DAYS[weekday - 1] in self.days
        return (today and minute >= start) or (yesterday and minute < end)


class ScheduleConfig(Section):
    """Hours in which a camera is watched; at all others it is disconnected.

    What counts is what a clock on the wall shows: with the change to summer time an hour is left out, with the one back
    an hour comes twice, and a window that holds it is open both times.
    """

    timezone: str = Field(
        title="Time zone", description="A name such as Europe/Berlin or UTC; summer time is kept.", max_length=64
    )
    windows: tuple[ScheduleWindow, ...] = Field(
        title="Windows",
        description="`days`, `start`, `end` each; the camera is watched within any of them.",
        min_length=1,
        max_length=50,
    )

    @field_validator("timezone")
    @classmethod
    def _known_zone(cls, name: str) -> str:
        try:
            _zone(name)
        except (KeyError, ValueError, OSError):
            raise ValueError(f"{name!r} is no time zone; names are such as Europe/Berlin or UTC") from None
        return name

    @model_validator(mode="after")
    def _sane(self) -> ScheduleConfig:
        if any(len(set(window.days)) < len(window.days) for window in self.windows):
            raise ValueError("windows: a day is named twice in one window")
        return self

    def is_open(self, now: float) -> bool:
        """Whether the camera is watched at ``now`` (seconds since the epoch)."""
        local = datetime.fromtimestamp(now, _zone(self.timezone))
        minute = local.hour * 60 + local.minute
        return any(window.holds(local.weekday(), minute) for window in self.windows)

    def next_change(self, now: float) -> float | None:
        """When :meth:`is_open` changes next, in seconds since the epoch; None: never.

        Looked up minute by minute: clocks change on whole minutes too, so that nothing needs to be known about them.
        """
        state = self.is_open(now)
        first = int(now // 60) + 1
        return next(
            (float(minute * 60) for minute in range(first, first + LOOK_AHEAD) if self.is_open(minute * 60) != state),
            None,
        )


@lru_cache(maxsize=64)
def _zone(name: str) -> ZoneInfo:
    if not name or name.startswith(("/", ".")):
        raise ValueError(name)
    zone = ZoneInfo(name)
    datetime.now(UTC).astimezone(zone)
    return zone
