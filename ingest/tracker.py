"""Follows the people of one camera: ultralytics' ByteTrack or BoT-SORT inside, our own clock, names and lifecycle
around it."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from enum import Enum, auto

from ingest.appearance import Look, likeness, look_of
from ingest.association import Association, buffered
from ingest.detection import Detection, iou
from ingest.frame import Image
from ingest.track import Track, TrackChanges, TrackNames
from pipeline.config import TrackingConfig
from pipeline.messages import Box
from pipeline.reasons import Reason

REJOIN_IOU = 0.35
"""Least overlap (of both boxes enlarged) of a new track's box with where an unseen person was, or would be by now;
implies a like size."""

STRANGER = 0.6
ALIKE = 0.85
"""Likeness of clothes: below the first they are other people, above the second it may well be the same person. Measured
on a street scene at 5 frames a second: the same person 1 to 3 s apart has 0.76 at the second percentile, two people who
are there at the same time have 0.72 in the middle (many wear black)."""

MORE_ALIKE = 0.15
"""Somebody unseen takes a detection over from the one whom the inner tracker gave it to when it is so much more like
them, and ``ALIKE``."""

GONE_S = 0.5
"""Who was out of sight for so long and looks like a stranger is one; clothes alone may look different for a moment,
with somebody's arm before them."""

JUMP_IOU = 0.3
JUMP_LIKE = 0.75
"""Whose box overlaps the last one by less, and who looks less like it, has taken the place of who was there."""

LOOK_S = 3.0
"""Time constant of what is remembered of somebody's clothes, after a plain mean over the first ones."""

CROWDED_IOU = 0.1
"""Boxes that overlap by more show somebody else's clothes as well: nothing is learned from them."""

MAX_SHIFT_S = 1.0
"""For no longer is a lost person assumed to have gone on as before."""

VELOCITY_S = 0.4
"""Time constant of the smoothed velocity: single boxes jump by more than a person walks between two frames."""

MOVED_IOU = 0.6
"""Whose box overlaps the one where they stood still by less has moved."""

SMOOTH_S = 2.0
"""Time constant of the box that is compared for that: others who pass in front change single boxes."""

REST_FORGOTTEN_S = 600.0
"""A resting one that isn't detected for so long is forgotten; a false positive may flicker."""


class _Phase(Enum):
    NEW = auto()
    """Not often enough seen yet."""
    CONFIRMED = auto()
    """An event."""
    RESTING = auto()
    """Its event is over because it did not move for too long; followed silently until it moves."""


@dataclass(slots=True, eq=False)
class _Followed:
    """A track and what only the tracker needs to know of it; times are monotonic.

    ``smooth`` is the box without its jitter, ``anchor`` what that was when they last moved.
    """

    track: Track
    inner_id: int
    seen_at: float
    phase: _Phase
    smooth: Box
    anchor: Box
    look: Look | None = None
    looks: int = 1
    velocity: tuple[float, float] = (0.0, 0.0)

    def expected_box(self, now: float) -> Box:
        dt = min(now - self.seen_at, MAX_SHIFT_S)
        dx, dy = self.velocity[0] * dt, self.velocity[1] * dt
        x1, y1, x2, y2 = self.track.box
        return (x1 + dx, y1 + dy, x2 + dx, y2 + dy)

    def see(self, inner_id: int, detection: Detection, look: Look | None, time: float, now: float) -> None:
        """Takes the next detection; ``look`` is None where nothing can be learned from it."""
        dt = now - self.seen_at
        if self.look is None:
            self.look = look
        elif look is not None:
            self.looks += 1
            share = max(1 / self.looks, 1 - math.exp(-dt / LOOK_S))
            self.look = (1 - share) * self.look + share * look
        moved = self.track.moved
        if dt > 0:
            share = 1 - math.exp(-dt / VELOCITY_S)
            vx, vy = _velocity(self.track.box, detection.box, dt)
            self.velocity = (_mix(self.velocity[0], vx, share), _mix(self.velocity[1], vy, share))
            share = 1 - math.exp(-dt / SMOOTH_S)
            x1, y1, x2, y2 = (_mix(a, b, share) for a, b in zip(self.smooth, detection.box, strict=True))
            self.smooth = (x1, y1, x2, y2)
            if iou(self.smooth, self.anchor) < MOVED_IOU:
                self.anchor, moved = self.smooth, now
        self.inner_id = inner_id
        self.seen_at = now
        self.track = replace(
            self.track,
            last_seen=time,
            box=detection.box,
            score=detection.score,
            hits=self.track.hits + 1,
            moved=moved,
        )


class PersonTracker:
    """For one camera and one thread.

    A track is confirmed after ``confirm_hits`` detections and lost after ``lost_s`` seconds without one. For
    ``rejoin_s`` after its last detection a new track of the inner tracker's that overlaps it continues it, so that one
    person stays one event (Frigate #1313, #9791); it ends when both times are over. Time is the frames' arrival, never
    their number: rates change.

    What does not move for ``stationary_max_s`` is over as well, though it is still detected (a coat on a hook keeps
    "person in view" for ever otherwise, Frigate #3857). It rests from then on: it is no event until it moves.

    The inner tracker goes by boxes alone and hands one's track to the other when two people pass each other behind a
    lamp post. Their clothes tell: a track whose person suddenly looks like a stranger goes to the unseen one who looks
    like that.
    """

    def __init__(self, camera: str, config: TrackingConfig, confidence: float, fps: float, names: TrackNames) -> None:
        self._camera = camera
        self._config = config
        self._confidence = confidence
        self._fps = fps
        self._names = names
        self._followed: list[_Followed] = []
        self._association: Association | None = None
        self._previous: tuple[float, float] | None = None

    def update(
        self, detections: tuple[Detection, ...], time: float, now: float, image: Image | None = None
    ) -> TrackChanges:
        """Takes the people of a frame that arrived at ``time`` (epoch), ``now`` (monotonic).

        ``image`` is the frame itself: people's clothes are looked at, and BoT-SORT finds the camera's own movement in
        it. Without it boxes have to do.
        """
        association = self._association
        if association is None or self._previous is None or now - self._previous[1] > self._config.lost_s:
            # After a gap the inner tracker's idea of who moves where is void.
            association = Association(self._config.tracker, self._config.lost_s, self._fps, self._confidence)
            self._association = association
            for followed in self._followed:
                followed.inner_id = -1
        started: list[Track] = []
        ended: list[tuple[Track, Reason]] = []
        seen: list[tuple[Track, Detection]] = []
        pairs = association.update(detections, image)
        here = {inner_id for inner_id, _ in pairs}
        for inner_id, detection in pairs:
            look = look_of(image, detection.box) if image is not None else None
            owner = self._owner(inner_id, detection, look, now, here)
            crowded = any(d is not detection and iou(d.box, detection.box) > CROWDED_IOU for d in detections)
            learned = None if crowded else look
            followed = owner or self._first_sight(inner_id, detection, learned, association.frames, time, now)
            if owner is None:
                self._followed.append(followed)
            else:
                owner.see(inner_id, detection, learned, time, now)
            over = self._over(followed, now)
            if over is Reason.TRACK_MAX_DURATION:
                ended.append((followed.track, over))
                self._begin_again(followed, detection, time, now)
                started.append(followed.track)
            elif over is Reason.TRACK_STATIONARY:
                ended.append((followed.track, over))
                followed.phase = _Phase.RESTING
            elif followed.phase is _Phase.RESTING and followed.track.moved == now:
                followed.phase = _Phase.NEW
                followed.track = self._track(detection, time, time, now, hits=1)
            elif followed.phase is _Phase.NEW and followed.track.hits >= self._config.confirm_hits:
                followed.phase = _Phase.CONFIRMED
                followed.track = replace(followed.track, name=self._names.next(self._camera))
                started.append(followed.track)
            if followed.phase is _Phase.CONFIRMED:
                seen.append((followed.track, detection))
        self._previous = (time, now)
        return TrackChanges(tuple(started), tuple(seen), (*ended, *self.expire(now)))

    def expire(self, now: float) -> tuple[tuple[Track, Reason], ...]:
        """Ends the tracks whose person has been gone for too long; to be called also while no frame comes."""
        gone = [f for f in self._followed if now - f.seen_at > self._patience(f)]
        self._followed = [f for f in self._followed if f not in gone]
        return tuple((f.track, Reason.TRACK_LOST) for f in gone if f.phase is _Phase.CONFIRMED)

    def end_all(self, reason: Reason) -> tuple[tuple[Track, Reason], ...]:
        """Ends every track; the next frame starts anew."""
        ended = tuple((f.track, reason) for f in self._followed if f.phase is _Phase.CONFIRMED)
        self._followed = []
        self._previous = None
        return ended

    def in_view(self, now: float) -> int:
        """Confirmed tracks that are not lost."""
        return sum(f.phase is _Phase.CONFIRMED and now - f.seen_at <= self._config.lost_s for f in self._followed)

    def known(self, now: float) -> int:
        """How many on the frame at ``now`` (the last one) are events already, or rest."""
        return sum(f.phase is not _Phase.NEW and f.seen_at == now for f in self._followed)

    def unseen(self, now: float) -> tuple[Box, ...]:
        """Where people may be whom the frame at ``now`` (the last one) did not show to the detector."""
        return tuple(box for f in self._followed if f.seen_at < now for box in (f.track.box, f.expected_box(now)))

    def _over(self, followed: _Followed, now: float) -> Reason:
        """Why a confirmed track that is still seen is over now, NONE when it isn't."""
        if followed.phase is not _Phase.CONFIRMED:
            return Reason.NONE
        if now - followed.track.moved >= self._config.stationary_max_s:
            return Reason.TRACK_STATIONARY
        if now - followed.track.started >= self._config.max_duration_s:
            return Reason.TRACK_MAX_DURATION
        return Reason.NONE

    def _patience(self, followed: _Followed) -> float:
        """Seconds without a detection after which a track is over."""
        match followed.phase:
            case _Phase.NEW:
                return self._config.lost_s
            case _Phase.CONFIRMED:
                return max(self._config.lost_s, self._config.rejoin_s)
            case _Phase.RESTING:
                return REST_FORGOTTEN_S

    def _owner(
        self, inner_id: int, detection: Detection, look: Look | None, now: float, here: set[int]
    ) -> _Followed | None:
        """Whose detection it is; None for somebody new. ``here`` are the inner ids that are on the frame."""
        known = next((f for f in self._followed if f.inner_id == inner_id), None)
        if known is None:
            return self._rejoined(detection, look, now, here, STRANGER)
        like = likeness(known.look, look)
        if like is None or like >= 1 - MORE_ALIKE:
            return known
        other = self._rejoined(detection, look, now, here, max(ALIKE, like + MORE_ALIKE))
        jumped = iou(detection.box, known.track.box) < JUMP_IOU and like < JUMP_LIKE
        returned = now - known.seen_at > GONE_S and like < STRANGER
        if other is None and not jumped and not returned:
            return known
        known.inner_id = -1
        return other

    def _first_sight(
        self, inner_id: int, detection: Detection, look: Look | None, frames: int, time: float, now: float
    ) -> _Followed:
        """The inner tracker shows somebody from the second detection on, which is on the frame right after the first
        one (only on its very first frame at once)."""
        first_time, first_now, hits = time, now, 1
        if self._previous is not None and frames > 1:
            first_time, first_now = self._previous
            hits = 2
        track = self._track(detection, first_time, time, first_now, hits)
        return _Followed(track, inner_id, now, _Phase.NEW, detection.box, detection.box, look)

    def _rejoined(
        self, detection: Detection, look: Look | None, now: float, here: set[int], least_like: float
    ) -> _Followed | None:
        """The track, not on this frame, that the detection continues: the one that overlaps it most, of those
        that look like it (as far as that is known)."""
        best, most = None, REJOIN_IOU
        for followed in self._followed:
            resting = followed.phase is _Phase.RESTING
            if followed.inner_id in here or followed.seen_at >= now:
                continue
            if not resting and now - followed.seen_at > self._config.rejoin_s:
                continue
            like = likeness(followed.look, look)
            if like is not None and like < least_like:
                continue
            if resting:
                if iou(detection.box, followed.anchor) >= MOVED_IOU:
                    return followed
                continue
            box = buffered(detection.box)
            overlap = max(iou(box, buffered(place)) for place in (followed.track.box, followed.expected_box(now)))
            if overlap >= most:
                best, most = followed, overlap
        return best

    def _begin_again(self, followed: _Followed, detection: Detection, time: float, now: float) -> None:
        """The same person under a new name."""
        track = self._track(detection, time, time, now, hits=1)
        followed.track = replace(track, name=self._names.next(self._camera), moved=followed.track.moved)

    def _track(self, detection: Detection, first_seen: float, last_seen: float, started: float, hits: int) -> Track:
        """One without a name yet."""
        return Track(
            name="",
            label=detection.label,
            first_seen=first_seen,
            last_seen=last_seen,
            started=started,
            box=detection.box,
            score=detection.score,
            hits=hits,
            moved=started,
        )


def _mix(old: float, new: float, share: float) -> float:
    return old + share * (new - old)


def _velocity(before: Box, after: Box, dt: float) -> tuple[float, float]:
    """Of the box's centre, pixels a second."""
    return (
        (after[0] + after[2] - before[0] - before[2]) / 2 / dt,
        (after[1] + after[3] - before[1] - before[3]) / 2 / dt,
    )
