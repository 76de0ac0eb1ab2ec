"""``GET /api/queue``: what waits for a description, and what was dropped and why."""

from __future__ import annotations

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field

from api.operator.parts import hub_of, reason_text
from api.services import Provided

router = APIRouter(prefix="/api/queue", tags=["operator"])


class DropView(BaseModel):
    camera: str
    reason: str
    reason_text: str
    count: int


class CameraQueueView(BaseModel):
    """One camera's part of the queue."""

    model_config = ConfigDict(from_attributes=True)

    camera: str
    waiting: int
    held: int = Field(description="Crops that are being described.")
    oldest_age: float | None
    bytes: int = Field(description="Of the pictures of both.")


class ConsumerView(BaseModel):
    """A process that describes."""

    model_config = ConfigDict(from_attributes=True)

    name: str
    held: int
    idle: float = Field(description="Seconds since it last did something with the queue.")


class QueueView(BaseModel):
    """Seconds and counts; drops since the counters began."""

    waiting: int = Field(description="Crops that wait for a describer.")
    depth: dict[str, int] = Field(description="The same by camera.")
    oldest_age: float | None = Field(description="Seconds since the oldest waiting crop's frame; null when none waits.")
    pending: int = Field(description="Crops that are being described.")
    dead: int = Field(description="Crops put aside after failing too often.")
    cameras: list[CameraQueueView]
    consumers: list[ConsumerView]
    dropped: int = Field(description="Sum of all drops.")
    drops: list[DropView]
    image_tokens: int | None = Field(description="Most image tokens of a crop now; null: as the engine is configured.")
    image_step: int = Field(description="Steps down on the ladder of image tokens; 0: none.")
    image_steps: int = Field(description="Steps that the ladder has; 0: it is off.")


@router.get("", summary="The queue of crops")
async def show_queue(services: Provided) -> QueueView:
    hub = hub_of(services)
    stats = await hub.queue_stats()
    ladder = services.ladder
    drops = [
        DropView(camera=camera, reason=reason, reason_text=reason_text(reason), count=count)
        for camera, reasons in sorted((await hub.drops()).items())
        for reason, count in sorted(reasons.items())
    ]
    return QueueView(
        waiting=stats.waiting,
        depth=dict(stats.depth),
        oldest_age=stats.oldest_age,
        pending=stats.pending,
        dead=stats.dead,
        cameras=[CameraQueueView.model_validate(queue) for queue in stats.cameras],
        consumers=[ConsumerView.model_validate(consumer) for consumer in stats.consumers],
        dropped=sum(drop.count for drop in drops),
        drops=drops,
        image_tokens=ladder.tokens if ladder is not None else None,
        image_step=ladder.step if ladder is not None else 0,
        image_steps=ladder.num_steps if ladder is not None else 0,
    )
