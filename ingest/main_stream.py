"""The large stream of a camera whose small one is looked at: decoded while somebody is in view."""

from __future__ import annotations

import math

from ingest.camera import CameraReader
from ingest.counts import DropCounts
from ingest.decoder import DecoderDevices
from ingest.frame import Frame, RecentFrames
from ingest.idle import IdleGate
from pipeline.clock import Clock
from pipeline.config import CameraConfig

IDLE_AFTER_S = 5.0
"""Nobody in view for so long: from then on keyframes only, which costs next to nothing."""


class MainStream:
    """Keeps the pictures of the last moments. It may fail without harm: crops then come from the small stream.

    Its drops are not counted among the camera's: nothing is missed when it drops one.
    """

    def __init__(self, config: CameraConfig, clock: Clock, devices: DecoderDevices) -> None:
        self._apart_s = config.substream_apart_s
        self._recent = RecentFrames(keep=1 + math.ceil(2 * config.substream_apart_s * config.fps))
        self._reader = CameraReader(
            config,
            self._recent,
            DropCounts(),
            clock,
            devices=devices,
            idle=IdleGate(IDLE_AFTER_S, clock.monotonic()),
            title=f"{config.id} (main stream)",
        )
        self.start = self._reader.start
        self.request_stop = self._reader.request_stop
        self.stop = self._reader.stop
        self.keep_awake = self._reader.keep_awake

    def picture_of(self, frame: Frame) -> Frame | None:
        """The large picture of the moment at which a small one arrived; None when there is none."""
        return self._recent.nearest(frame.monotonic, self._apart_s)
