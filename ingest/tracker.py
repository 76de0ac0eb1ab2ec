"""Follows the people of one camera: ultralytics' ByteTrack inside, our own clock, names and lifecycle around it."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ingest.detection import Detection, iou
from ingest.track import Track, TrackChanges, TrackNames
from ingest.weights import prepare_ultralytics
from pipeline.config import TrackingConfig
from pipeline.messages import Box
from pipeline.reasons import Reason

REJOIN_IOU = 0.35
"""Least overlap of a new track's box with where an unseen person was, or would be by now; implies a like size."""

MAX_SHIFT_S = 1.0
"""For no longer is a lost person assumed to have gone on as before."""


@dataclass(slots=True)
class _Followed:
    """A track and what only the tracker needs to know of it; ``seen_at`` is monotonic."""

    track: Track
    byte_id: int
    seen_at: float
    confirmed: bool
    velocity: tuple[float, float] = (0.0, 0.0)

    def expected_box(self, now: float) -> Box:
        dt = min(now - self.seen_at, MAX_SHIFT_S)
        dx, dy = self.velocity[0] * dt, self.velocity[1] * dt
        x1, y1, x2, y2 = self.track.box
        return (x1 + dx, y1 + dy, x2 + dx, y2 + dy)


class PersonTracker:
    """For one camera and one thread.

    A track is confirmed after ``confirm_hits`` detections and lost after ``lost_s`` seconds without one. For
    ``rejoin_s`` after its last detection a new track of ByteTrack's that overlaps it continues it, so that one person
    stays one event (Frigate #1313, #9791); it ends when both times are over. Time is the frames' arrival, never their
    number: rates change. ByteTrack's own ids stay inside; they start again with each of its objects.
    """

    def __init__(self, camera: str, config: TrackingConfig, confidence: float, fps: float, names: TrackNames) -> None:
        self._camera = camera
        self._config = config
        self._confidence = confidence
        self._fps = fps
        self._names = names
        self._followed: list[_Followed] = []
        self._byte_tracker: Any = None
        self._previous: tuple[float, float] | None = None

    def update(self, detections: tuple[Detection, ...], time: float, now: float) -> TrackChanges:
        """Takes the people of a frame that arrived at ``time`` (epoch), ``now`` (monotonic)."""
        if self._previous is None or now - self._previous[1] > self._config.lost_s:
            # After a gap ByteTrack's idea of who moves where is void.
            self._byte_tracker = new_byte_tracker(self._config.lost_s, self._fps, self._confidence)
            for followed in self._followed:
                followed.byte_id = -1
        started: list[Track] = []
        ended: list[tuple[Track, Reason]] = []
        seen: list[tuple[Track, Detection]] = []
        for byte_id, detection in self._associate(detections):
            followed = self._follow(byte_id, detection, time, now)
            if followed.confirmed and now - followed.track.started >= self._config.max_duration_s:
                ended.append((followed.track, Reason.TRACK_MAX_DURATION))
                self._begin_again(followed, detection, time, now)
                started.append(followed.track)
            elif not followed.confirmed and followed.track.hits >= self._config.confirm_hits:
                followed.confirmed = True
                followed.track = replace(followed.track, name=self._names.next(self._camera))
                started.append(followed.track)
            if followed.confirmed:
                seen.append((followed.track, detection))
        self._previous = (time, now)
        return TrackChanges(tuple(started), tuple(seen), (*ended, *self.expire(now)))

    def expire(self, now: float) -> tuple[tuple[Track, Reason], ...]:
        """Ends the tracks whose person has been gone for too long; to be called also while no frame comes."""
        unconfirmed_until = self._config.lost_s
        confirmed_until = max(self._config.lost_s, self._config.rejoin_s)
        gone = [f for f in self._followed if now - f.seen_at > (confirmed_until if f.confirmed else unconfirmed_until)]
        self._followed = [f for f in self._followed if f not in gone]
        return tuple((f.track, Reason.TRACK_LOST) for f in gone if f.confirmed)

    def end_all(self, reason: Reason) -> tuple[tuple[Track, Reason], ...]:
        """Ends every track; the next frame starts anew."""
        ended = tuple((f.track, reason) for f in self._followed if f.confirmed)
        self._followed = []
        self._previous = None
        return ended

    def in_view(self, now: float) -> int:
        """Confirmed tracks that are not lost."""
        return sum(f.confirmed and now - f.seen_at <= self._config.lost_s for f in self._followed)

    def _associate(self, detections: tuple[Detection, ...]) -> list[tuple[int, Detection]]:
        """ByteTrack's id for each detection that it gives one to."""
        tracked: Iterable[Iterable[float]] = self._byte_tracker.update(_ByteTrackInput.of(detections))
        pairs: list[tuple[int, Detection]] = []
        for row in tracked:
            *_, byte_id, _, _, index = row
            pairs.append((int(byte_id), detections[int(index)]))
        return pairs

    def _follow(self, byte_id: int, detection: Detection, time: float, now: float) -> _Followed:
        known = next((f for f in self._followed if f.byte_id == byte_id), None)
        known = known or self._rejoined(detection, now)
        if known is None:
            known = self._first_sight(byte_id, detection, time, now)
            self._followed.append(known)
            return known
        dt = now - known.seen_at
        if dt > 0:
            known.velocity = _velocity(known.track.box, detection.box, dt)
        known.byte_id = byte_id
        known.seen_at = now
        known.track = replace(
            known.track, last_seen=time, box=detection.box, score=detection.score, hits=known.track.hits + 1
        )
        return known

    def _first_sight(self, byte_id: int, detection: Detection, time: float, now: float) -> _Followed:
        """ByteTrack shows somebody from the second detection on, which is on the frame right after the first one (only
        on its very first frame at once)."""
        first_time, first_now, hits = time, now, 1
        if self._previous is not None and self._byte_tracker.frame_id > 1:
            first_time, first_now = self._previous
            hits = 2
        track = Track("", detection.label, first_time, time, first_now, detection.box, detection.score, hits)
        return _Followed(track, byte_id, now, confirmed=False)

    def _rejoined(self, detection: Detection, now: float) -> _Followed | None:
        """The unseen track that the detection continues: the one that overlaps it most."""
        best, most = None, REJOIN_IOU
        for followed in self._followed:
            if followed.seen_at >= now:
                continue
            if now - followed.seen_at > self._config.rejoin_s:
                continue
            overlap = max(iou(detection.box, followed.track.box), iou(detection.box, followed.expected_box(now)))
            if overlap >= most:
                best, most = followed, overlap
        return best

    def _begin_again(self, followed: _Followed, detection: Detection, time: float, now: float) -> None:
        """The same person under a new name, so that somebody who stays for hours is described more than once."""
        name = self._names.next(self._camera)
        followed.track = Track(name, detection.label, time, time, now, detection.box, detection.score, 1)


@dataclass(frozen=True, slots=True, eq=False)
class _ByteTrackInput:
    """Detections in the form that ByteTrack asks for: columns, and rows chosen by a mask."""

    xywh: NDArray[np.float32]
    conf: NDArray[np.float32]
    cls: NDArray[np.float32]

    @classmethod
    def of(cls, detections: tuple[Detection, ...]) -> _ByteTrackInput:
        x1, y1, x2, y2 = np.asarray([d.box for d in detections], dtype=np.float32).reshape(-1, 4).T
        xywh = np.stack(((x1 + x2) / 2, (y1 + y2) / 2, x2 - x1, y2 - y1), axis=1)
        return cls(xywh, np.asarray([d.score for d in detections], dtype=np.float32), np.zeros(len(xywh), np.float32))

    def __len__(self) -> int:
        return len(self.xywh)

    def __getitem__(self, chosen: NDArray[np.bool_]) -> _ByteTrackInput:
        return _ByteTrackInput(self.xywh[chosen], self.conf[chosen], self.cls[chosen])


def _velocity(before: Box, after: Box, dt: float) -> tuple[float, float]:
    """Of the box's centre, pixels a second."""
    return (
        (after[0] + after[2] - before[0] - before[2]) / 2 / dt,
        (after[1] + after[3] - before[1] - before[3]) / 2 / dt,
    )


def new_byte_tracker(lost_s: float, fps: float, confidence: float) -> Any:
    """ByteTrack with the defaults of ultralytics' bytetrack.yaml, but for the thresholds that the camera sets."""
    prepare_ultralytics()
    from ultralytics.trackers.basetrack import BaseTrack
    from ultralytics.trackers.byte_tracker import BYTETracker

    settings = SimpleNamespace(
        track_high_thresh=confidence,
        track_low_thresh=0.1,
        new_track_thresh=confidence,
        track_buffer=max(2, math.ceil(lost_s * fps)),
        match_thresh=0.8,
        fuse_score=True,
    )
    # Older ultralytics counts ids for the whole process, and a new tracker sets that counter back: ids that another
    # camera's tracker still uses would come again.
    count = BaseTrack._count
    tracker = BYTETracker(settings)
    BaseTrack._count = max(count, BaseTrack._count)
    return tracker
