"""One detector for many cameras: fair, and unimpressed by the failure of any."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from ingest.counts import DropCounts
from ingest.detection import Rows
from ingest.detector import DetectorGroup
from ingest.detector_loop import DetectorLoop
from ingest.frame import Frame, FrameSlot
from pipeline.clock import SystemClock
from tests.ingest.helpers import wait_for

NOBODY: Rows = np.zeros((0, 6), dtype=np.float32)
ONE, OTHER = DetectorGroup("yolo26n.pt", None, 640), DetectorGroup("yolo26n.pt", None, 320)


class SlowNetwork:
    """Stands for the network alone: the loop's own work is what is tested. Runs one forward each time it is let."""

    def __init__(self) -> None:
        self.most = 1
        self.turns = threading.Semaphore(0)
        self.fails = False
        self.forwards: list[tuple[DetectorGroup, int]] = []

    def batch_size(self, group) -> int:
        return self.most

    def detect(self, group, images) -> list[Rows]:
        self.turns.acquire(timeout=5)
        self.forwards.append((group, len(images)))
        if self.fails:
            raise RuntimeError("out of memory")
        return [NOBODY] * len(images)


class Camera:
    """A feed that always has a newer frame."""

    def __init__(self, name: str, loop: DetectorLoop, group: DetectorGroup = ONE) -> None:
        self.camera = name
        self.group = group
        self.still = False
        self.asked = 0
        self.drops = DropCounts()
        self.slot = FrameSlot(self.drops, loop.wake)
        self.seen: list[int] = []
        self.failed: list[int] = []
        self.ticks = 0
        self.breaks = False
        self._number = 0

    def put(self) -> None:
        self._number += 1
        self.slot.put(Frame(self.camera, self._number, np.zeros((4, 4, 3), dtype=np.uint8), 0.0, 0.0, 1))

    def wants(self, frame: Frame) -> bool:
        self.asked += 1
        return not self.still

    def detected(self, frame: Frame, rows: Rows, seconds: float) -> None:
        self.seen.append(frame.number)
        if self.breaks:
            raise ValueError("this camera's analysis is broken")

    def detector_failed(self, frame: Frame) -> None:
        self.failed.append(frame.number)

    def tick(self, now: float) -> None:
        self.ticks += 1


@pytest.fixture
def network() -> SlowNetwork:
    return SlowNetwork()


@pytest.fixture
def loop(network):
    loop = DetectorLoop(network, SystemClock())
    yield loop
    network.turns.release(1000)
    loop.stop(5)


def rounds(network, cameras, number: int) -> None:
    """So many forwards, each with a new frame waiting in every camera."""
    for _ in range(number):
        for camera in cameras:
            camera.put()
        done = sum(len(c.seen) + len(c.failed) for c in cameras)
        network.turns.release()
        wait_for(lambda done=done: sum(len(c.seen) + len(c.failed) for c in cameras) > done, what="a forward")


def test_r58_each_camera_has_its_turn(network, loop):
    cameras = [Camera(name, loop) for name in ("busy", "calm", "far")]
    for camera in cameras:
        loop.add(camera)
    loop.start()

    rounds(network, cameras, 30)

    assert all(8 <= len(camera.seen) <= 12 for camera in cameras), [len(c.seen) for c in cameras]


def test_a_slow_detector_gets_the_newest_frame_and_the_others_are_counted(network, loop):
    camera = Camera("busy", loop)
    loop.add(camera)
    for _ in range(50):
        camera.put()
    loop.start()
    network.turns.release()
    wait_for(lambda: camera.seen, what="the first forward")

    assert camera.seen == [50]
    assert camera.drops.totals() == {"frame_stale": 49}


def test_frames_of_several_cameras_share_a_forward_where_that_pays(network, loop):
    network.most = 4
    cameras = [Camera(str(n), loop) for n in range(6)]
    for camera in cameras:
        loop.add(camera)
        camera.put()
    loop.start()
    network.turns.release()
    wait_for(lambda: sum(len(c.seen) for c in cameras) == 4, what="four frames in one forward")
    network.turns.release()
    wait_for(lambda: all(c.seen for c in cameras), what="the others in the next")


def test_a_failing_forward_costs_its_frames_only(network, loop):
    cameras = [Camera("one", loop), Camera("two", loop)]
    for camera in cameras:
        loop.add(camera)
    loop.start()
    network.fails = True
    rounds(network, cameras, 4)
    network.fails = False
    rounds(network, cameras, 4)

    assert sum(len(c.failed) for c in cameras) == 4
    assert sum(len(c.seen) for c in cameras) == 4


def test_r04_a_camera_whose_analysis_breaks_does_not_disturb_the_others(network, loop):
    broken, sound = Camera("broken", loop), Camera("sound", loop)
    broken.breaks = True
    loop.add(broken)
    loop.add(sound)
    loop.start()

    rounds(network, [broken, sound], 8)

    assert len(sound.seen) >= 3
    assert len(broken.seen) >= 3


def test_time_goes_on_for_cameras_without_frames(network, loop):
    camera = Camera("silent", loop)
    loop.add(camera)
    loop.start()

    wait_for(lambda: camera.ticks >= 3, what="three ticks")


def test_a_removed_camera_is_never_called_again(network, loop):
    camera = Camera("gone", loop)
    loop.add(camera)
    loop.start()
    camera.put()
    loop.remove("gone")
    network.turns.release(3)
    other = Camera("other", loop)
    loop.add(other)
    other.put()
    wait_for(lambda: other.seen, what="the next forward")

    assert camera.seen == []
    ticks = camera.ticks
    wait_for(lambda: other.ticks >= 2, what="two ticks")
    assert camera.ticks == ticks


def test_only_frames_of_one_group_share_a_forward_and_every_group_has_its_turn(network, loop):
    network.most = 4
    cameras = [Camera(str(n), loop, ONE if n % 2 else OTHER) for n in range(6)]
    for camera in cameras:
        loop.add(camera)
        camera.put()
    loop.start()

    rounds(network, cameras, 10)

    assert {count for _, count in network.forwards} == {3}
    groups = [group for group, _ in network.forwards]
    assert {groups.count(ONE), groups.count(OTHER)} == {5}, groups


def test_a_frame_that_is_not_wanted_costs_no_forward(network, loop):
    still, moving = Camera("still", loop), Camera("moving", loop)
    still.still = True
    loop.add(still)
    loop.add(moving)
    loop.start()

    for _ in range(5):
        still.put()
        moving.put()
        done = len(moving.seen)
        network.turns.release()
        wait_for(lambda done=done: len(moving.seen) > done, what="a forward")
    wait_for(lambda: still.asked >= 5, what="the question")

    assert still.seen == []
    assert sum(count for _, count in network.forwards) == 5
