"""What rules and messages look at: an event as it stands, and what of it has been told already. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from pipeline.config.delivery import Change
from pipeline.messages import DescriptionState, EventState
from pipeline.reasons import Reason

_NO_WORDS = (DescriptionState.FAILED, DescriptionState.EXPIRED)


@dataclass(frozen=True, slots=True)
class Facts:
    """An event as it stands. Times in seconds since the epoch; ``description``: None, or a model's words."""

    camera: str
    label: str
    zones: tuple[str, ...]
    state: EventState
    description_state: DescriptionState
    description: str | None
    attributes: Mapping[str, Any] | None
    reason: Reason
    first_seen: float
    last_seen: float

    @property
    def over(self) -> bool:
        """Whether the person is gone."""
        return self.state != EventState.ACTIVE


@dataclass(frozen=True, slots=True)
class Told:
    """What of an event has been told. Kept with the event, so that nothing is told twice, whoever looks and whenever.

    Attributes:
        words: a hash of the description and of whether it is final; None before there is one.
        failed: the reason for which no words come; None when some may come.
        muted: the event was old when it was first looked at; nothing of it is told.
        quiet: rules that matched within their cooldown: they don't match this event again.
    """

    over: bool = False
    words: str | None = None
    failed: str | None = None
    zones: tuple[str, ...] = ()
    quiet: tuple[str, ...] = ()
    muted: bool = False

    def to_json(self) -> dict[str, Any]:
        return {
            "over": self.over,
            "words": self.words,
            "failed": self.failed,
            "zones": list(self.zones),
            "quiet": list(self.quiet),
            "muted": self.muted,
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Told:
        return cls(
            bool(value.get("over")),
            value.get("words"),
            value.get("failed"),
            tuple(value.get("zones") or ()),
            tuple(value.get("quiet") or ()),
            bool(value.get("muted")),
        )


def news_of(told: Told | None, facts: Facts) -> tuple[list[Change], Told]:
    """What has come about since ``told`` (None: the event is new), and what is told once that is.

    A description is news when its words or its being final changed, never by comparing it with other events' words
    (R33). That a draft failed to be followed by a final description is none while the draft's words stand.
    """
    before = told or Told()
    now = replace(
        before,
        over=facts.over,
        words=_digest(facts),
        failed=facts.reason.value if facts.description_state in _NO_WORDS and facts.description is None else None,
        zones=tuple(sorted(facts.zones)),
    )
    changes: list[Change] = []
    if told is None:
        changes.append("started")
    if now.words is not None and now.words != before.words:
        changes.append("described")
    if now.over and not before.over:
        changes.append("ended")
    if now.failed is not None and now.failed != before.failed:
        changes.append("failed")
    if told is not None and (now.zones != before.zones or (before.over and not now.over)):
        changes.append("updated")
    return changes, now


def _digest(facts: Facts) -> str | None:
    if facts.description is None:
        return None
    final = facts.description_state == DescriptionState.FINAL
    return hashlib.sha256(f"{int(final)} {facts.description}".encode(errors="replace")).hexdigest()[:16]
