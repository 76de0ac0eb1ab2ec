"""Alert rules: which events somebody wants to hear of."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal
from zoneinfo import ZoneInfo

from pydantic import Field, StringConstraints, field_validator, model_validator

from pipeline.config.base import Section
from pipeline.config.camera import CameraId
from pipeline.config.schedule import ScheduleWindow

TargetName = Annotated[str, StringConstraints(pattern=r"^[a-z0-9_-]{1,64}$")]
Phrase = Annotated[str, StringConstraints(min_length=1, max_length=200)]


class AlertTime(ScheduleWindow):
    """Hours of certain days. Hours that end before they begin go on into the next day."""

    timezone: str = Field(
        "",
        title="Time zone",
        description="Such as Europe/Berlin; empty: that of the machine (in a container often UTC).",
        max_length=64,
    )

    @field_validator("timezone")
    @classmethod
    def _known_zone(cls, value: str) -> str:
        if value:
            try:
                ZoneInfo(value)
            except (ValueError, OSError, KeyError):
                raise ValueError("is no known time zone; names are those of IANA, such as Europe/Berlin") from None
        return value

    def holds_at(self, at: float) -> bool:
        """Whether ``at`` (seconds since the epoch) is within, on the clocks of that zone."""
        local = datetime.fromtimestamp(at, ZoneInfo(self.timezone) if self.timezone else None)
        return self.holds(local.weekday(), local.hour * 60 + local.minute)


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
