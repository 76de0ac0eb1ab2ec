"""From the detector's boxes of one camera to tracks, best shots, and the messages about them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

from ingest.best_shot import BestShot, Shot, seen_on
from ingest.counts import DropCounts
from ingest.crop import encode_jpeg
from ingest.detection import Detection, Labels, Rows, check_boxes
from ingest.frame import Frame
from ingest.observation import Observation, ObservationKind, Observer
from ingest.preview import Mark, Preview, PreviewBoard
from ingest.track import Track, TrackChanges, TrackNames
from ingest.tracker import PersonTracker
from ingest.zones import CameraZones
from pipeline.clock import Clock
from pipeline.config import CameraConfig, WatchwordConfig
from pipeline.messages import CropKind, CropMessage, TrackMessage, TrackPhase, event_id_of
from pipeline.queue import keys
from pipeline.reasons import Reason

UPDATE_EVERY_S = 2.0
"""How stale the last-seen time of a track can be at serve when ingest dies."""


class Outbox(Protocol):
    """Where messages go; must not block."""

    def track(self, message: TrackMessage) -> None: ...

    def crop(self, message: CropMessage, jpeg: bytes) -> None: ...


@dataclass(frozen=True, slots=True)
class AnalysisCounts:
    """Since the camera's analysis began. ``detector_ms``: a running mean; ``found``: somebody was on the last frame."""

    detections: int = 0
    crops: int = 0
    in_view: int = 0
    detector_ms: float = 0.0
    found: bool = False


@dataclass(slots=True)
class _Portrait:
    """What has been kept and sent of one track; nothing is sent before it is ``announced``."""

    shots: BestShot
    updated: float
    announced: bool = False
    early_quality: float | None = None
    crop_id: str | None = None

    def final_shot(self, better_by: float) -> Shot | None:
        """What is sent at the end: the best shot, if there was no early one or it is clearly better than that."""
        best = self.shots.best
        if best is None or (self.early_quality is not None and best.quality - self.early_quality < better_by):
            return None
        return best


class CameraAnalysis:
    """Used by one thread at a time; ``counts`` may be read from any."""

    def __init__(
        self,
        camera: CameraConfig,
        config: WatchwordConfig,
        names: TrackNames,
        outbox: Outbox,
        previews: PreviewBoard,
        drops: DropCounts,
        clock: Clock,
        observer: Observer,
    ) -> None:
        self._camera = camera.id
        self._crops = config.crops
        self._outbox = outbox
        self._previews = previews
        self._drops = drops
        self._clock = clock
        self._observer = observer
        self._confidence = camera.confidence or config.detector.confidence
        self._tracker = PersonTracker(camera.id, config.tracking, self._confidence, camera.fps, names)
        self._portraits: dict[str, _Portrait] = {}
        self._zones = CameraZones(camera.zones)
        self.counts = AnalysisCounts()

    def frame(self, frame: Frame, rows: Rows, labels: Labels, seconds: float, detail: Frame | None = None) -> None:
        """Takes what the detector found on a frame, the classes that are looked for, and how long it took.

        ``detail`` is a larger picture of the same moment; people are then cut out of that one.
        """
        checked = check_boxes(rows, frame.width, frame.height, 0.0, labels)
        self._drops.add(Reason.BOX_INVALID, checked.invalid)
        changes = self._tracker.update(checked.detections, frame.time, frame.monotonic)
        self._apply(changes, frame, detail)
        people = sum(d.score >= self._confidence for d in checked.detections)
        mean = self.counts.detector_ms
        self.counts = replace(
            self.counts,
            detections=self.counts.detections + people,
            in_view=self._tracker.in_view(frame.monotonic),
            detector_ms=seconds * 1000 if mean == 0 else mean + 0.1 * (seconds * 1000 - mean),
            found=people > 0,
        )
        if self._previews.wants(self._camera):
            marks = (Mark(d.box, f"{d.label} {_number(t.name)}  {d.score:.2f}") for t, d in changes.seen)
            self._previews.put(Preview(frame, tuple(marks)))

    def unseen(self, frame: Frame) -> None:
        """Takes a frame that the detector did not look at, for who watches."""
        if self._previews.wants(self._camera):
            self._previews.put(Preview(frame, ()))

    def tick(self, now: float) -> None:
        """Monotonic time goes on, with frames or without."""
        self._end(self._tracker.expire(now))
        self.counts = replace(self.counts, in_view=self._tracker.in_view(now))

    def end_all(self, reason: Reason) -> None:
        """Ends every track: the camera is switched off, or ingest stops."""
        self._end(self._tracker.end_all(reason))
        self.counts = replace(self.counts, in_view=0)

    def _apply(self, changes: TrackChanges, frame: Frame, detail: Frame | None) -> None:
        # A track that is continued under a new name ends before the new one starts.
        self._end(changes.ended)
        for track in changes.started:
            self._portraits[track.name] = _Portrait(BestShot(self._crops), frame.monotonic)
        for track, detection in changes.seen:
            self._see(track, detection, changes, frame, detail)

    def _see(
        self, track: Track, detection: Detection, changes: TrackChanges, frame: Frame, detail: Frame | None
    ) -> None:
        portrait = self._portraits[track.name]
        others = [other.box for other_track, other in changes.seen if other_track.name != track.name]
        if detail is None:
            portrait.shots.offer(frame, detection, others)
        else:
            larger = replace(detection, box=seen_on(detail, frame, detection.box))
            portrait.shots.offer(detail, larger, [seen_on(detail, frame, box) for box in others])
        self._zones.see(track.name, detection.box, frame.width, frame.height, track.label)
        if not portrait.announced:
            if not self._zones.admits(track.name, track.label):
                return
            portrait.announced = True
            self._outbox.track(self._message(track, TrackPhase.START))
            self._observe(ObservationKind.PERSON_SEEN, f"{track.label} {track.name} seen", track.name)
        shot = portrait.shots.best
        due = frame.monotonic - track.started >= self._crops.early_after_s
        if portrait.early_quality is None and shot is not None and due:
            portrait.early_quality = shot.quality
            portrait.crop_id = self._send(track, shot, CropKind.EARLY)
            portrait.updated = float("-inf")  # The picture can be shown from now on: say so at once.
        if frame.monotonic - portrait.updated >= UPDATE_EVERY_S:
            portrait.updated = frame.monotonic
            self._outbox.track(self._message(track, TrackPhase.UPDATE, crop_id=portrait.crop_id))

    def _end(self, ended: tuple[tuple[Track, Reason], ...]) -> None:
        for track, reason in ended:
            portrait = self._portraits.pop(track.name)
            if not portrait.announced:
                self._zones.forget(track.name)
                continue
            final = portrait.final_shot(self._crops.better_by)
            if final is not None:
                # Before the end of the track: what the end promises is already there.
                portrait.crop_id = self._send(track, final, CropKind.FINAL)
            end = self._message(track, TrackPhase.END, reason, final_crop=final is not None, crop_id=portrait.crop_id)
            self._outbox.track(end)
            self._zones.forget(track.name)
            self._observe(
                ObservationKind.PERSON_LEFT,
                f"{track.label} {track.name} left after {track.last_seen - track.first_seen:.1f} s",
                track.name,
            )

    def _send(self, track: Track, shot: Shot, kind: CropKind) -> str:
        """Publishes a crop; gives its id."""
        crop_id = f"{event_id_of(track.name)}.{kind.value}"
        height, width = shot.picture.shape[:2]
        message = CropMessage(
            crop_id=crop_id,
            camera=self._camera,
            track=track.name,
            kind=kind,
            time=shot.time,
            box=shot.box,
            score=shot.score,
            quality=round(shot.quality, 4),
            frame_id=shot.frame_number,
            picture_key=keys.picture(crop_id),
            label=track.label,
            deadline=self._clock.now() + self._crops.deadline_s,
            width=int(width),
            height=int(height),
            frame_width=shot.frame_width,
            frame_height=shot.frame_height,
            zones=self._zones.at(shot.box, shot.frame_width, shot.frame_height, track.label),
        )
        self._outbox.crop(message, encode_jpeg(shot.picture, self._crops.jpeg_quality))
        self.counts = replace(self.counts, crops=self.counts.crops + 1)
        text = f"{kind.value} picture of {track.label} {track.name}, {width}x{height}, quality {shot.quality:.2f}"
        self._observe(ObservationKind.CROP, text, track.name)
        return crop_id

    def _message(
        self,
        track: Track,
        phase: TrackPhase,
        reason: Reason = Reason.NONE,
        *,
        final_crop: bool = False,
        crop_id: str | None = None,
    ) -> TrackMessage:
        return TrackMessage(
            track=track.name,
            camera=self._camera,
            phase=phase,
            label=track.label,
            time=self._clock.now(),
            first_seen=track.first_seen,
            last_seen=track.last_seen,
            box=track.box,
            score=track.score,
            reason=reason,
            final_crop=final_crop,
            crop_id=crop_id,
            zones=self._zones.visited(track.name),
        )

    def _observe(self, kind: ObservationKind, text: str, track: str) -> None:
        self._observer(Observation(kind, self._clock.now(), text, self._camera, track))


def _number(name: str) -> str:
    """``front/t5k3a-12`` -> ``12``."""
    return name.rpartition("-")[2]
