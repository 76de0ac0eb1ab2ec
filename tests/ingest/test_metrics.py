"""Ingest's own metrics, fetched over HTTP, and the same ones of serve."""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Iterator
from dataclasses import replace

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from ingest.metrics import IngestMetrics, MetricsServer
from ingest.publisher import PublisherHealth
from ingest.rate import Rate
from pipeline.camera_metrics import camera_families, drop_family
from pipeline.clock import SystemClock
from pipeline.config import IngestConfig
from pipeline.messages import CameraState, CameraStatus
from pipeline.reasons import Reason


def status(camera: str, **fields) -> CameraStatus:
    now = time.time()
    return CameraStatus(camera, camera, CameraState.ONLINE, Reason.NONE, now - 60, now, **fields)


FRONT = status(
    "front", fps_in=25.0, fps=5.0, fps_processed=4.5, frame_age=0.2, reconnects=3, decoder="cpu", detector_ms=31.5,
    tracks=2, crops=7, crops_by_kind={"final": 7}, frames=100, detections=40,
    drops={"frame_stale": 28, "frame_tainted": 4},
)  # fmt: skip


@pytest.fixture
def server() -> Iterator[MetricsServer]:
    health = PublisherHealth(True, Reason.NONE, 0.0, 5, 0)

    def report() -> list[CameraStatus]:
        return [replace(FRONT, updated=time.time())]

    server = MetricsServer(IngestConfig(metrics_port=0), IngestMetrics(report, lambda: health, SystemClock()))
    server.start()
    yield server
    server.stop()


def samples(text: str) -> dict[tuple[str, ...], float]:
    """``(name, label values ...)`` -> value; fails where a name comes twice."""
    families = list(text_string_to_metric_families(text))
    names = [family.name for family in families]
    assert len(names) == len(set(names))
    return {(s.name, *s.labels.values()): s.value for family in families for s in family.samples}


def test_every_number_of_a_camera_is_there(server):
    found = samples(httpx.get(f"http://127.0.0.1:{server.port}/metrics", timeout=30).text)
    prefix = "watchword_camera_"
    assert found[prefix + "state", "front", "online"] == 1
    assert found[prefix + "state", "front", "stalled"] == 0
    assert (found[prefix + "fps_in", "front"], found[prefix + "fps_processed", "front"]) == (25, 4.5)
    assert 0.2 <= found[prefix + "frame_age_seconds", "front"] < 60
    assert found[prefix + "drops_total", "front", "frame_stale"] == 28
    assert found[prefix + "reconnects_total", "front"] == 3
    assert found[prefix + "decoder", "front", "cpu"] == 1
    assert found[prefix + "detector_milliseconds", "front"] == 31.5
    assert (found[prefix + "people", "front"], found[prefix + "crops_total", "front", "final"]) == (2, 7)
    assert found["watchword_ingest_redis_up",] == 1
    assert found["watchword_ingest_crops_waiting",] == 5
    assert any(name[0] == "process_open_fds" for name in found)


def test_serve_has_the_same_names_for_the_cameras_but_for_its_own_count_of_drops():
    ours = {family.name for family in camera_families([FRONT], time.time())}
    theirs = ours | {drop_family([FRONT]).name}
    assert theirs - ours == {"watchword_camera_drops"}


def test_it_listens_on_loopback_unless_told_otherwise(server):
    assert IngestConfig().metrics_host == "127.0.0.1"
    assert IngestConfig().metrics_port is None
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", server.port)) == 0


def test_a_port_that_is_taken_costs_the_metrics_alone(caplog):
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        second = MetricsServer(IngestConfig(metrics_port=port), IngestMetrics(list, lambda: None, SystemClock()))
        with caplog.at_level(logging.ERROR):
            second.start()
    assert second.port is None
    assert f"ingest.metrics_port {port}" in caplog.text
    second.stop()


def test_a_rate_is_that_of_the_last_seconds():
    rate = Rate()
    assert rate.per_second(0.0) == 0.0
    for tenth in range(1000):
        rate.count(tenth / 10)
    assert rate.per_second(100.0) == pytest.approx(10.0)
    assert rate.per_second(104.0) == pytest.approx(10.0)
    assert rate.per_second(106.0) == 0.0, "nothing came lately"
