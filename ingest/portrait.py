"""Which pictures of one person are sent, and when."""

from __future__ import annotations

from dataclasses import dataclass

from ingest.best_shot import BestShot, Shot, look_alike
from ingest.track import Track
from pipeline.config import CropConfig, TrackingConfig

CHECKPOINT_SHARE = 0.7
"""A picture at a checkpoint has this share at least of the quality of what was sent last."""


@dataclass(frozen=True, slots=True)
class Choice:
    """``shot`` is to be sent; ``same`` tells that one would have been, but looks like the one sent before."""

    shot: Shot | None = None
    same: bool = False


NOTHING = Choice()


class Portrait:
    """What has been kept and sent of one track: three shots and the one sent last, however long the track is. Nothing
    is sent before it is ``announced``.

    An early picture is sent after ``early_after_s``. While the person stays in view, a clearly better one follows at
    most ``refreshes`` times, and none while they stand still. Each ``checkpoint_s`` the best is looked for anew: what
    the last stretch showed is sent if it looks different, and that many refreshes are allowed again. At the end a
    clearly better picture is the final one; without an early one the best is.
    """

    def __init__(self, crops: CropConfig, tracking: TrackingConfig, now: float) -> None:
        """``now`` and all times below are monotonic."""
        self._crops = crops
        self._tracking = tracking
        self.shots = BestShot(crops)
        self.announced = False
        self.crop_id: str | None = None
        self.updated = now
        self.sent_in_view = 0
        self._sent: Shot | None = None
        self._sent_at = now
        self._checkpoint = now
        self._refreshes = 0
        self._refused: Shot | None = None

    def in_view(self, track: Track, now: float) -> Choice:
        """What is to be sent now, with the person in view."""
        if now - self._checkpoint >= self._tracking.checkpoint_s:
            return self._at_checkpoint(track, now)
        best = self.shots.best
        if best is None:
            return NOTHING
        if self._sent is None:
            return Choice(best) if now - track.started >= self._crops.early_after_s else NOTHING
        if not self._may_refresh(track, now) or now - self._sent_at < self._crops.refresh_after_s:
            return NOTHING
        return self._unless_same(best) if self._is_better(best) else NOTHING

    def at_end(self) -> Choice:
        """What is to be sent as the final picture."""
        best = self.shots.best
        if best is None:
            return NOTHING
        if self._sent is None:
            return Choice(best)
        return self._unless_same(best) if self._is_better(best) else NOTHING

    def was_sent(self, shot: Shot, crop_id: str, now: float) -> None:
        """The shot was published under that id."""
        if self._sent is not None:
            self._refreshes += 1
        self._sent, self._sent_at, self.crop_id = shot, now, crop_id
        self.sent_in_view += 1
        self.updated = float("-inf")  # The picture can be shown from now on: to be said at once.

    def _at_checkpoint(self, track: Track, now: float) -> Choice:
        best = self.shots.best
        self._checkpoint, self._refreshes = now, 0
        self.updated = float("-inf")
        if best is None or self._sent is None:
            return NOTHING
        self.shots.begin_again()
        if not self._may_refresh(track, now) or best.quality < CHECKPOINT_SHARE * self._sent.quality:
            return NOTHING
        return self._unless_same(best)

    def _may_refresh(self, track: Track, now: float) -> bool:
        stationary = now - track.moved >= self._tracking.stationary_after_s
        return not stationary and self._refreshes < self._crops.refreshes

    def _is_better(self, shot: Shot) -> bool:
        return self._sent is None or shot.quality - self._sent.quality >= self._crops.better_by

    def _unless_same(self, shot: Shot) -> Choice:
        """The shot, if it looks different from the one sent before; one that doesn't is refused, and told, once."""
        if shot is self._refused or shot is self._sent:
            return NOTHING
        if self._sent is not None and look_alike(shot, self._sent, self._crops.same_bits):
            self._refused = shot
            return Choice(same=True)
        return Choice(shot)
