"""Which detection belongs to whom of the frame before: ultralytics' ByteTrack or BoT-SORT."""

from __future__ import annotations

import math
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ingest.detection import Detection
from ingest.frame import Image
from ingest.weights import prepare_ultralytics
from pipeline.messages import Box

BUFFER = 0.3
"""Boxes are matched larger by so much of their sides in each direction. At 5 frames a second somebody who walks fast is
further on by half of their box's width from one frame to the next; ByteTrack asks a new track for an overlap of 0.3 and
would never show them. (Buffered IoU: Yang et al., "Hard to Track Objects with Irregular Motions and Similar
Appearances? Make It Easier by Buffering the Matching Space", WACV 2023.)"""


REMEMBERED = 50
"""Removed tracks that are kept: ultralytics would keep a thousand, megabytes a camera, and looks at the latest only."""


def buffered(box: Box) -> Box:
    """The box as it is matched."""
    x, y = BUFFER * (box[2] - box[0]), BUFFER * (box[3] - box[1])
    return box[0] - x, box[1] - y, box[2] + x, box[3] + y


class Association:
    """One camera's inner tracker, from one gap to the next. Ids stay inside; they start again with each object."""

    def __init__(self, tracker: Literal["bytetrack", "botsort"], lost_s: float, fps: float, confidence: float) -> None:
        """Settings are those of ultralytics' yaml files, but for the thresholds that the camera sets.

        BoT-SORT's re-identification isn't used: it needs the detector's other head or another network.
        """
        prepare_ultralytics()
        from ultralytics.trackers.basetrack import BaseTrack
        from ultralytics.trackers.bot_sort import BOTSORT
        from ultralytics.trackers.byte_tracker import BYTETracker

        settings = SimpleNamespace(
            track_high_thresh=confidence,
            track_low_thresh=0.1,
            new_track_thresh=confidence,
            track_buffer=max(2, math.ceil(lost_s * fps)),
            match_thresh=0.8,
            fuse_score=True,
            gmc_method="sparseOptFlow",
            proximity_thresh=0.5,
            appearance_thresh=0.8,
            with_reid=False,
            model="auto",
        )
        self._wants_image = tracker == "botsort"
        # Older ultralytics counts ids for the whole process, and a new tracker sets that counter back: ids that another
        # camera's tracker still uses would come again.
        count = BaseTrack._count
        self._inner: Any = BOTSORT(settings) if tracker == "botsort" else BYTETracker(settings)
        BaseTrack._count = max(count, BaseTrack._count)

    @property
    def frames(self) -> int:
        """How many it was shown."""
        return int(self._inner.frame_id)

    @property
    def kept(self) -> int:
        """How many tracks it holds, the removed ones that it remembers included."""
        inner = self._inner
        return len(inner.tracked_stracks) + len(inner.lost_stracks) + len(inner.removed_stracks)

    def update(self, detections: tuple[Detection, ...], image: Image | None) -> list[tuple[int, Detection]]:
        """An id for each detection that gets one."""
        rows = self._inner.update(_Input.of(detections), image if self._wants_image else None)
        del self._inner.removed_stracks[:-REMEMBERED]
        pairs: list[tuple[int, Detection]] = []
        for row in rows:
            *_, inner_id, _, _, index = row
            pairs.append((int(inner_id), detections[int(index)]))
        return pairs


@dataclass(frozen=True, slots=True, eq=False)
class _Input:
    """Detections in the form that ultralytics' trackers ask for: columns, and rows chosen by a mask."""

    xywh: NDArray[np.float32]
    conf: NDArray[np.float32]
    cls: NDArray[np.float32]

    @classmethod
    def of(cls, detections: tuple[Detection, ...]) -> _Input:
        x1, y1, x2, y2 = np.asarray([buffered(d.box) for d in detections], dtype=np.float32).reshape(-1, 4).T
        xywh = np.stack(((x1 + x2) / 2, (y1 + y2) / 2, x2 - x1, y2 - y1), axis=1)
        return cls(xywh, np.asarray([d.score for d in detections], dtype=np.float32), np.zeros(len(xywh), np.float32))

    @property
    def xyxy(self) -> NDArray[np.float32]:
        half = self.xywh[:, 2:] / 2
        return np.concatenate((self.xywh[:, :2] - half, self.xywh[:, :2] + half), axis=1)

    def __len__(self) -> int:
        return len(self.xywh)

    def __getitem__(self, chosen: NDArray[np.bool_]) -> _Input:
        return _Input(self.xywh[chosen], self.conf[chosen], self.cls[chosen])
