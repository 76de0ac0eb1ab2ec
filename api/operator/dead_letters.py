"""``/api/queue/dead``: crops that were put aside after failing too often."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Path, Query, Response
from pydantic import BaseModel, Field

from api.errors import ApiError
from api.operator.parts import hub_of, reason_text, refuse_cross_site
from api.services import Provided
from pipeline.clock import iso
from pipeline.queue.dead_letters import DeadLetter, Replayed

router = APIRouter(prefix="/api/queue/dead", tags=["operator"])

LetterPath = Annotated[str, Path(pattern=r"^[0-9]{1,19}-[0-9]{1,19}$", description="A dead letter's id.")]


class DeadLetterView(BaseModel):
    """One crop that was put aside. Times are ISO 8601 UTC."""

    id: str
    camera: str
    crop_id: str
    track: str
    time: str = Field(description="When the frame arrived.")
    put_aside: str
    reason: str = Field(description="Of the last failure.")
    reason_text: str
    deliveries: int = Field(description="How often the crop had been handed out.")
    picture_url: str | None = Field(description="null: no longer kept, so it can't be queued again.")


class DeadLetterList(BaseModel):
    letters: list[DeadLetterView] = Field(description="Newest first.")


class ReplayAnswer(BaseModel):
    queued: bool


@router.get("", summary="Crops that were put aside")
async def list_dead(services: Provided, limit: Annotated[int, Query(ge=1, le=1000)] = 50) -> DeadLetterList:
    return DeadLetterList(letters=[view(letter) for letter in await hub_of(services).dead_letters.newest(limit)])


@router.get("/{letter}/crop.jpg", summary="A dead letter's picture", response_class=Response)
async def show_dead_picture(letter: LetterPath, services: Provided) -> Response:
    picture = await hub_of(services).dead_letters.picture(letter)
    if picture is None:
        raise _not_found(letter)
    return Response(picture, media_type="image/jpeg", headers={"Cache-Control": "private, no-cache"})


@router.post(
    "/{letter}/replay",
    summary="Queue a dead letter's crop once more",
    status_code=202,
    dependencies=[Depends(refuse_cross_site)],
)
async def replay_dead(letter: LetterPath, services: Provided) -> ReplayAnswer:
    """Described with the model and the words that are configured now. Its drop is taken off the sums."""
    deadline_s = services.config.describer.on_demand_deadline_s
    done = await hub_of(services).dead_letters.replay(letter, deadline_s)
    if done is Replayed.UNKNOWN:
        raise _not_found(letter)
    if done is Replayed.NO_PICTURE:
        raise ApiError(409, f"The picture of dead letter '{letter}' is no longer kept.", code="no_picture")
    return ReplayAnswer(queued=True)


@router.delete(
    "/{letter}", summary="Throw a dead letter away", status_code=204, dependencies=[Depends(refuse_cross_site)]
)
async def drop_dead(letter: LetterPath, services: Provided) -> None:
    if not await hub_of(services).dead_letters.drop(letter):
        raise _not_found(letter)


def view(letter: DeadLetter) -> DeadLetterView:
    """As the API shows it."""
    message = letter.message
    return DeadLetterView(
        id=letter.id,
        camera=message.camera,
        crop_id=message.crop_id,
        track=message.track,
        time=iso(message.time),
        put_aside=iso(letter.buried),
        reason=letter.reason,
        reason_text=reason_text(letter.reason),
        deliveries=letter.deliveries,
        picture_url=f"/api/queue/dead/{letter.id}/crop.jpg" if letter.has_picture else None,
    )


def _not_found(letter: str) -> ApiError:
    return ApiError(404, f"There is no dead letter '{letter}', or it has no picture.", code="dead_letter_not_found")
