"""A description that somebody asks for: the stored picture goes through the queue once more."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from pipeline.clock import Clock
from pipeline.messages import ChangeKind, EventChange
from pipeline.queue.health import QueueUnavailable
from pipeline.queue.hub import CameraHub
from pipeline.store import Answer, Asking, EventStore


async def describe_again(
    store: EventStore, hub: CameraHub, event_id: str, *, force: bool, deadline_s: float, clock: Clock
) -> Asking | None:
    """Queues the event's best picture, behind whatever its camera has waiting, for any describer to take (R50).

    The model is shown the very picture that the event has (R51), with the words that are configured now. Words that are
    there stay until others come, and for good when none come within ``deadline_s``. None: there is no such event.
    Raises :class:`QueueUnavailable`: then nothing has changed.
    """
    asking = await asyncio.to_thread(store.ask_description, event_id, clock.now() + deadline_s, force=force)
    if asking is None or asking.answer != Answer.ACCEPTED or asking.message is None or asking.jpeg is None:
        return asking
    try:
        await hub.publish_crop(asking.message, asking.jpeg)
    except QueueUnavailable:
        await asyncio.to_thread(store.withdraw_asking, asking)
        raise
    event = asking.event
    await hub.publish_change(EventChange(ChangeKind.UPDATED, event.id, clock.now(), event.to_api()))
    return replace(asking, jpeg=None)
