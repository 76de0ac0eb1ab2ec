"""What the store gives out: frozen records, pages, and the cursor between pages."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pipeline.clock import iso
from pipeline.messages import Box, CropKind, DescriptionState, EventState
from pipeline.reasons import REASON_TEXT, Reason


class BadCursor(ValueError):
    """A cursor that :meth:`EventStore.list_events` never gave."""


class UnknownCrop(LookupError):
    """A crop that was never added (or whose event was deleted meanwhile)."""


@dataclass(frozen=True, slots=True)
class View:
    """A further picture of the person that a crop shows, and the frame that it was cut out of."""

    jpeg: bytes
    frame_id: int | None = None


@dataclass(frozen=True, slots=True)
class DescriptionMeta:
    """How a description came about: the exact request and how it went.

    Attributes:
        prompt_hash: SHA-256 of instructions and question, so that it's known which words were asked for.
        first_token_s, total_s: from the request to the first words and to the end.
        system, question: the words behind ``prompt_hash``.
        pictures: SHA-256 of the stored pictures in the prompt, in their order; empty: the crop's own.
        options: sampling parameters and options of the picture processor.
        image_tokens: how many tokens of the prompt the pictures took, None where the backend doesn't say.
        attributes: structured answer, None without one.
        raw: the answer as the model wrote it; None where that is not known.
        form: "valid", "repaired" or "text"; None where that is not known.
    """

    model: str
    prompt_hash: str
    finish_reason: str
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    first_token_s: float
    total_s: float
    system: str = ""
    question: str = ""
    pictures: tuple[str, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)
    image_tokens: int | None = None
    attributes: Mapping[str, Any] | None = None
    raw: str | None = None
    form: str | None = None


@dataclass(frozen=True, slots=True)
class DescriptionRecord:
    """A stored description with the request that led to it. ``created`` in seconds since the epoch."""

    crop_id: str
    text: str
    meta: DescriptionMeta
    created: float

    def to_api(self) -> dict[str, Any]:
        """Plain JSON types; times in ISO 8601, durations in seconds."""
        meta = self.meta
        return {
            "crop_id": self.crop_id,
            "model": meta.model,
            "prompt_hash": meta.prompt_hash,
            "system_prompt": meta.system,
            "question": meta.question,
            "pictures": list(meta.pictures),
            "options": dict(meta.options),
            "finish_reason": meta.finish_reason,
            "form": meta.form,
            "raw": meta.raw,
            "image_tokens": meta.image_tokens,
            "prompt_tokens": meta.prompt_tokens,
            "cached_tokens": meta.cached_tokens,
            "output_tokens": meta.output_tokens,
            "first_token_s": meta.first_token_s,
            "total_s": meta.total_s,
            "created": iso(self.created),
        }


@dataclass(frozen=True, slots=True)
class EventFilter:
    """Which events are wanted; what is None or empty asks for nothing.

    Attributes:
        text: words, ``"phrases"``, ``begin*`` and ``-without``; see :func:`pipeline.store.search_text.read_query`.
        attributes: (path, value) pairs, ``("upper.colours", "red")``; a value's single words match too.
        since, until: bounds of ``first_seen``, seconds since the epoch; the first is included, the second is not.
    """

    camera: str | None = None
    state: EventState | None = None
    label: str | None = None
    zone: str | None = None
    rule: str | None = None
    attributes: tuple[tuple[str, str], ...] = ()
    text: str = ""
    since: float | None = None
    until: float | None = None


@dataclass(frozen=True, slots=True)
class CropRecord:
    """The picture that is shown for an event, with the frame it is from."""

    crop_id: str
    kind: CropKind
    time: float
    box: Box
    score: float
    quality: float
    frame_id: int
    width: int
    height: int
    frame_width: int
    frame_height: int
    has_picture: bool


@dataclass(frozen=True, slots=True)
class EventRecord:
    """An event as stored.

    Attributes:
        description: the words; None without any. An error is never stored here.
        reason: why there are no words (EXPIRED, FAILED), else NONE.
        end_reason: why the track ended, None while it goes on.
        box, score: the track's latest, while there is no crop.
        crop: the picture that the words are about, or the best one so far.
        image_tokens: what the picture took in the prompt for the words; None without words or where nobody said.
        rules: names of the alert rules that it matched, in the order in which it did.
        announced_crop_id: the newest published crop; its picture waits in Redis until a describer takes it.
    """

    id: str
    track: str
    camera: str
    label: str
    state: EventState
    description_state: DescriptionState
    description: str | None
    reason: Reason
    end_reason: Reason | None
    first_seen: float
    last_seen: float
    box: Box
    score: float
    model: str | None
    image_tokens: int | None
    zones: tuple[str, ...]
    attributes: Mapping[str, Any] | None
    rules: tuple[str, ...]
    crop: CropRecord | None
    announced_crop_id: str | None
    created: float
    updated: float

    def to_api(self) -> dict[str, Any]:
        """The event as the API and the page show it: plain JSON types, times in ISO 8601."""
        crop = self.crop
        waiting = self.announced_crop_id if crop is None else None
        shown = waiting is not None or (crop is not None and crop.has_picture)
        return {
            "id": self.id,
            "camera": self.camera,
            "label": self.label,
            "state": self.state.value,
            "description_state": self.description_state.value,
            "description": self.description,
            "reason": None if self.reason == Reason.NONE else self.reason.value,
            "reason_text": REASON_TEXT[self.reason] or None,
            "end_reason": None if self.end_reason in (None, Reason.NONE) else self.end_reason.value,
            "first_seen": iso(self.first_seen),
            "last_seen": iso(self.last_seen),
            "crop_url": f"/api/events/{self.id}/crop.jpg" if shown else None,
            "crop_id": crop.crop_id if crop else waiting,
            "crop_kind": crop.kind.value if crop else None,
            "crop_time": iso(crop.time) if crop else None,
            "crop_size": [crop.width, crop.height] if crop else None,
            "box": list(crop.box if crop else self.box),
            "score": crop.score if crop else self.score,
            "quality": crop.quality if crop else None,
            "frame_id": crop.frame_id if crop else None,
            "frame_size": [crop.frame_width, crop.frame_height] if crop else None,
            "model": self.model,
            "image_tokens": self.image_tokens,
            "zones": list(self.zones),
            "attributes": None if self.attributes is None else dict(self.attributes),
            "rules": list(self.rules),
            "created": iso(self.created),
            "updated": iso(self.updated),
        }


@dataclass(frozen=True, slots=True)
class EventPage:
    """Events, newest first; ``next`` goes into ``before`` for the page after, None at the end."""

    events: tuple[EventRecord, ...]
    next: str | None


def views_before(frames: Sequence[int | None], own: int) -> int:
    """How many of the further pictures, oldest first, are older than the crop's ``own`` frame.

    Where frames aren't known the first is, and no other: a track's best view lies between its first and its last one.
    """
    if any(frame is None for frame in frames):
        return min(1, len(frames))
    return sum(1 for frame in frames if frame is not None and frame < own)


def cursor_of(first_seen: float, event_id: str) -> str:
    """An opaque text fit for a URL."""
    return _encoded([first_seen, event_id])


def read_cursor(cursor: str) -> tuple[float, str]:
    """Raises :class:`BadCursor`."""
    match _decoded(cursor):
        case [float() | int() as first_seen, str() as event_id] if not isinstance(first_seen, bool):
            return float(first_seen), event_id
    raise _bad_cursor()


def search_cursor_of(number: int) -> str:
    """The cursor of a list that comes from the search index."""
    return _encoded([number])


def read_search_cursor(cursor: str) -> int:
    """Raises :class:`BadCursor`."""
    match _decoded(cursor):
        case [int() as number] if not isinstance(number, bool) and 0 <= number < 2**63:
            return number
    raise _bad_cursor()


def _encoded(value: list[Any]) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")


def _decoded(cursor: str) -> Any:
    try:
        return json.loads(base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True))
    except (ValueError, binascii.Error, RecursionError):
        raise _bad_cursor() from None


def _bad_cursor() -> BadCursor:
    return BadCursor("before: not a cursor of this list")
