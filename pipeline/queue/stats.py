"""How full the queue is, camera by camera, and who works on it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class CameraQueue:
    """One camera's part of the queue.

    Attributes:
        waiting: crops that no describer holds.
        held: crops that describers work on.
        oldest_age: seconds since the oldest waiting crop's frame, None when none waits.
        bytes: of the pictures of both.
    """

    camera: str
    waiting: int
    held: int
    oldest_age: float | None
    bytes: int


@dataclass(frozen=True, slots=True)
class Consumer:
    """A describing process as the group knows it.

    Attributes:
        held: crops that it works on.
        idle: seconds since it last did something with any camera's queue.
    """

    name: str
    held: int
    idle: float


@dataclass(frozen=True, slots=True)
class QueueStats:
    """The whole queue.

    Attributes:
        dead: dead letters.
    """

    cameras: tuple[CameraQueue, ...]
    consumers: tuple[Consumer, ...]
    dead: int

    @property
    def depth(self) -> Mapping[str, int]:
        """Camera -> crops that wait."""
        return {queue.camera: queue.waiting for queue in self.cameras}

    @property
    def waiting(self) -> int:
        """Crops that wait, of all cameras."""
        return sum(queue.waiting for queue in self.cameras)

    @property
    def pending(self) -> int:
        """Crops that describers hold."""
        return sum(queue.held for queue in self.cameras)

    @property
    def oldest_age(self) -> float | None:
        """Seconds since the oldest waiting crop's frame, None when none waits."""
        return max((queue.oldest_age for queue in self.cameras if queue.oldest_age is not None), default=None)


def read_stats(cameras: Sequence[str], rows: Sequence[Any], *, dead: int, now: float) -> QueueStats:
    """What ``stats.lua`` said of these cameras. ``now``: seconds since the epoch."""
    queues: list[CameraQueue] = []
    held_by: dict[str, int] = {}
    idle_of: dict[str, float] = {}
    for camera, (waiting, held, oldest, size, consumers) in zip(cameras, rows, strict=True):
        age = max(0.0, now - float(oldest)) if oldest else None
        queues.append(CameraQueue(camera, waiting, held, age, size))
        for raw, count, idle_ms in zip(consumers[::3], consumers[1::3], consumers[2::3], strict=True):
            name = raw.decode(errors="replace")
            held_by[name] = held_by.get(name, 0) + count
            idle_of[name] = min(idle_of.get(name, float("inf")), idle_ms / 1000)
    people = tuple(Consumer(name, held_by[name], idle_of[name]) for name in sorted(held_by))
    return QueueStats(tuple(queues), people, dead)
