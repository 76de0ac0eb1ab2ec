"""What an event's description is, from what became of its crops. Pure: the order in which news came doesn't matter."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from pipeline.messages import CropKind, DescriptionState
from pipeline.reasons import Reason


class CropOutcome(StrEnum):
    """QUEUED -> RUNNING -> DESCRIBED, EXPIRED or FAILED. The last three are final."""

    QUEUED = "queued"
    RUNNING = "running"
    DESCRIBED = "described"
    EXPIRED = "expired"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class CropFacts:
    """What counts of a crop. ``has_picture``: whether its JPEG was stored."""

    crop_id: str
    kind: CropKind
    time: float
    quality: float
    has_picture: bool
    outcome: CropOutcome
    reason: Reason


@dataclass(frozen=True, slots=True)
class Verdict:
    """The description's state, the crops whose words and whose picture are shown, and why there are no words."""

    state: DescriptionState
    described_by: str | None
    best_crop: str | None
    reason: Reason = Reason.NONE


def judge(crops: Sequence[CropFacts], *, over: bool, final_announced: bool, gave_up: bool) -> Verdict:
    """The verdict on an event.

    The latest described final crop gives the final words. Without one the latest described early crop gives a draft,
    which is final when nothing better can come: the event is ``over`` and no final crop was announced, or it came to
    nothing, or is not waited for any more (``gave_up``). Words and picture are of the same crop (R59).
    """
    described = [crop for crop in crops if crop.outcome == CropOutcome.DESCRIBED]
    waiting = [crop for crop in crops if crop.outcome in (CropOutcome.QUEUED, CropOutcome.RUNNING)]
    finals = [crop for crop in crops if crop.kind == CropKind.FINAL]
    missing = final_announced and not finals and not gave_up
    if described:
        words = max(described, key=lambda crop: (crop.kind == CropKind.FINAL, crop.time, crop.crop_id))
        more_to_come = not over or missing or any(crop.kind == CropKind.FINAL for crop in waiting)
        is_draft = words.kind == CropKind.EARLY and more_to_come
        state = DescriptionState.DRAFT if is_draft else DescriptionState.FINAL
        return Verdict(state, words.crop_id, words.crop_id)
    best = _best_picture(crops)
    if waiting:
        running = any(crop.outcome == CropOutcome.RUNNING for crop in waiting)
        return Verdict(DescriptionState.RUNNING if running else DescriptionState.QUEUED, None, best)
    if missing or (not crops and not gave_up):
        return Verdict(DescriptionState.QUEUED, None, best)
    if not crops:
        return Verdict(DescriptionState.EXPIRED, None, None, Reason.NO_PICTURE)
    last = max(crops, key=lambda crop: (crop.time, crop.crop_id))
    failed = last.outcome == CropOutcome.FAILED
    return Verdict(DescriptionState.FAILED if failed else DescriptionState.EXPIRED, None, best, last.reason)


def _best_picture(crops: Sequence[CropFacts]) -> str | None:
    pictures = [crop for crop in crops if crop.has_picture]
    if not pictures:
        return None
    return max(pictures, key=lambda crop: (crop.kind == CropKind.FINAL, crop.quality, crop.time)).crop_id
