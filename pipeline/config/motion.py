"""When a camera's frames are worth the detector's time."""

from __future__ import annotations

from pydantic import Field

from pipeline.config.base import Section
from pipeline.config.shapes import Polygon


class MotionConfig(Section):
    """Frames in which nothing moves are not given to the detector."""

    enabled: bool = Field(True, title="Enabled", description="False: the detector looks at every frame.")
    threshold: float = Field(
        8.0,
        title="Threshold",
        description="Grey levels of 255 by which a part of the picture must differ from how it has looked lately.",
        gt=0,
        le=255,
    )
    min_area: float = Field(
        0.0005,
        title="Least area",
        description="Share of the picture that must differ; two parts of about 96 x 54 at least.",
        ge=0,
        le=0.5,
    )
    hold_s: float = Field(
        2.0, title="Hold", description="So long after the last motion the detector still looks.", ge=0, le=3600
    )
    look_every_s: float = Field(
        10.0,
        title="Look every",
        description="Without motion, a frame is looked at so often all the same. 0: never.",
        ge=0,
        le=86_400,
    )
    still_fps: float = Field(
        2.0,
        title="Still frames per second",
        description="While somebody is in view and nothing moves, so many frames a second are looked at.",
        gt=0,
        le=60,
    )
    masks: tuple[Polygon, ...] = Field(
        (), title="Motion masks", description="Polygons whose motion doesn't count; people are still found there."
    )
