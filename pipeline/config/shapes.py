"""Polygons in a camera's picture."""

from __future__ import annotations

import math
from typing import Annotated

from pydantic import AfterValidator

Point = tuple[float, float]
MOST_POINTS = 100
LEAST_AREA = 1e-5
"""Of the picture: a line or a dot is a mistake."""


def _polygon(points: tuple[Point, ...]) -> tuple[Point, ...]:
    if not 3 <= len(points) <= MOST_POINTS:
        raise ValueError(f"a polygon has 3 to {MOST_POINTS} points, this one has {len(points)}")
    for x, y in points:
        if not (math.isfinite(x) and math.isfinite(y) and 0 <= x <= 1 and 0 <= y <= 1):
            raise ValueError(f"point [{x:g}, {y:g}] lies outside the picture; x and y are shares of it, 0 to 1")
    turned = zip(points, points[1:] + points[:1], strict=True)
    if abs(sum(x1 * y2 - x2 * y1 for (x1, y1), (x2, y2) in turned)) / 2 < LEAST_AREA:
        raise ValueError("the polygon has no area")
    return points


Polygon = Annotated[tuple[Point, ...], AfterValidator(_polygon)]
"""Corners in order, each ``[x, y]`` as a share of the picture's width and height; the last joins the first."""
