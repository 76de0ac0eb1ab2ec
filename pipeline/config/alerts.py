"""Alert rules: which events somebody wants to hear of."""

from __future__ import annotations

import re
from datetime import time
from typing import Annotated, Any, Literal
from zoneinfo import ZoneInfo

from pydantic import Field, StringConstraints, field_validator, model_validator

from pipeline.config.base import Section
from pipeline.config.camera import CameraId

Day = Literal["mon", "tue", "wed", "thu", "fri", "sat", "sun"]
DAYS: tuple[Day, ...] = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
TargetName = Annotated[str, StringConstraints(pattern=r"^[a-z0-9_-]{1,64}$")]
Phrase = Annotated[str, StringConstraints(min_length=1, max_length=200)]
_CLOCK = re.compile(r"([01]?[0-9]|2[0-4]):([0-5][0-9])")
_WHOLE_DAY = 24 * 60


class AlertTime(Section):
    """Hours of certain days. Hours that end before they begin go on into the next day."""

    days: tuple[Day, ...] = Field(
        DAYS, title="Days", description="mon, tue, wed, thu, fri, sat, sun: on which the hours begin.", min_length=1
    )
    start: str = Field("00:00", title="From", description="HH:MM, included.")
    end: str = Field("24:00", title="To", description="HH:MM, not included; 24:00 is midnight.")
    time_zone: str = Field(
        "",
        title="Time zone",
        description="Such as Europe/Berlin; empty: that of the machine (in a container often UTC).",
    )

    @field_validator("start", "end", mode="before")
    @classmethod
    def _clock_time(cls, value: Any) -> Any:
        # YAML 1.1 reads 22:00 without quotes as a number to the base of 60: 1320.
        if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _WHOLE_DAY:
            value = f"{value // 60:02}:{value % 60:02}"
        if isinstance(value, str) and (not (match := _CLOCK.fullmatch(value)) or minutes(match[0]) > _WHOLE_DAY):
            raise ValueError("must be a time of day from 00:00 to 24:00, such as 22:30")
        return value

    @field_validator("time_zone")
    @classmethod
    def _known_zone(cls, value: str) -> str:
        if value:
            try:
                ZoneInfo(value)
            except (ValueError, OSError, KeyError):
                raise ValueError("is no known time zone; names are those of IANA, such as Europe/Berlin") from None
        return value

    @model_validator(mode="after")
    def _not_empty(self) -> AlertTime:
        if minutes(self.start) % _WHOLE_DAY == minutes(self.end):
            raise ValueError(f"start and end are both {self.start}; leave both out for the whole day")
        return self


class AlertWords(Section):
    """Words of the description, compared as the search does: without case, diacritics and punctuation."""

    any: tuple[Phrase, ...] = Field(
        (),
        title="Any",
        description="At least one must be there. Several words in one entry must follow each other; "
        "`jack*` is the beginning of a word.",
    )
    all: tuple[Phrase, ...] = Field((), title="All", description="Each must be there.")
    none: tuple[Phrase, ...] = Field((), title="None", description="None may be there.")

    @field_validator("any", "all", "none")
    @classmethod
    def _say_something(cls, phrases: tuple[str, ...]) -> tuple[str, ...]:
        for phrase in phrases:
            if not any(c.isalnum() for c in phrase):
                raise ValueError(f"{phrase!r} holds no letter or digit, so it would never be found")
        return phrases


class AlertRule(Section):
    """Which events are worth an alert. All conditions that are given must hold; each event matches a rule once."""

    name: TargetName = Field(title="Name", description="Shown on the page and in messages: a-z, 0-9, _ and -.")
    on: Literal["started", "described", "ended"] = Field(
        "described",
        title="Earliest",
        description="Not before the person was seen, is described (a draft counts), or is gone. Conditions that come "
        "true later match then.",
    )
    cameras: tuple[CameraId, ...] = Field((), title="Cameras", description="Any of these; empty: all.")
    zones: tuple[str, ...] = Field((), title="Zones", description="The person was in any of these; empty: anywhere.")
    labels: tuple[str, ...] = Field((), title="Labels", description="Any of these; empty: all.")
    time: tuple[AlertTime, ...] = Field((), title="Time", description="In any of these hours; empty: always.")
    words: AlertWords = Field(AlertWords(), title="Words", description="Words of the description.")
    attributes: dict[str, str] = Field(
        {},
        title="Attributes",
        description="Path and value, such as {upper.colour: red}; one word of a longer value is enough. All must hold.",
    )
    min_duration_s: float = Field(
        0.0, title="Least stay", description="Seconds that the person has been in view.", ge=0, le=86_400
    )
    cooldown_s: float = Field(
        0.0,
        title="Cooldown",
        description="So long after a match, events of the same camera don't match again (they are counted).",
        ge=0,
        le=7 * 86_400,
    )

    @property
    def needs_words(self) -> bool:
        """Whether it can't hold before there is a description."""
        words = self.words
        return bool(words.any or words.all or words.none or self.attributes)

    @model_validator(mode="after")
    def _possible(self) -> AlertRule:
        if self.on == "started" and self.needs_words:
            raise ValueError(
                f"alert {self.name!r} asks for words or attributes, which nobody knows when a person is first seen; "
                "set on to described"
            )
        return self


def minutes(clock: str) -> int:
    """``22:30`` -> 1350."""
    hours, _, rest = clock.partition(":")
    return int(hours) * 60 + int(rest)


def time_of(clock: str) -> time:
    """``24:00`` is 00:00."""
    total = minutes(clock) % _WHOLE_DAY
    return time(total // 60, total % 60)
