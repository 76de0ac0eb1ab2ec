"""How long events are kept."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from pipeline.config.base import Section

Days = Annotated[float, Field(gt=0, le=36_500)]


class RetentionConfig(Section):
    """How long events and their pictures are kept. What is active or being described stays."""

    days: Days | None = Field(30.0, title="Days", description="Events go so long after they ended; null: never by age.")
    labels: dict[str, Days | None] = Field(
        {}, title="Days by label", description="In place of `days` for events of that label, such as {person: 90}."
    )
    max_gib: Annotated[float, Field(gt=0)] | None = Field(
        20.0,
        title="GiB of pictures",
        description="When pictures take more, the oldest events go, whatever their label; null: no such limit.",
    )
    every_s: float = Field(600.0, title="Interval", description="Seconds between two looks.", ge=1)
    batch: int = Field(
        250, title="Batch", description="Events deleted in one transaction; others write in between.", ge=1, le=5000
    )
