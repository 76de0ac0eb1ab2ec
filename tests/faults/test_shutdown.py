"""R67: SIGTERM ends each process in time and leaves the truth behind; a second one ends it at once. Real processes."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest
import redis
import yaml

from benchmarks.queue_load.engine import PacedEngine
from benchmarks.queue_load.station import QueueStation, wait_until
from ingest.demo_camera import DemoCamera, PhotoClip
from pipeline.embedded_redis import EmbeddedValkey
from pipeline.messages import TrackMessage, TrackPhase
from pipeline.queue import keys
from pipeline.queue.crops import CropWriter
from pipeline.queue.tracks import TrackWriter
from pipeline.reasons import Reason
from tests.pipeline.material import crop_of, jpeg_of, track_of

IN_FLIGHT = 5
AT_ONCE_S = 4.0
"""Far below what the process would still wait for; a busy machine needs some of it."""
pytestmark = pytest.mark.timeout(240)


def events(database: Path) -> dict[str, tuple[str, str, float, str]]:
    """Event -> state, why it ended, last seen, description's state."""
    query = "SELECT id, state, end_reason, last_seen, description_state FROM events"
    with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as connection:
        return {row[0]: row[1:] for row in connection.execute(query)}


@pytest.fixture
def station(tmp_path: Path):
    """`watchword serve` with five crops in flight at an engine that never answers, and their events open."""
    config = {"describer": {"concurrency": IN_FLIGHT, "timeout_s": 60}}
    with PacedEngine(0, hang=True) as engine, QueueStation(tmp_path, engine.base_url, sections=config) as station:
        assert station.client is not None
        crops, tracks = CropWriter(station.client, redis_config()), TrackWriter(station.client)
        for n in range(IN_FLIGHT):
            seen = time.time() - 10
            track = track_of(TrackPhase.START, track=f"front/a-{n}", time=seen, first_seen=seen, last_seen=seen + n)
            tracks.publish(track)
            crops.publish(crop_of(f"c{n}", track=f"front/a-{n}"), jpeg_of(n))
        assert wait_until(lambda: engine.in_work == IN_FLIGHT, 60), station.tail()
        assert wait_until(lambda: len(events(station.database)) == IN_FLIGHT, 30), station.tail()
        yield station


def redis_config():
    from pipeline.config import RedisConfig

    return RedisConfig()


def pending(client: redis.Redis) -> int:
    return client.xpending(keys.crops("front"), keys.GROUP)["pending"]


def test_r67_serve_ends_in_time_with_crops_unacknowledged_and_events_interrupted(station: QueueStation) -> None:
    seen = {name: event[2] for name, event in events(station.database).items()}
    # The person of one event leaves at this very moment: that is stored before the end.
    left = track_of(TrackPhase.END, track="front/a-0", last_seen=seen["front.a-0"] + 1, reason=Reason.TRACK_LOST)
    TrackWriter(station.client).publish(left)

    code, seconds = station.end("serve")

    assert code == 0, station.tail()
    assert seconds < 20
    assert (station.client.xlen(keys.crops("front")), pending(station.client)) == (IN_FLIGHT, IN_FLIGHT)
    assert station.client.hgetall(keys.DROPS) == {}
    stored = events(station.database)
    assert stored["front.a-0"][:3] == ("ended", "track_lost", seen["front.a-0"] + 1)
    for n in range(1, IN_FLIGHT):
        assert stored[f"front.a-{n}"][:3] == ("interrupted", "interrupted", seen[f"front.a-{n}"])
    assert "Traceback" not in station.tail()


def test_r67_a_second_sigterm_ends_serve_at_once(station: QueueStation) -> None:
    pid = station.pid("serve")
    os.kill(pid, signal.SIGTERM)
    assert wait_until(lambda: "stopping" in station.tail(), 10)
    time.sleep(0.6)  # signals closer together count as one
    began = time.monotonic()
    code, _ = station.end("serve")
    assert time.monotonic() - began < AT_ONCE_S
    assert code == 1
    assert pending(station.client) == IN_FLIGHT


@pytest.fixture(scope="module")
def weights(shared_data: Path) -> Path:
    pytest.importorskip("openvino", reason="the shared detector weights are an OpenVINO export")
    return shared_data / "yolo" / "yolo26n_int8_openvino_model"


@pytest.fixture
def start(tmp_path: Path, weights: Path):
    """``start(command, redis_url)`` -> a watchword process that watches a demo camera, with its log's path."""
    running: list[subprocess.Popen[bytes]] = []
    camera = DemoCamera(PhotoClip())
    camera.start()
    config = tmp_path / "watchword.yaml"

    def begin(command: str, redis_url: str | None, **sections) -> tuple[subprocess.Popen[bytes], Path]:
        tree = {
            "cameras": [{"id": "door", "url": camera.url, "fps": 5}],
            "detector": {"weights": str(weights), "imgsz": 320, "confidence": 0.4},
            "crops": {"early_after_s": 0.5},
            "store": {"data_dir": str(tmp_path / "data")},
        }
        config.write_text(yaml.safe_dump(tree | sections))
        log = tmp_path / f"{command}.log"
        environ = os.environ | ({"WATCHWORD_REDIS__URL": redis_url} if redis_url else {})
        argv = [sys.executable, "-m", "pipeline.cli", command, "--config", str(config)]
        with log.open("wb") as output:
            process = subprocess.Popen(argv, stdout=output, stderr=subprocess.STDOUT, env=environ)
        running.append(process)
        return process, log

    yield begin
    for process in running:
        if process.poll() is None:
            process.kill()
        process.wait(20)
    camera.stop()


def test_r67_ingest_ends_in_time_and_reports_its_open_tracks(start, tmp_path: Path) -> None:
    with EmbeddedValkey() as valkey, redis.Redis.from_url(valkey.url) as client:
        process, log = start("ingest", valkey.url)
        messages: dict[str, list[TrackMessage]] = {}

        def read() -> None:
            messages.clear()
            for _, fields in client.xrange(keys.TRACKS):
                message = TrackMessage.from_fields(fields)
                messages.setdefault(message.track, []).append(message)

        def somebody_is_in_view() -> bool:
            read()
            return any(told[-1].phase is not TrackPhase.END for told in messages.values())

        assert wait_until(somebody_is_in_view, 120), log.read_text()
        began = time.time()
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0, log.read_text()
        read()
        last = [told[-1] for told in messages.values()]
        assert {message.phase for message in last} == {TrackPhase.END}
        interrupted = [message for message in last if message.reason is Reason.SHUTDOWN]
        assert interrupted, last
        for message in interrupted:
            assert began - 5 < message.last_seen <= time.time(), "the true time of the last detection"


def test_r67_a_second_sigterm_ends_up_and_all_its_parts_at_once(start) -> None:
    with PacedEngine(0, hang=True) as engine:
        section = {"backend": "openai", "base_url": engine.base_url, "model": "paced"}
        server = {"port": 0}
        process, log = start("up", None, engine=section, server=server)
        # A crop is in work: serve would wait for it.
        assert wait_until(lambda: engine.in_work > 0, 150), log.read_text()
        children = descendants(process.pid)
        process.send_signal(signal.SIGTERM)
        time.sleep(0.6)  # signals closer together count as one
        assert process.poll() is None, "a first SIGTERM lets the parts finish"
        began = time.monotonic()
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 1, log.read_text()
        assert time.monotonic() - began < AT_ONCE_S
        assert wait_until(lambda: not [pid for pid in children if os.path.exists(f"/proc/{pid}")], 10)


def descendants(pid: int) -> list[int]:
    try:
        found = [int(word) for task in Path(f"/proc/{pid}/task").iterdir() for word in children_of(task)]
    except OSError:
        return []
    return found + [below for child in found for below in descendants(child)]


def children_of(task: Path) -> list[str]:
    return (task / "children").read_text().split()
