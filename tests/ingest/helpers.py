"""What several ingest tests need: waiting, a clock of their own, a clip with numbers in it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

import numpy as np

from ingest.detection import Detection
from ingest.frame import Frame, FrameSlot

T = TypeVar("T")


def wait_for(condition: Callable[[], T], timeout: float = 10.0, what: str = "condition") -> T:
    """Polls until the condition is true, and gives its value back."""
    deadline = time.monotonic() + timeout
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise AssertionError(f"{what} did not come true within {timeout} s")
        time.sleep(0.01)
    return value


class FakeClock:
    """Time as the test decides."""

    def __init__(self, now: float = 1_700_000_000.0, monotonic: float = 100.0) -> None:
        self._now = now
        self._monotonic = monotonic

    def now(self) -> float:
        return self._now

    def monotonic(self) -> float:
        return self._monotonic

    def advance(self, seconds: float) -> None:
        self._now += seconds
        self._monotonic += seconds


class ShiftedClock:
    """The machine's clocks, but the time of day is what the test says, and either can be put forward."""

    def __init__(self, now: float | None = None) -> None:
        self._offset = now - time.time() if now is not None else 0.0
        self._monotonic_offset = 0.0

    def now(self) -> float:
        return time.time() + self._offset

    def monotonic(self) -> float:
        return time.monotonic() + self._monotonic_offset

    def advance(self, seconds: float) -> None:
        """The time of day alone."""
        self._offset += seconds

    def advance_monotonic(self, seconds: float) -> None:
        self._monotonic_offset += seconds


class NumberedClip:
    """Each picture carries its own number, in sixteen black or white fields that survive the encoder."""

    width = 256
    height = 64

    def __init__(self, fps: int) -> None:
        self._fps = fps

    def picture(self, seconds: float) -> np.ndarray:
        number = round(seconds * self._fps)
        image = np.full((self.height, self.width, 3), 128, dtype=np.uint8)
        for bit in range(16):
            image[:, bit * 16 : bit * 16 + 16] = 255 if number >> bit & 1 else 0
        return image


class NoisyClip(NumberedClip):
    """Numbers above, noise below: every slice is long, so that the decoder notices when one is damaged."""

    height = 192

    def picture(self, seconds: float) -> np.ndarray:
        image = super().picture(seconds)
        rng = np.random.default_rng(round(seconds * self._fps))
        image[64:] = rng.integers(0, 255, image[64:].shape, dtype=np.uint8)
        return image


class StillClip:
    """Always the same picture: what a camera with a hung sensor shows, or one without noise that nobody passes."""

    def __init__(self, width: int = 256, height: int = 64) -> None:
        self.width = width
        self.height = height
        self._picture = np.random.default_rng(1).integers(0, 255, (height, width, 3), dtype=np.uint8)

    def picture(self, seconds: float) -> np.ndarray:
        return self._picture


def number_of(image: np.ndarray) -> int:
    """The number that a NumberedClip put into the picture."""
    return sum((int(image[32, bit * 16 + 8].mean()) > 128) << bit for bit in range(16))


class CollectingSlot(FrameSlot):
    """A slot that notes each frame and the moment it came."""

    def __init__(self, drops) -> None:
        self.frames: list[Frame] = []
        self.on_frame: Callable[[Frame], object] = lambda frame: None
        """Called in the reader's thread after each frame."""
        super().__init__(drops, lambda: None)

    def put(self, frame: Frame) -> None:
        self.frames.append(frame)
        self.on_frame(frame)


def person(x1: float, y1: float, x2: float, y2: float, score: float = 0.9) -> Detection:
    return Detection((x1, y1, x2, y2), score, "person")


def frame_of(
    image: np.ndarray, number: int = 1, time: float = 0.0, monotonic: float = 0.0, camera: str = "cam"
) -> Frame:
    return Frame(camera, number, image, time, monotonic, 1)
