"""What the cameras see, as lines for people. Pure: told of states and changes, gives lines; says nothing twice."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from pipeline.messages import CameraState, CameraStatus, ChangeKind, DescriptionState, EventChange
from pipeline.reasons import REASON_TEXT

REMEMBERED = 500
_FIRST_WORDS = 4
_SHOWN = 60
"""A description is announced with its first words, cut after so many characters."""


@dataclass(slots=True)
class _Told:
    """What has been said of an event."""

    seen: bool = False
    streaming: bool = False
    words: str = ""
    failed: bool = False
    left: bool = False


class Story:
    """Turns camera states and event changes into lines."""

    def __init__(self) -> None:
        self._cameras: dict[str, CameraState] = {}
        self._events: OrderedDict[str, _Told] = OrderedDict()

    def of_camera(self, status: CameraStatus) -> list[str]:
        """A line when the camera's state is another than the last time."""
        if self._cameras.get(status.camera) == status.state:
            return []
        self._cameras[status.camera] = status.state
        name = f"camera {status.name or status.camera}"
        if status.state is CameraState.ONLINE:
            size = f", {status.width}x{status.height}" if status.width else ""
            return [f"{name}: online{size}"]
        reason = REASON_TEXT[status.reason]
        return [f"{name}: {status.state.value.replace('_', ' ')}" + (f". {reason}" if reason else "")]

    def of_change(self, change: EventChange) -> list[str]:
        """The lines that a change adds to what was said of its event before; mostly none."""
        event, told = change.event, self._told(change.event_id)
        name, lines = change.event_id, []
        if not told.seen:
            told.seen = True
            lines.append(f"{name}: person seen by camera {event.get('camera')}")
        text = str(event.get("description") or "").strip()
        if change.kind is ChangeKind.PARTIAL:
            if len(text.split()) >= _FIRST_WORDS and not told.streaming:
                told.streaming = True
                lines.append(f"{name}: description streaming: {_beginning(text)}")
        elif text and text != told.words:
            told.words, told.streaming, told.failed = text, False, False
            draft = event.get("description_state") != DescriptionState.FINAL
            lines.append(f"{name}: description{' (first)' if draft else ''}: {text}")
        if change.kind is ChangeKind.FAILED and not told.failed:
            told.failed = True
            lines.append(f"{name}: no description. {event.get('reason_text') or ''}".rstrip())
        if change.kind is ChangeKind.ENDED and not told.left:
            told.left = True
            lines.append(f"{name}: person left{_after(event)}")
        return lines

    def _told(self, event_id: str) -> _Told:
        told = self._events.setdefault(event_id, _Told())
        self._events.move_to_end(event_id)
        if len(self._events) > REMEMBERED:
            self._events.popitem(last=False)
        return told


def _beginning(text: str) -> str:
    return f"{text[:_SHOWN].rstrip()} ..."


def _after(event: Any) -> str:
    try:
        first, last = (datetime.fromisoformat(event[name]) for name in ("first_seen", "last_seen"))
    except (KeyError, TypeError, ValueError):
        return ""
    return f" after {(last - first).total_seconds():.0f} s"
