"""What an event's description is, from what became of its crops."""

from __future__ import annotations

import pytest

from pipeline.messages import CropKind, DescriptionState
from pipeline.reasons import Reason
from pipeline.store.outcome import CropFacts, CropOutcome, Verdict, judge

QUEUED, RUNNING, DESCRIBED = CropOutcome.QUEUED, CropOutcome.RUNNING, CropOutcome.DESCRIBED
EXPIRED, FAILED = CropOutcome.EXPIRED, CropOutcome.FAILED


def early(outcome: CropOutcome, *, time: float = 1.0, reason: Reason = Reason.NONE, crop_id: str = "e") -> CropFacts:
    return CropFacts(crop_id, CropKind.EARLY, time, 0.5, True, outcome, reason)


def final(outcome: CropOutcome, *, time: float = 2.0, reason: Reason = Reason.NONE, crop_id: str = "f") -> CropFacts:
    return CropFacts(crop_id, CropKind.FINAL, time, 0.9, True, outcome, reason)


@pytest.mark.parametrize(
    ("crops", "over", "announced", "gave_up", "state", "words", "picture", "reason"),
    [
        # While the person is in view.
        ([], False, False, False, "queued", None, None, Reason.NONE),
        ([early(QUEUED)], False, False, False, "queued", None, "e", Reason.NONE),
        ([early(RUNNING)], False, False, False, "running", None, "e", Reason.NONE),
        ([early(DESCRIBED)], False, False, False, "draft", "e", "e", Reason.NONE),
        ([early(DESCRIBED), final(RUNNING)], False, False, False, "draft", "e", "e", Reason.NONE),
        ([early(DESCRIBED), final(DESCRIBED)], False, False, False, "final", "f", "f", Reason.NONE),
        ([early(FAILED, reason=Reason.ENGINE_ERROR)], False, False, False, "failed", None, "e", Reason.ENGINE_ERROR),
        # The track is over and no final crop comes: the early words stand.
        ([early(DESCRIBED)], True, False, False, "final", "e", "e", Reason.NONE),
        ([early(RUNNING)], True, False, False, "running", None, "e", Reason.NONE),
        ([early(EXPIRED, reason=Reason.DEADLINE)], True, False, False, "expired", None, "e", Reason.DEADLINE),
        # The track is over and a final crop was announced.
        ([], True, True, False, "queued", None, None, Reason.NONE),
        ([early(DESCRIBED)], True, True, False, "draft", "e", "e", Reason.NONE),
        ([early(FAILED, reason=Reason.ENGINE_ERROR)], True, True, False, "queued", None, "e", Reason.NONE),
        ([early(DESCRIBED), final(QUEUED)], True, True, False, "draft", "e", "e", Reason.NONE),
        ([early(DESCRIBED), final(DESCRIBED)], True, True, False, "final", "f", "f", Reason.NONE),
        ([final(DESCRIBED)], True, True, False, "final", "f", "f", Reason.NONE),
        ([early(RUNNING), final(DESCRIBED)], True, True, False, "final", "f", "f", Reason.NONE),
        # The final crop comes to nothing: the early words stand, else the reason is told.
        (
            [early(DESCRIBED), final(FAILED, reason=Reason.ENGINE_ERROR)],
            True,
            True,
            False,
            "final",
            "e",
            "e",
            Reason.NONE,
        ),
        ([early(DESCRIBED), final(EXPIRED, reason=Reason.DEADLINE)], True, True, False, "final", "e", "e", Reason.NONE),
        ([final(EXPIRED, reason=Reason.ENGINE_DOWN)], True, True, False, "expired", None, "f", Reason.ENGINE_DOWN),
        # Nobody waits for the announced crop any more.
        ([early(DESCRIBED)], True, True, True, "final", "e", "e", Reason.NONE),
        ([], True, True, True, "expired", None, None, Reason.NO_PICTURE),
        ([], True, False, True, "expired", None, None, Reason.NO_PICTURE),
    ],
)
def test_verdicts(crops, over, announced, gave_up, state, words, picture, reason):
    verdict = judge(crops, over=over, final_announced=announced, gave_up=gave_up)

    assert verdict == Verdict(DescriptionState(state), words, picture, reason)


def test_of_several_described_crops_the_latest_of_the_best_kind_speaks():
    crops = [final(DESCRIBED, time=2, crop_id="f1"), final(DESCRIBED, time=5, crop_id="f2"), early(DESCRIBED, time=9)]

    assert judge(crops, over=True, final_announced=True, gave_up=False).described_by == "f2"


def test_a_crop_without_a_picture_is_never_the_picture():
    gone = CropFacts("gone", CropKind.FINAL, 3.0, 0.9, False, EXPIRED, Reason.PICTURE_EXPIRED)

    verdict = judge([gone, early(QUEUED)], over=True, final_announced=True, gave_up=False)

    assert verdict.best_crop == "e"
