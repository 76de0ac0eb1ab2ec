"""Named areas of a camera's picture."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, StringConstraints

from pipeline.config.base import Section
from pipeline.config.detector import ClassName
from pipeline.config.shapes import Polygon

ZoneName = Annotated[str, StringConstraints(min_length=1, max_length=64, strip_whitespace=True)]


class ZoneConfig(Section):
    """A person is in a zone while the middle of the lower edge of the box, the feet, is."""

    name: ZoneName = Field(title="Name", description="What events and searches call it; at most 64 characters.")
    points: Polygon = Field(
        title="Points", description="Corners [x, y] in order, each a share of the picture's width and height, 0 to 1."
    )
    classes: tuple[ClassName, ...] = Field(
        (), title="Classes", description="Only these count as being in it; default: all that the camera looks for."
    )
    required: bool = Field(
        False,
        title="Required",
        description="Where a camera has such zones, only those who have been in one of them make an event.",
    )
    inertia: int = Field(
        3,
        title="Inertia",
        description="So many frames in a row in the zone make somebody be in it, as many outside end that.",
        ge=1,
        le=100,
    )
