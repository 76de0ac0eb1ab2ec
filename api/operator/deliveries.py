"""``/api/deliveries``: who is told of events, how that fares, and a test message."""

from __future__ import annotations

import asyncio
from typing import Annotated

from fastapi import APIRouter, Depends, Path
from pydantic import BaseModel, Field

from api.errors import ApiError
from api.operator.parts import reason_text, refuse_cross_site, store_of
from api.services import Provided
from pipeline.clock import iso
from pipeline.delivery.deliverer import Target, targets_of
from pipeline.delivery.transport import DeliveryFailed
from pipeline.redaction import redact
from pipeline.store.deliveries import DELIVERED, FAILED, TargetState

router = APIRouter(prefix="/api/deliveries", tags=["operator"])
admin_router = APIRouter(prefix="/api/deliveries", tags=["operator"])

TargetPath = Annotated[str, Path(pattern=r"^[a-z0-9_-]{1,64}$", description="A target's name; `mqtt` is the broker.")]


class DroppedView(BaseModel):
    reason: str
    reason_text: str
    count: int


class TargetView(BaseModel):
    """Counts are over all processes and restarts; times in ISO 8601."""

    name: str
    kind: str = Field(description="webhook or mqtt.")
    address: str = Field(description="Scheme, host and port alone.")
    ok: bool = Field(description="Whether the last attempt worked; also true before the first.")
    events: list[str]
    rules: list[str]
    waiting: int = Field(description="Events of which something is still to be told.")
    oldest: str | None = Field(description="When the oldest of that came about.")
    delivered: int
    failed: int = Field(description="Attempts; the message went out again.")
    failures: int = Field(description="Failed attempts in a row.")
    dropped: list[DroppedView]
    last_success: str | None
    last_failure: str | None
    last_error: str | None
    owner: str | None = Field(description="The serve process that delivers; null while none does.")


class TargetList(BaseModel):
    targets: list[TargetView]


class TestAnswer(BaseModel):
    ok: bool
    error: str | None = Field(description="Why the message did not arrive.")


@router.get("", summary="Webhooks and MQTT, and how they fare")
async def list_targets(services: Provided) -> TargetList:
    config, store = services.config, store_of(services)
    targets = targets_of(config)
    states = await asyncio.to_thread(lambda: [store.deliveries.state(target.name) for target in targets])
    return TargetList(targets=[_view(target, state) for target, state in zip(targets, states, strict=True)])


@admin_router.post("/{name}/test", summary="Send a test message", dependencies=[Depends(refuse_cross_site)])
async def send_test(name: TargetPath, services: Provided) -> TestAnswer:
    """Sends a message of type `test`, which tells of nothing, and waits for the target's answer."""
    store_of(services)
    if services.deliverer is None or name not in {target.name for target in targets_of(services.config)}:
        raise ApiError(404, f"There is no target '{name}'.", code="target_not_found")
    try:
        await services.deliverer.test(name)
    except DeliveryFailed as failure:
        return TestAnswer(ok=False, error=redact(str(failure)))
    return TestAnswer(ok=True, error=None)


def _view(target: Target, state: TargetState) -> TargetView:
    counts = dict(state.counts or {})
    delivered, failed = counts.pop(DELIVERED, 0), counts.pop(FAILED, 0)
    return TargetView(
        name=target.name,
        kind=target.kind,
        address=target.address,
        ok=state.failures == 0,
        events=list(target.events),
        rules=list(target.rules),
        waiting=state.waiting,
        oldest=_time(state.oldest),
        delivered=delivered,
        failed=failed,
        failures=state.failures,
        dropped=[
            DroppedView(reason=name, reason_text=reason_text(name), count=n) for name, n in sorted(counts.items())
        ],
        last_success=_time(state.last_success),
        last_failure=_time(state.last_failure),
        last_error=redact(state.error) if state.error else None,
        owner=state.owner or None,
    )


def _time(seconds: float | None) -> str | None:
    return iso(seconds) if seconds is not None else None
