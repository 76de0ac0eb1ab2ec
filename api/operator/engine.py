"""``GET /api/engine/steps``: what the engine's last steps did, for `watchword trace`."""

from __future__ import annotations

from dataclasses import asdict

from fastapi import APIRouter
from pydantic import BaseModel, Field

from api.errors import ApiError
from api.services import Provided
from vlm_engine import EngineState

router = APIRouter(prefix="/api/engine", tags=["operator"])


class StepView(BaseModel):
    """One step; times in seconds, ``started`` on a monotonic clock."""

    started: float
    seconds: float
    encoder_seconds: float
    predicted_seconds: float = Field(description="What the step-time model said of the packed forward.")
    encoder_predicted_seconds: float = Field(description="What was predicted for the slices of pictures.")
    target_seconds: float = Field(description="How long the step was allowed to take; 0 without a bound.")
    decode_tokens: int
    prefill_tokens: int
    slices: int = Field(description="Slices of pictures' encodings.")
    running: int
    waiting: int
    preemptions: int


class StepsView(BaseModel):
    """Oldest first, at most 1,000."""

    steps: list[StepView]


@router.get("/steps", summary="The engine's last steps")
async def show_steps(services: Provided) -> StepsView:
    engine = services.engine
    if engine is None or engine.state not in (EngineState.READY, EngineState.DEAD):
        raise ApiError(503, "no engine runs in this process", code="engine_down")
    # A copy first: the engine's thread goes on adding steps, and a deque that changes can't be iterated over.
    return StepsView.model_validate({"steps": [asdict(record) for record in engine.steps.records()]})
