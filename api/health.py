"""``/health/live``: the process answers. ``/health/ready``: every part that this process needs works."""

from __future__ import annotations

import asyncio
import logging

from fastapi import APIRouter, Response
from pydantic import BaseModel, Field
from sqlalchemy.exc import SQLAlchemyError

from api.services import Provided, Services
from pipeline.logs import ThrottledLogger
from pipeline.reasons import REASON_TEXT, Reason
from vlm_engine.engine import EngineState, VLMEngine

_log = ThrottledLogger(logging.getLogger(__name__))

PART_TIMEOUT_S = 2.0

router = APIRouter(prefix="/health", tags=["health"])


class PartHealth(BaseModel):
    ok: bool
    state: str = Field(description="A word for programs.")
    reason: str = Field("", description="What is the matter, for people.")


class Readiness(BaseModel):
    ready: bool
    parts: dict[str, PartHealth]


@router.get("/live", summary="Whether the process answers")
async def live() -> dict[str, str]:
    return {"status": "ok"}


@router.get("", summary="Whether the process answers and its engine lives", responses={503: {"model": PartHealth}})
async def health(services: Provided, response: Response) -> PartHealth:
    """What clients of vLLM ask: 503 only when the engine is dead. ``/health/ready`` says more."""
    engine = services.engine
    if engine is not None and engine.state is EngineState.DEAD:
        response.status_code = 503
        return _engine(engine)
    return PartHealth(ok=True, state="ok")


@router.get("/ready", summary="Whether every part works", responses={503: {"model": Readiness}})
async def ready(services: Provided, response: Response) -> Readiness:
    """503 with a reason for each part that doesn't."""
    health = await readiness(services)
    if not health.ready:
        response.status_code = 503
    return health


async def readiness(services: Services) -> Readiness:
    """Looks at every part that this process was given."""
    parts: dict[str, PartHealth] = {}
    if services.engine is not None:
        parts["engine"] = _engine(services.engine)
    if services.store is not None:
        parts["store"] = await _store(services)
    if services.hub is not None:
        parts["redis"] = await _redis(services)
    return Readiness(ready=all(part.ok for part in parts.values()), parts=parts)


def _engine(engine: VLMEngine) -> PartHealth:
    state, error = engine.state, engine.error
    if state is EngineState.READY:
        return PartHealth(ok=True, state=state.value)
    if error is not None:
        return PartHealth(ok=False, state="failed" if state is EngineState.STOPPED else state.value, reason=error)
    reason = "The model is loading." if state is EngineState.LOADING else "The engine has not been started."
    return PartHealth(ok=False, state=state.value, reason=reason)


async def _store(services: Services) -> PartHealth:
    store = services.store
    if store is None:
        return PartHealth(ok=True, state="absent")
    try:
        async with asyncio.timeout(PART_TIMEOUT_S):
            await asyncio.to_thread(store.list_events, limit=1)
    except (SQLAlchemyError, TimeoutError) as error:
        # The error's own text may hold the database's URL.
        _log.warning("store", "The event store does not answer: %s", type(error).__name__)
        return PartHealth(ok=False, state="down", reason="The event store does not answer.")
    return PartHealth(ok=True, state="ok")


async def _redis(services: Services) -> PartHealth:
    hub = services.hub
    if hub is None:
        return PartHealth(ok=True, state="absent")
    down = PartHealth(ok=False, state=Reason.REDIS_DOWN.value, reason=REASON_TEXT[Reason.REDIS_DOWN])
    try:
        async with asyncio.timeout(PART_TIMEOUT_S):
            answers = await hub.ping()
    except TimeoutError:
        return down
    return PartHealth(ok=True, state="ok") if answers else down
