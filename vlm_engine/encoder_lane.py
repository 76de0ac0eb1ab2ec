"""Where slices of encodings run, and how their time is known.

On a CPU a slice runs while the engine waits, and the clock says how long it took. On CUDA a slice is only launched: its
time is measured by events, read when the device has passed them, and what a step spends is counted by predictions. With
a stream of its own, at low priority, the device runs slices in what the decoder's kernels leave of it.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Protocol, TypeVar

import torch

from vlm_engine.row_cuts import SliceWork

T = TypeVar("T")


class Lane(Protocol):
    """Runs slices.

    Attributes:
        waits: whether a slice is over when :meth:`run` returns, so that measured time counts.
    """

    waits: bool

    def run(self, work: SliceWork, advance: Callable[[], T]) -> T:
        """Runs (CPU) or launches (CUDA) one slice."""
        ...

    def measured(self) -> list[tuple[SliceWork, float]]:
        """Slices measured since the last call, with their seconds."""
        ...

    def join(self) -> None:
        """Everything launched after this sees what the slices computed."""
        ...


class CpuLane:
    """The engine's own thread."""

    waits = True

    def __init__(self) -> None:
        self._measured: list[tuple[SliceWork, float]] = []

    def run(self, work: SliceWork, advance: Callable[[], T]) -> T:
        started = time.perf_counter()
        result = advance()
        self._measured.append((work, time.perf_counter() - started))
        return result

    def measured(self) -> list[tuple[SliceWork, float]]:
        measured, self._measured = self._measured, []
        return measured

    def join(self) -> None:
        """Nothing is on its way."""


class CudaLane:
    """The current stream, or a low-priority one beside it.

    Args:
        device: a CUDA device.
        side_stream: whether slices get a stream of their own.
    """

    waits = False

    def __init__(self, device: torch.device, side_stream: bool) -> None:
        self._device = device
        # Higher numbers are lower priorities; 0 is the lowest there is, and -1 what the decoder gets then.
        self._side = torch.cuda.Stream(device, priority=0) if side_stream else None  # type: ignore[no-untyped-call]
        self._pending: deque[tuple[SliceWork, torch.cuda.Event, torch.cuda.Event]] = deque()

    def run(self, work: SliceWork, advance: Callable[[], T]) -> T:
        main = torch.cuda.current_stream(self._device)
        stream = self._side or main
        if self._side is not None:
            self._side.wait_stream(main)  # the picture's tensors were copied there
        begun = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        ended = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        # The stream is entered around the switch into the task and left after it: a task never does that itself.
        with torch.cuda.stream(stream):
            begun.record(stream)
            result = advance()
            ended.record(stream)
        self._pending.append((work, begun, ended))
        return result

    def measured(self) -> list[tuple[SliceWork, float]]:
        done: list[tuple[SliceWork, float]] = []
        while self._pending and self._pending[0][2].query():  # type: ignore[no-untyped-call]
            work, begun, ended = self._pending.popleft()
            done.append((work, begun.elapsed_time(ended) / 1000.0))
        return done

    def join(self) -> None:
        if self._side is not None:
            torch.cuda.current_stream(self._device).wait_stream(self._side)


def make_lane(device: torch.device, side_stream: bool) -> Lane:
    """The lane for a device; ``side_stream`` matters on CUDA alone."""
    return CudaLane(device, side_stream) if device.type == "cuda" else CpuLane()
