"""Ingest end to end: a real RTSP stream of real people in, messages and pictures in a real Valkey out."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import cv2
import numpy as np
import pytest
import redis

from ingest.camera_changes import FILE_NAME
from ingest.demo_camera import DemoCamera, PhotoClip
from ingest.detector import Detectors
from ingest.observation import Observation, ObservationKind
from ingest.weights import WeightsUnavailable
from ingest.worker import IngestWorker
from pipeline.config import (
    CameraConfig,
    CropConfig,
    DetectorConfig,
    ScheduleConfig,
    StoreConfig,
    TrackingConfig,
    WatchwordConfig,
)
from pipeline.config.file_watch import ConfigFile
from pipeline.config.load import load_config
from pipeline.config.overlay import CameraChange, ChangeSet
from pipeline.messages import (
    CameraState,
    CameraStatus,
    CommandKind,
    CommandMessage,
    CropKind,
    CropMessage,
    TrackMessage,
    TrackPhase,
)
from pipeline.queue import keys
from pipeline.reasons import Reason
from tests.ingest.helpers import ShiftedClock, wait_for


class QuickClip(PhotoClip):
    """The same clip in a third of the time, from where the people come into view."""

    def picture(self, seconds: float) -> np.ndarray:
        return super().picture(2.0 + 3 * seconds)


@pytest.fixture(scope="module")
def camera() -> Iterator[DemoCamera]:
    camera = DemoCamera(QuickClip(), fps=10, gop=5)
    camera.start()
    yield camera
    camera.stop()


class Site:
    """A worker and what came out of it."""

    def __init__(self, url: str, weights, *cameras: CameraConfig, data_dir: Path | None = None, **options) -> None:
        self.client = redis.Redis.from_url(url)
        self.observed: list[Observation] = []
        self.worker = IngestWorker(
            WatchwordConfig(
                cameras=cameras,
                detector=DetectorConfig(weights=str(weights), device="cpu"),
                tracking=TrackingConfig(lost_s=0.8, rejoin_s=0.8),
                crops=CropConfig(early_after_s=0.6),
                store=StoreConfig(data_dir=data_dir or Path("no-data")),
            ),
            url,
            **options,
            on_observation=self.observed.append,
        )

    def tracks(self, phase: TrackPhase) -> list[TrackMessage]:
        messages = [TrackMessage.from_fields(fields) for _, fields in self.client.xrange(keys.TRACKS)]
        return [message for message in messages if message.phase is phase]

    def crops(self, camera: str) -> list[CropMessage]:
        return [CropMessage.from_fields(fields) for _, fields in self.client.xrange(keys.crops(camera))]

    def status(self, camera: str) -> CameraStatus | None:
        fields = self.client.hgetall(keys.camera(camera))
        return CameraStatus.from_fields(fields) if fields else None

    def wait_for_state(self, camera: str, state: CameraState) -> CameraStatus:
        def reached() -> CameraStatus | None:
            status = self.status(camera)
            return status if status is not None and status.state is state else None

        return wait_for(reached, 15, f"{camera} {state}")

    def command(self, kind: CommandKind, camera: str = "") -> None:
        message = CommandMessage(kind, camera, time.time())
        self.client.xadd(keys.COMMANDS, message.to_fields())


def test_from_rtsp_to_redis(camera, redis_url, openvino_weights):
    """Given the demo camera and one that refuses, people become tracks and crops, and a stop ends everything."""
    site = Site(
        redis_url,
        openvino_weights,
        CameraConfig(id="demo", name="Demo", url=camera.url, fps=10),
        CameraConfig(id="away", url="rtsp://admin:S3cret@127.0.0.1:1/x"),
    )
    site.worker.start()
    try:
        started = wait_for(lambda: site.tracks(TrackPhase.START), 15, "a person")
        early = wait_for(lambda: [c for c in site.crops("demo") if c.kind is CropKind.EARLY], 15, "an early crop")[0]
        ended = wait_for(lambda: site.tracks(TrackPhase.END), 20, "the end of a visit")[0]
        status = site.status("demo")
        away = site.wait_for_state("away", CameraState.UNREACHABLE)
        seen = len(site.tracks(TrackPhase.START))
        wait_for(lambda: len(site.tracks(TrackPhase.START)) > seen, 30, "somebody who has just come into view")
    finally:
        begun = time.monotonic()
        site.worker.stop()
        took = time.monotonic() - begun

    assert early.track in {message.track for message in site.tracks(TrackPhase.START)}
    assert all(message.track.startswith("demo/") for message in started)
    picture = cv2.imdecode(np.frombuffer(site.client.get(early.picture_key), np.uint8), cv2.IMREAD_COLOR)
    assert picture.shape[:2] == (early.height, early.width)
    assert early.frame_width, early.frame_height == (640, 480)
    assert ended.reason is Reason.TRACK_LOST
    assert ended.first_seen < ended.last_seen <= ended.time - 0.7, "the last sighting, not the time of noticing"
    assert (status.state, status.name, status.width, status.height) == (CameraState.ONLINE, "Demo", 640, 480)
    assert status.frames > 0
    assert status.detections > 0
    assert status.detector_ms > 0
    assert status.frame_age < 2
    assert away.reason is Reason.REFUSED
    assert away.next_retry is not None
    assert took < 8

    starts, ends = site.tracks(TrackPhase.START), site.tracks(TrackPhase.END)
    assert sorted(m.track for m in starts) == sorted(m.track for m in ends), "every track has an end"
    assert Reason.SHUTDOWN in {m.reason for m in ends}
    finals = {m.track for m in ends if m.final_crop}
    assert finals == {crop.track for crop in site.crops("demo") if crop.kind is CropKind.FINAL}
    assert site.status("demo").state is CameraState.STOPPING
    assert camera.clients == 0
    kinds = {observation.kind for observation in site.observed}
    assert {ObservationKind.CAMERA, ObservationKind.PERSON_SEEN, ObservationKind.CROP} <= kinds
    assert b"S3cret" not in b"".join(site.client.hgetall(keys.camera("away")).values())


class Changes:
    """What serve shares of the API's changes."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._set = ChangeSet()

    def set(self, camera: str, change: CameraChange) -> None:
        self._set = ChangeSet(self._set.revision + 1, {**self._set.cameras, camera: change})
        self._site.client.set(keys.CAMERA_CHANGES, self._set.to_json())
        self._site.command(CommandKind.CAMERAS)


@contextmanager
def running(site: Site) -> Iterator[None]:
    stop = threading.Event()
    runner = threading.Thread(target=site.worker.run_forever, args=(stop,))
    runner.start()
    try:
        wait_for(lambda: site.worker.redis_health().connected, 30, "a running worker")
        yield
    finally:
        stop.set()
        runner.join(20)
    assert not runner.is_alive()


def test_what_the_api_changes_is_watched(camera, redis_url, openvino_weights, tmp_path, caplog):
    """Given a running worker without cameras, each change does its work, and a wrong one changes nothing."""
    caplog.set_level(logging.INFO)
    site = Site(redis_url, openvino_weights, data_dir=tmp_path)
    changes = Changes(site)
    whole = {"url": camera.url, "fps": 5}
    with running(site):
        changes.set("yard", CameraChange(whole, whole=True))
        site.wait_for_state("yard", CameraState.ONLINE)

        site.command(CommandKind.WATCH, "yard")
        preview = wait_for(lambda: site.client.get(keys.preview("yard")), what="a preview")
        assert cv2.imdecode(np.frombuffer(preview, np.uint8), cv2.IMREAD_COLOR).shape == (480, 640, 3)
        site.command(CommandKind.UNWATCH, "yard")

        connections = camera.counts.connections
        changes.set("yard", CameraChange({**whole, "name": "Back yard"}, whole=True))
        wait_for(lambda: site.status("yard").name == "Back yard", what="the new name")
        assert camera.counts.connections == connections, "a new name needs no new connection"

        site.client.set(keys.CAMERA_CHANGES, "S3cret-nonsense")
        site.command(CommandKind.CAMERAS)
        wait_for(lambda: "changes can't be read" in caplog.text, what="the complaint")
        changes.set("bad", CameraChange({**whole, "password": "S3cret-word", "fps": -1}, whole=True))
        wait_for(lambda: "camera bad: what the API changed is not in force: fps" in caplog.text, what="the refusal")
        assert "S3cret" not in caplog.text
        assert [status.camera for status in site.worker.statuses()] == ["yard"]

        changes.set("yard", CameraChange({**whole, "enabled": False}, whole=True))
        assert site.wait_for_state("yard", CameraState.DISABLED).reason is Reason.SWITCHED_OFF
        wait_for(lambda: camera.clients == 0, what="the end of the session")
        changes.set("yard", CameraChange(whole, whole=True))
        site.wait_for_state("yard", CameraState.ONLINE)

        changes.set("yard", CameraChange())
        wait_for(lambda: not site.client.exists(keys.camera("yard")), what="removal")
        wait_for(lambda: camera.clients == 0, what="the end of the session")


def test_r08_a_camera_that_is_added_before_it_is_up_comes_online(
    demo, free_port, redis_url, openvino_weights, tmp_path
):
    site = Site(redis_url, openvino_weights, data_dir=tmp_path)
    with running(site):
        url = f"rtsp://127.0.0.1:{free_port}/demo"
        Changes(site).set("late", CameraChange({"url": url, "fps": 10}, whole=True))
        waiting = site.wait_for_state("late", CameraState.UNREACHABLE)
        assert waiting.next_retry is not None
        demo(port=free_port)
        site.wait_for_state("late", CameraState.ONLINE)


def test_only_cameras_whose_settings_changed_begin_anew(camera, redis_url, openvino_weights, tmp_path):
    """Given two cameras, a change of one leaves the other's connection and its people alone."""
    steady = CameraConfig(id="steady", url=camera.url, fps=10)
    site = Site(redis_url, openvino_weights, steady, CameraConfig(id="other", url=camera.url, fps=2), data_dir=tmp_path)
    with running(site):
        site.wait_for_state("steady", CameraState.ONLINE)
        before = site.wait_for_state("other", CameraState.ONLINE)
        since = site.status("steady").since
        wait_for(lambda: site.status("steady").tracks > 0, 30, "somebody in view")
        Changes(site).set("other", CameraChange({"fps": 3}))
        wait_for(lambda: site.status("other").since > before.since, 20, "the other begins anew")
        assert site.status("steady").since == since
        assert site.status("steady").reconnects == 0
        ends = [message for message in site.tracks(TrackPhase.END) if message.camera == "steady"]
        assert all(message.reason is Reason.TRACK_LOST for message in ends)


def test_the_configuration_file_is_followed(camera, redis_url, openvino_weights, tmp_path, caplog):
    """A new camera comes, a wrong file changes nothing and its line is told, a camera that is taken out goes."""
    caplog.set_level(logging.INFO)
    path = tmp_path / "watchword.yaml"
    one = f"cameras:\n  - id: one\n    url: {camera.url}\n"
    path.write_text(one)
    file = ConfigFile(path, load_config(path, {}))
    site = Site(redis_url, openvino_weights, *file.config.cameras, data_dir=tmp_path, file=file)
    with running(site):
        since = site.wait_for_state("one", CameraState.ONLINE).since
        path.write_text(one + f"  - id: two\n    url: {camera.url}\n    enabled: false\n")
        site.wait_for_state("two", CameraState.DISABLED)
        path.write_text(one + "    fsp: 3\n")
        wait_for(lambda: "line 4: cameras[0].fsp: unknown key; did you mean 'fps'?" in caplog.text, what="the line")
        assert {status.camera for status in site.worker.statuses()} == {"one", "two"}
        path.write_text(one)
        wait_for(lambda: not site.client.exists(keys.camera("two")), what="removal")
        assert site.status("one").since == since


@pytest.mark.parametrize("lost", ["redis was flushed", "redis is away"])
def test_what_the_api_switched_off_stays_off_when_ingest_starts_alone(
    camera, redis_url, openvino_weights, tmp_path, free_port, lost
):
    """Given a camera of the file that the API switched off: a new ingest finds neither serve nor what it shared."""
    watched = CameraConfig(id="front", url=camera.url)
    site = Site(redis_url, openvino_weights, watched, data_dir=tmp_path)
    with running(site):
        Changes(site).set("front", CameraChange({"enabled": False, "username": "u", "password": "S3cret-word"}))
        site.wait_for_state("front", CameraState.DISABLED)
    assert (tmp_path / FILE_NAME).stat().st_mode & 0o077 == 0, "it holds passwords"

    site.client.flushall()
    url = redis_url if lost == "redis was flushed" else f"redis://127.0.0.1:{free_port}"
    again = Site(url, openvino_weights, watched, data_dir=tmp_path)
    again.worker.start()
    try:
        assert [status.state for status in again.worker.statuses()] == [CameraState.DISABLED]
    finally:
        again.worker.stop()


def test_a_camera_is_watched_in_its_hours_only(camera, redis_url, openvino_weights, tmp_path):
    """Given a clock and a schedule from 18:00 to 19:00, the camera comes, says until when, and goes."""
    clock = ShiftedClock(datetime(2026, 3, 6, 17, 58, tzinfo=UTC).timestamp())
    hours = ScheduleConfig.model_validate({"timezone": "UTC", "windows": [{"start": "18:00", "end": "19:00"}]})
    six, seven = (datetime(2026, 3, 6, hour, tzinfo=UTC).timestamp() for hour in (18, 19))
    site = Site(
        redis_url,
        openvino_weights,
        CameraConfig(id="door", url=camera.url, schedule=hours),
        data_dir=tmp_path,
        clock=clock,
    )
    with running(site):
        closed = site.wait_for_state("door", CameraState.DISABLED)
        assert (closed.reason, closed.next_change) == (Reason.SCHEDULE, six)
        clients = camera.clients
        clock.advance(120)
        assert site.wait_for_state("door", CameraState.ONLINE).next_change == seven
        clock.advance(3600)
        assert site.wait_for_state("door", CameraState.DISABLED).reason is Reason.SCHEDULE
        wait_for(lambda: camera.clients == clients, what="the end of the session")
        ends = site.tracks(TrackPhase.END)
        assert {message.reason for message in ends} <= {Reason.TRACK_LOST, Reason.SWITCHED_OFF}


def test_missing_weights_stop_the_start_before_anything_runs(redis_url, tmp_path, monkeypatch):
    monkeypatch.setenv("WATCHWORD_CACHE", str(tmp_path))
    site = Site(redis_url, "yolo26s.pt")
    before = threading.active_count()

    with pytest.raises(WeightsUnavailable):
        site.worker.start()
    site.worker.stop()

    assert threading.active_count() == before


class Visit(PhotoClip):
    """A still scene; somebody stands in it while ``somebody`` is set."""

    somebody = False

    def picture(self, seconds: float) -> np.ndarray:
        return super().picture(7.0 if self.somebody else 0.2)


def test_a_still_scene_is_not_looked_at_until_somebody_comes(redis_url, openvino_weights, monkeypatch):
    """Given a camera with a motion gate and a privacy mask; what the detector is given is counted."""
    looked_at: list[np.ndarray] = []
    detect = Detectors.detect

    def counted(self, group, images):
        looked_at.extend(images)
        return detect(self, group, images)

    monkeypatch.setattr(Detectors, "detect", counted)
    clip = Visit()
    camera = DemoCamera(clip, fps=10, gop=5)
    camera.start()
    settings = CameraConfig(
        id="demo",
        url=camera.url,
        fps=10,
        frozen_after_s=0,
        motion={"hold_s": 0.4, "look_every_s": 0},
        masks=[[[0, 0], [0.1, 0], [0.1, 1], [0, 1]]],
    )
    site = Site(redis_url, openvino_weights, settings)
    site.worker.start()
    try:
        wait_for(lambda: site.status("demo"), 30, "a status")
        still = wait_for(lambda: site.status("demo").drops.get("frame_still"), 30, "frames that are left out")
        before = len(looked_at)
        wait_for(lambda: site.status("demo").drops["frame_still"] > still + 30, 60, "thirty frames more")
        assert len(looked_at) == before
        assert site.tracks(TrackPhase.START) == []

        site.command(CommandKind.WATCH, "demo")
        preview = wait_for(lambda: site.client.get(keys.preview("demo")), 30, "a preview of what nobody looks at")
        assert len(looked_at) == before
        shown = cv2.imdecode(np.frombuffer(preview, np.uint8), cv2.IMREAD_COLOR)
        assert shown[:, :56].max() < 20, "masked"
        assert shown[:, 80:].max() > 100

        clip.somebody = True
        wait_for(lambda: site.tracks(TrackPhase.START), 60, "somebody")
        assert len(looked_at) > before
    finally:
        site.worker.stop()
        camera.stop()
    assert not any(image[:, :63].any() for image in looked_at)


def test_a_camera_with_wrong_weights_or_classes_is_unsupported_and_the_others_go_on(
    camera, redis_url, openvino_weights, tmp_path, caplog
):
    site = Site(
        redis_url,
        openvino_weights,
        CameraConfig(id="lost", url=camera.url, weights=str(tmp_path / "none.pt")),
        CameraConfig(id="odd", url=camera.url, classes=["persn"]),
        CameraConfig(id="good", url=camera.url, fps=5, classes=["person", "dog"]),
    )
    site.worker.start()
    try:
        site.wait_for_state("good", CameraState.ONLINE)
        for name in ("lost", "odd"):
            assert site.wait_for_state(name, CameraState.UNSUPPORTED).reason is Reason.NETWORK
    finally:
        site.worker.stop()
    assert "none.pt" in caplog.text
    assert "did you mean 'person'" in caplog.text
