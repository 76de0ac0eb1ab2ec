"""Commands as processes: how they end, what they say when they can't work, and that nothing is left behind."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import av
import pytest
from PIL import Image

from tests.cli.helpers import alive, until

ENVIRON = {**os.environ, "HF_HUB_OFFLINE": "1", "YOLO_OFFLINE": "true"}


def run(*arguments: str, environ: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pipeline.cli", *arguments]
    full = {**ENVIRON, **(environ or {})}
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, env=full)


@contextmanager
def started(*arguments: str, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A command in the background; whatever it does, it and its children are gone afterwards."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "pipeline.cli", *arguments],
            stdout=output,
            stderr=output,
            env=ENVIRON,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def write(folder: Path, tree: object) -> str:
    path = folder / "watchword.yaml"
    path.write_text(json.dumps(tree))
    return str(path)


# -- describe --------------------------------------------------------------------------------------------------------


def test_describe_says_something_of_each_picture_and_goes_on_after_a_broken_one(
    tiny_smolvlm: Path, tmp_path: Path
) -> None:
    good, broken = tmp_path / "good.jpg", tmp_path / "broken.jpg"
    Image.new("RGB", (64, 96), (10, 200, 30)).save(good)
    broken.write_bytes(b"no picture")
    result = run("describe", str(broken), str(good), "--model", str(tiny_smolvlm), "--max-tokens", "4")
    assert result.returncode == 1
    assert f"watchword: {broken}: " in result.stderr and "Traceback" not in result.stderr
    assert result.stdout.index(f"{broken}:") < result.stdout.index(f"{good}:")
    assert result.stdout.split(f"{good}:")[1].strip()


def test_describe_refuses_what_is_not_there_before_it_loads_a_model(tmp_path: Path) -> None:
    result = run("describe", str(tmp_path / "none.jpg"))
    assert result.returncode == 2 and "No such file" in result.stderr


# -- demo camera -----------------------------------------------------------------------------------------------------


def test_the_demo_camera_streams_until_it_is_told_to_stop(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with started("demo-camera", "--port", "0", log=log) as process:
        until(lambda: "rtsp://" in log.read_text(), 30)
        url = log.read_text().split()[-1]
        with av.open(url, options={"rtsp_transport": "tcp"}, timeout=10) as container:
            frame = next(container.decode(video=0))
            assert (frame.width, frame.height) == (640, 480)
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 0
    assert "Traceback" not in log.read_text()


# -- what can't work -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["ingest", "serve"])
def test_a_part_alone_needs_a_redis(tmp_path: Path, command: str) -> None:
    result = run(command, "--config", write(tmp_path, {}))
    assert result.returncode == 2 and "redis.url" in result.stderr and "Traceback" not in result.stderr


def test_serve_with_a_model_that_is_not_there(tmp_path: Path) -> None:
    result = run("serve", "--no-cameras", "--port", "0", "--model", str(tmp_path / "none"))
    assert result.returncode == 2
    assert f"watchword: model {tmp_path / 'none'}: there is no such folder" in result.stderr
    assert "Traceback" not in result.stderr


def test_a_killed_serve_leaves_none_of_its_processes(tmp_path: Path, tiny_smolvlm: Path) -> None:
    log = tmp_path / "log"
    with started("serve", "--no-cameras", "--port", "0", "--model", str(tiny_smolvlm), log=log) as process:
        until(lambda: "is ready" in log.read_text(), 120)
        tasks = Path(f"/proc/{process.pid}/task").iterdir()
        children = [int(pid) for task in tasks for pid in (task / "children").read_text().split()]
        assert children  # the picture workers
        process.kill()
        process.wait()
        until(lambda: not any(alive(pid) for pid in children))


def test_up_with_a_part_that_can_not_work_ends_with_2_and_its_reason_and_leaves_nothing(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        {
            "cameras": [{"id": "a", "url": "rtsp://u:hunter2@127.0.0.1:9/x"}],
            "detector": {"weights": str(tmp_path / "none.pt")},
            "engine": {"model": str(tmp_path / "none")},
            "store": {"data_dir": str(tmp_path / "data")},
            "server": {"port": 0},
        },
    )
    begun = time.monotonic()
    result = run("up", "--config", path)
    assert result.returncode == 2
    assert "none" in result.stderr and "Traceback" not in result.stderr
    assert "hunter2" not in result.stderr + result.stdout
    assert time.monotonic() - begun < 60
    assert not processes_naming(str(tmp_path))


def test_up_does_not_begin_with_a_wrong_configuration(tmp_path: Path) -> None:
    result = run("up", "--config", write(tmp_path, {"server": {"port": 70000}}))
    assert result.returncode == 2
    assert "line 1: server.port is 70000; must be at most 65535" in result.stderr


# -- up: one at a time they come back, together they end --------------------------------------------------------------


def test_up_restarts_what_is_killed_and_ends_within_10_seconds(
    tmp_path: Path, tiny_smolvlm: Path, shared_data: Path
) -> None:
    """The parts with their real weights; no camera, so that only their lives are looked at."""
    path = write(
        tmp_path,
        {
            "detector": {"weights": str(shared_data / "yolo/yolo26n_dequantised.pt")},
            "engine": {"model": str(tiny_smolvlm), "kv_cache_memory": 1 << 24, "num_threads": 1},
            "store": {"data_dir": str(tmp_path / "data")},
            "server": {"port": 0},
        },
    )
    log = tmp_path / "log"
    with started("up", "--config", path, log=log) as process:
        until(lambda: "is ready" in log.read_text() and len(parts(path)) == 2, 120)
        first = parts(path)
        os.kill(first["serve"], signal.SIGKILL)
        until(lambda: parts(path).get("serve", first["serve"]) != first["serve"], 30)
        assert parts(path)["ingest"] == first["ingest"]
        until(lambda: log.read_text().count("is ready") == 2, 120)
        begun = time.monotonic()
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0, log.read_text()
        assert time.monotonic() - begun < 10
    until(lambda: not processes_naming(str(tmp_path)), 5)
    assert "Traceback" not in log.read_text()


def parts(config: str) -> dict[str, int]:
    """Pids of the running ingest and serve of a configuration."""
    found = {}
    for pid, arguments in command_lines():
        if config in arguments and "up" not in arguments:
            found.update({name: pid for name in ("ingest", "serve") if name in arguments})
    return found


def processes_naming(text: str) -> list[list[str]]:
    """Command lines of living processes, other than ours, that work on ``text``."""
    found = []
    for pid, arguments in command_lines():
        cwd = Path(f"/proc/{pid}/cwd")
        try:
            where = os.readlink(cwd)
        except OSError:
            continue
        if pid != os.getpid() and alive(pid) and (text in " ".join(arguments) or where.startswith(text)):
            found.append(arguments)
    return found


def command_lines() -> Iterator[tuple[int, list[str]]]:
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            try:
                yield int(folder.name), (folder / "cmdline").read_bytes().decode(errors="replace").split("\0")
            except OSError:
                continue
