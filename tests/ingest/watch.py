"""A camera's reader under watch: what it handed on, and every state it went through."""

from __future__ import annotations

from ingest.backoff import Backoff
from ingest.camera import CameraHealth, CameraReader
from ingest.counts import DropCounts
from ingest.decoder import DecoderDevices
from pipeline.clock import Clock, SystemClock
from pipeline.config import CameraConfig
from pipeline.messages import CameraState
from pipeline.reasons import Reason
from tests.ingest.helpers import CollectingSlot, wait_for


class Watch:
    """A reader, what it handed on, and every state it went through. Short times, so that tests are."""

    def __init__(
        self,
        url: str,
        retry: float = 0.02,
        devices: DecoderDevices | None = None,
        clock: Clock | None = None,
        **settings,
    ) -> None:
        times = {
            "open_timeout_s": 1.0,
            "first_frame_timeout_s": 1.5,
            "stall_timeout_s": 1.0,
            "fps": 25,
            "decode": "cpu",
        }
        self.drops = DropCounts()
        self.slot = CollectingSlot(self.drops)
        self.states: list[CameraHealth] = []
        self.reader = CameraReader(
            CameraConfig(id="cam", url=url, **{**times, **settings}),
            self.slot,
            self.drops,
            clock or SystemClock(),
            self.states.append,
            Backoff(first=retry, cap=retry),
            devices,
        )

    def __enter__(self) -> Watch:
        self.reader.start()
        return self

    def __exit__(self, *_) -> None:
        self.reader.stop(10)

    def wait_for_state(self, state: CameraState, reason: Reason = Reason.NONE, timeout: float = 30) -> CameraHealth:
        def seen() -> list[CameraHealth]:
            return [health for health in self.states if (health.state, health.reason) == (state, reason)]

        return wait_for(seen, timeout, f"{state} {reason}, got {self.states}")[0]

    def wait_for_frames(self, more: int, timeout: float = 30) -> None:
        wanted = len(self.slot.frames) + more
        wait_for(lambda: len(self.slot.frames) >= wanted, timeout, f"{more} more frames")


def online(health: CameraHealth) -> bool:
    return health.state is CameraState.ONLINE
