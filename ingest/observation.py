"""What happens in ingest, for whoever wants to tell people (`watchword demo` prints a line for each)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum


class ObservationKind(StrEnum):
    CAMERA = "camera"
    """A camera's state changed."""
    PERSON_SEEN = "person_seen"
    PERSON_LEFT = "person_left"
    CROP = "crop"
    """A picture of a person was handed to the queue."""
    REDIS = "redis"
    """Redis went away or came back."""


@dataclass(frozen=True, slots=True)
class Observation:
    """``text`` is a line for people, without secrets; ``camera`` and ``track`` are empty where they don't apply."""

    kind: ObservationKind
    time: float
    text: str
    camera: str = ""
    track: str = ""


Observer = Callable[[Observation], None]
"""Called from ingest's threads; must return soon and not raise."""


def ignore(observation: Observation) -> None:
    """An observer that does nothing."""
