"""From the detector's boxes of one camera to tracks, best shots, and the messages about them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

from ingest.best_shot import Shot, View
from ingest.counts import DropCounts
from ingest.crop import encode_jpeg
from ingest.detection import Labels, Rows, check_boxes
from ingest.frame import Frame
from ingest.observation import Observation, ObservationKind, Observer
from ingest.portrait import Choice, Portrait
from ingest.preview import Mark, Preview, PreviewBoard
from ingest.privacy import regions_of
from ingest.track import Track, TrackChanges, TrackNames
from ingest.tracker import PersonTracker
from ingest.zones import CameraZones
from pipeline.clock import Clock
from pipeline.config import CameraConfig, WatchwordConfig
from pipeline.messages import Box, CropKind, CropMessage, TrackMessage, TrackPhase, event_id_of
from pipeline.queue import keys
from pipeline.reasons import Reason

UPDATE_EVERY_S = 2.0
"""How stale the last-seen time of a track can be at serve when ingest dies."""


class Outbox(Protocol):
    """Where messages go; must not block."""

    def track(self, message: TrackMessage) -> None: ...

    def crop(self, message: CropMessage, jpeg: bytes, extras: tuple[bytes, ...] = ()) -> None:
        """``extras``: the JPEGs of the message's ``extra_keys``."""
        ...


@dataclass(frozen=True, slots=True)
class AnalysisCounts:
    """Since the camera's analysis began. ``detector_ms`` is a running mean, ``crops`` are those of each kind, ``found``
    tells whether somebody was on the last frame of whom more has to be seen: no event yet, and not at rest."""

    detections: int = 0
    crops: Mapping[str, int] = field(default_factory=dict)
    in_view: int = 0
    detector_ms: float = 0.0
    found: bool = False


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
        self._tracking = config.tracking
        self._blur = camera.privacy.blur
        self._outbox = outbox
        self._previews = previews
        self._drops = drops
        self._clock = clock
        self._observer = observer
        self._confidence = camera.confidence or config.detector.confidence
        self._tracker = PersonTracker(camera.id, config.tracking, self._confidence, camera.fps, names)
        self._portraits: dict[str, Portrait] = {}
        self._zones = CameraZones(camera.zones)
        self.counts = AnalysisCounts()

    def frame(self, frame: Frame, rows: Rows, labels: Labels, seconds: float, detail: Frame | None = None) -> None:
        """Takes what the detector found on a frame, the classes that are looked for, and how long it took.

        ``detail`` is a larger picture of the same moment; people are then cut out of that one.
        """
        checked = check_boxes(rows, frame.width, frame.height, 0.0, labels)
        self._drops.add(Reason.BOX_INVALID, checked.invalid)
        changes = self._tracker.update(checked.detections, frame.time, frame.monotonic, frame.image)
        hidden: tuple[Box, ...] = ()
        if self._blur != "none":
            # Also who was missed on this frame, or is no event: privacy is for everybody.
            hidden = (*(d.box for d in checked.detections), *self._tracker.unseen(frame.monotonic))
        self._apply(changes, frame, detail, hidden)
        people = sum(d.score >= self._confidence for d in checked.detections)
        mean = self.counts.detector_ms
        self.counts = replace(
            self.counts,
            detections=self.counts.detections + people,
            in_view=self._tracker.in_view(frame.monotonic),
            detector_ms=seconds * 1000 if mean == 0 else mean + 0.1 * (seconds * 1000 - mean),
            found=people > self._tracker.known(frame.monotonic),
        )
        if self._previews.wants(self._camera):
            marks = (Mark(d.box, f"{d.label} {_number(t.name)}  {d.score:.2f}") for t, d in changes.seen)
            self._previews.put(Preview(frame, tuple(marks), regions_of(self._blur, hidden), self._blur))

    def unseen(self, frame: Frame) -> None:
        """Takes a frame that the detector did not look at, for who watches; not where people must be unrecognisable."""
        if self._blur == "none" and self._previews.wants(self._camera):
            self._previews.put(Preview(frame, ()))

    def tick(self, now: float) -> None:
        """Monotonic time goes on, with frames or without."""
        self._end(self._tracker.expire(now))
        self.counts = replace(self.counts, in_view=self._tracker.in_view(now))

    def end_all(self, reason: Reason) -> None:
        """Ends every track: the camera is switched off, or ingest stops."""
        self._end(self._tracker.end_all(reason))
        self.counts = replace(self.counts, in_view=0)

    def _apply(self, changes: TrackChanges, frame: Frame, detail: Frame | None, hidden: tuple[Box, ...]) -> None:
        # A track that is continued under a new name ends before the new one starts.
        self._end(changes.ended)
        for track in changes.started:
            self._portraits[track.name] = Portrait(self._crops, self._tracking, frame.monotonic)
        for track, detection in changes.seen:
            others = tuple(other.box for other_track, other in changes.seen if other_track.name != track.name)
            self._zones.see(track.name, detection.box, frame.width, frame.height, track.label)
            view = View(frame, detection, others, self._blur, hidden)
            self._see(track, view if detail is None else view.on(detail), frame.monotonic)

    def _see(self, track: Track, view: View, now: float) -> None:
        portrait = self._portraits[track.name]
        portrait.shots.offer(view)
        if not portrait.announced:
            if not self._zones.admits(track.name, track.label):
                return
            portrait.announced = True
            self._outbox.track(self._message(track, TrackPhase.START))
            self._observe(ObservationKind.PERSON_SEEN, f"{track.label} {track.name} seen", track.name)
        shot = self._new_picture(portrait.in_view(track, now))
        if shot is not None:
            portrait.was_sent(shot, self._send(track, portrait, shot, CropKind.EARLY), now)
        if now - portrait.updated >= UPDATE_EVERY_S:
            portrait.updated = now
            self._outbox.track(self._message(track, TrackPhase.UPDATE, crop_id=portrait.crop_id))

    def _end(self, ended: tuple[tuple[Track, Reason], ...]) -> None:
        for track, reason in ended:
            portrait = self._portraits.pop(track.name)
            if not portrait.announced:
                self._zones.forget(track.name)
                continue
            final = self._new_picture(portrait.at_end())
            crop_id = portrait.crop_id
            if final is not None:
                # Before the end of the track: what the end promises is already there.
                crop_id = self._send(track, portrait, final, CropKind.FINAL)
            end = self._message(track, TrackPhase.END, reason, final_crop=final is not None, crop_id=crop_id)
            self._outbox.track(end)
            self._zones.forget(track.name)
            self._observe(
                ObservationKind.PERSON_LEFT,
                f"{track.label} {track.name} left after {track.last_seen - track.first_seen:.1f} s",
                track.name,
            )

    def _new_picture(self, choice: Choice) -> Shot | None:
        self._drops.add(Reason.SAME_PICTURE, choice.same)
        return choice.shot

    def _send(self, track: Track, portrait: Portrait, shot: Shot, kind: CropKind) -> str:
        """Publishes a crop, the final one with the first and the last picture of the track; gives its id."""
        crop_id = f"{event_id_of(track.name)}.{kind.value}"
        if kind is CropKind.EARLY and portrait.sent_in_view:
            crop_id = f"{crop_id}-{portrait.sent_in_view + 1}"
        extras: tuple[Shot, ...] = ()
        if kind is CropKind.FINAL and self._crops.first_and_last:
            extras = portrait.shots.around(shot)
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
            extra_keys=tuple(
                keys.extra_picture(crop_id, "first" if extra is portrait.shots.first else "last") for extra in extras
            ),
            extra_frames=tuple(extra.frame_number for extra in extras),
        )
        jpeg, *more = (encode_jpeg(picture.picture, self._crops.jpeg_quality) for picture in (shot, *extras))
        self._outbox.crop(message, jpeg, tuple(more))
        crops = dict(self.counts.crops)
        crops[kind.value] = crops.get(kind.value, 0) + 1
        self.counts = replace(self.counts, crops=crops)
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
