"""Asking for a description of an event that has none, or for another one."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from pipeline.messages import CropMessage
from pipeline.queue import keys
from pipeline.reasons import Reason
from pipeline.store.outcome import CropOutcome
from pipeline.store.records import EventRecord
from pipeline.store.rows import message_of
from pipeline.store.schema import CropRow, EventRow


class Answer(StrEnum):
    """What became of the asking."""

    ACCEPTED = "accepted"
    UNDER_WAY = "under_way"
    DESCRIBED = "described"
    NO_PICTURE = "no_picture"


@dataclass(frozen=True, slots=True)
class Asking:
    """The answer, the event as it is now, and when ACCEPTED what has to be queued.

    ``outcome`` and ``reason`` are the crop's from before, for taking it back.
    """

    answer: Answer
    event: EventRecord
    message: CropMessage | None = None
    jpeg: bytes | None = None
    outcome: str = ""
    reason: str = ""


def refusal(crop: CropRow | None, *, has_words: bool, force: bool, now: float) -> Answer | None:
    """Why nothing is to be queued, None when something is."""
    if crop is None or crop.sha256 is None:
        return Answer.NO_PICTURE
    asked = crop.asked_again_until is not None and crop.asked_again_until > now
    waiting = crop.outcome in (CropOutcome.QUEUED, CropOutcome.RUNNING) and crop.deadline > now
    if asked or waiting:
        return Answer.UNDER_WAY
    return Answer.DESCRIBED if has_words and not force else None


def mark_asked(crop: CropRow, event: EventRow, now: float, deadline: float) -> CropMessage:
    """Notes it on the crop and gives the message to queue. Words that are there stay until others come."""
    crop.asked_again_until = deadline
    if crop.outcome != CropOutcome.DESCRIBED:
        crop.outcome, crop.reason, crop.deadline = CropOutcome.QUEUED.value, Reason.NONE.value, deadline
    # A key of its own: the picture of an earlier attempt may still lie under the crop's.
    return message_of(crop, event, keys.picture(f"{crop.crop_id}~{int(now * 1000)}"), now, deadline)
