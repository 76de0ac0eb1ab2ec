"""Messages as ingest makes them."""

from __future__ import annotations

import time

from pipeline.messages import CropKind, CropMessage, TrackMessage, TrackPhase, event_id_of
from pipeline.queue import keys
from pipeline.reasons import Reason


def track_message(track: str, phase: TrackPhase, final_crop: bool = False) -> TrackMessage:
    now = time.time()
    return TrackMessage(
        track=track,
        camera=track.partition("/")[0],
        phase=phase,
        label="person",
        time=now,
        first_seen=now - 1,
        last_seen=now,
        box=(1.0, 2.0, 3.0, 4.0),
        score=0.9,
        reason=Reason.NONE,
        final_crop=final_crop,
    )


def crop_message(track: str, kind: CropKind = CropKind.EARLY, deadline: float | None = None) -> CropMessage:
    crop_id = f"{event_id_of(track)}.{kind.value}"
    return CropMessage(
        crop_id=crop_id,
        camera=track.partition("/")[0],
        track=track,
        kind=kind,
        time=time.time(),
        box=(1.0, 2.0, 3.0, 4.0),
        score=0.9,
        quality=0.5,
        frame_id=1,
        picture_key=keys.picture(crop_id),
        label="person",
        deadline=time.time() + 60 if deadline is None else deadline,
        width=64,
        height=128,
        frame_width=640,
        frame_height=480,
    )
