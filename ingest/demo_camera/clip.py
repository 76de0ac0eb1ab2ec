"""What the demo camera shows: a clip with real people, made while it runs from two photographs.

The photographs are part of the ultralytics package (``ultralytics/assets``), so nothing has to be downloaded. A window
pans and zooms over them like a camera on a motor: people come into view, stay, and leave, and between them there are
stretches in which nobody is to be seen.
"""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Protocol

import cv2
import numpy as np
from numpy.typing import NDArray

Picture = NDArray[np.uint8]
"""Height x width x 3, BGR."""


class ClipError(RuntimeError):
    """The clip can't be shown; the text says what is missing."""


class ClipSource(Protocol):
    """An endless moving picture."""

    @property
    def width(self) -> int:
        """Pixels; even, as H.264 asks."""
        ...

    @property
    def height(self) -> int:
        """Pixels; even."""
        ...

    def picture(self, seconds: float) -> Picture:
        """The picture at that time of the endless clip. Called by one thread, with times that never go back."""
        ...


@dataclass(frozen=True, slots=True)
class Waypoint:
    """The window at one moment: left, top and width in pixels of the photograph (the height follows from 4:3)."""

    seconds: float
    photo: str
    left: float
    top: float
    width: float


# A step from one photograph to the other is a cut; both sides of a cut, and both ends of the loop, show nobody.
WAYPOINTS = (
    Waypoint(0.0, "bus.jpg", 140, 0, 460),  # balconies
    Waypoint(1.5, "bus.jpg", 140, 10, 460),
    Waypoint(4.0, "bus.jpg", 0, 386, 690),  # two men walk in front of the bus
    Waypoint(8.0, "bus.jpg", 10, 388, 680),
    Waypoint(11.5, "bus.jpg", 120, 386, 690),  # one leaves to the left, another comes from the right
    Waypoint(14.0, "bus.jpg", 145, 392, 665),
    Waypoint(16.5, "bus.jpg", 365, 330, 270),  # the side of the bus
    Waypoint(18.0, "bus.jpg", 370, 330, 270),
    Waypoint(18.0, "zidane.jpg", 0, 0, 330),  # the crowd, out of focus
    Waypoint(19.5, "zidane.jpg", 5, 0, 330),
    Waypoint(22.0, "zidane.jpg", 0, 60, 880),  # one man in front
    Waypoint(25.0, "zidane.jpg", 40, 50, 880),
    Waypoint(28.0, "zidane.jpg", 320, 0, 960),  # and a second
    Waypoint(31.0, "zidane.jpg", 300, 10, 930),
    Waypoint(33.5, "zidane.jpg", 5, 0, 330),
    Waypoint(35.0, "zidane.jpg", 0, 0, 330),
)


class PhotoClip:
    """35 s that repeat for ever; the picture depends on the time alone."""

    duration = WAYPOINTS[-1].seconds

    def __init__(self, width: int = 640, height: int = 480) -> None:
        self.width = width
        self.height = height
        folder = photograph_folder()
        self._photos = {name: _read(folder / name) for name in sorted({point.photo for point in WAYPOINTS})}

    def picture(self, seconds: float) -> Picture:
        photo, left, top, width = window_at(seconds % self.duration)
        scale = self.width / width
        matrix = np.array([[scale, 0.0, -left * scale], [0.0, scale, -top * scale]])
        shown = cv2.warpAffine(
            self._photos[photo],
            matrix,
            (self.width, self.height),
            flags=cv2.INTER_LINEAR,
            borderMode=cv2.BORDER_REPLICATE,
        )
        return np.asarray(shown, dtype=np.uint8)


def window_at(seconds: float) -> tuple[str, float, float, float]:
    """Photograph, left, top and width at a time within the clip; the motion starts and ends gently at each waypoint."""
    for start, end in pairwise(WAYPOINTS):
        if start.seconds <= seconds < end.seconds and start.photo == end.photo:
            part = (seconds - start.seconds) / (end.seconds - start.seconds)
            eased = part * part * (3 - 2 * part)
            return (
                start.photo,
                start.left + (end.left - start.left) * eased,
                start.top + (end.top - start.top) * eased,
                start.width + (end.width - start.width) * eased,
            )
    last = WAYPOINTS[-1]
    return last.photo, last.left, last.top, last.width


def photograph_folder() -> Path:
    """Where the ultralytics package keeps its photographs; found without importing it (which takes seconds)."""
    spec = importlib.util.find_spec("ultralytics")
    places = list(spec.submodule_search_locations or ()) if spec else []
    if not places:
        raise ClipError("the ultralytics package is not installed, and the demo clip is made from its photographs")
    return Path(places[0]) / "assets"


def _read(path: Path) -> Picture:
    picture = cv2.imread(str(path), cv2.IMREAD_COLOR)
    if picture is None:
        raise ClipError(f"the demo clip needs {path}, which is missing or not a picture; reinstall ultralytics")
    return np.asarray(picture, dtype=np.uint8)
