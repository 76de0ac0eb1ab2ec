"""The body of a message, the same for every way of delivery."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pipeline.clock import iso
from pipeline.store.records import EventRecord


def message_id(event_id: str, sequence: int) -> str:
    """The same for every attempt; all messages of an event begin alike. No dot: it separates what is signed."""
    return f"{event_id.replace('.', ':')}:{sequence}"


def message_body(
    event: EventRecord, changes: Sequence[str], sequence: int, now: float, public_url: str
) -> dict[str, Any]:
    """What is told of an event: the event as the API shows it, what is new about it, and which message this is.

    An error is never told as if it were a description (R56): then ``description`` is null and ``reason`` says why.
    """
    shown = event.to_api()
    base = public_url.rstrip("/")
    picture = f"{base}{shown['crop_url']}?crop={shown['crop_id']}" if base and shown["crop_url"] else None
    return {
        "type": "event.new" if sequence == 1 else "event.update",
        "timestamp": iso(now),
        "data": {
            "notification": event.id,
            "sequence": sequence,
            "changes": list(changes),
            "rules": list(event.rules),
            "picture_url": picture,
            "page_url": f"{base}/" if base else None,
            "event": shown,
        },
    }


def test_body(target: str, now: float) -> dict[str, Any]:
    """A message that tells of nothing."""
    return {
        "type": "test",
        "timestamp": iso(now),
        "data": {"target": target, "message": "A test of watchword: messages arrive here."},
    }
