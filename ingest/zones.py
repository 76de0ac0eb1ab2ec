"""In which of a camera's zones somebody is, and has been."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ingest.polygon import contains
from pipeline.config import ZoneConfig
from pipeline.messages import Box


@dataclass(slots=True)
class _Stay:
    """``streak``: frames in a row that disagree with ``inside``."""

    inside: bool = False
    streak: int = 0
    visited: bool = False

    def see(self, there: bool, inertia: int) -> None:
        self.streak = self.streak + 1 if there != self.inside else 0
        if self.streak >= inertia:
            self.inside, self.streak = there, 0
        self.visited |= self.inside


class CameraZones:
    """The zones of one camera. The tracks' part is for one thread.

    Somebody is in a zone while the middle of the box's lower edge is: with a camera that looks down at the ground that
    is where the feet are. A few frames in a row (``inertia``) must say so, for boxes tremble.
    """

    def __init__(self, zones: Sequence[ZoneConfig]) -> None:
        self._zones = tuple(zones)
        self._stays: dict[str, dict[str, _Stay]] = {}

    def at(self, box: Box, width: int, height: int, label: str) -> tuple[str, ...]:
        """Names of the zones that somebody stands in on one frame of that size, in the configuration's order."""
        x, y = foot_point(box, width, height)
        return tuple(zone.name for zone in self._zones if _takes(zone, label) and contains(zone.points, x, y))

    def see(self, track: str, box: Box, width: int, height: int, label: str) -> None:
        """Takes where a track is on the next frame."""
        if not self._zones:
            return
        stays = self._stays.setdefault(track, {})
        there = self.at(box, width, height, label)
        for zone in self._zones:
            stays.setdefault(zone.name, _Stay()).see(zone.name in there, zone.inertia)

    def visited(self, track: str) -> tuple[str, ...]:
        """Names of the zones that the track has been in so far."""
        return tuple(name for name, stay in self._stays.get(track, {}).items() if stay.visited)

    def admits(self, track: str, label: str) -> bool:
        """Whether the track makes an event: it has been in one of the zones that are required of its class, if any."""
        required = {zone.name for zone in self._zones if zone.required and _takes(zone, label)}
        return not required or not required.isdisjoint(self.visited(track))

    def forget(self, track: str) -> None:
        self._stays.pop(track, None)


def foot_point(box: Box, width: int, height: int) -> tuple[float, float]:
    """Middle of the lower edge as shares of the frame, within it: a box that the frame cuts off ends on its edge."""
    below_one = 1 - 1e-6
    return min((box[0] + box[2]) / 2 / width, below_one), min(box[3] / height, below_one)


def _takes(zone: ZoneConfig, label: str) -> bool:
    return not zone.classes or label in zone.classes
