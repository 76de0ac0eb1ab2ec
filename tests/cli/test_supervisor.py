"""Parts that die come back alone; at the end nothing is left: no orphan, no zombie, nobody waits for long."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline.child import Backoff, ChildProcess, ChildSpec
from pipeline.cli.stacks import STACKS_SIGNAL
from pipeline.supervisor import PartChange, Supervisor
from tests.cli.helpers import alive, until

QUICK = Backoff(first=0.05, longest=0.4, healthy_s=30.0)
# Says where it is (and what it was given), then ends in the way the test asks for.
PART = """
import os, signal, subprocess, sys, time
folder, name, mode = sys.argv[1:4]
def leave(*_):
    with open(f"{folder}/{name}.ended", "a") as f: f.write("x")
    sys.exit(0)
signal.signal(signal.SIGTERM, signal.SIG_IGN if mode == "stubborn" else leave)
grandchild = subprocess.Popen(["sleep", "600"]) if mode == "family" else None
with open(f"{folder}/{name}.tmp", "w") as f:
    f.write(f"{os.getpid()} {grandchild.pid if grandchild else 0} {os.environ.get('SECRET', '-')}")
os.rename(f"{folder}/{name}.tmp", f"{folder}/{name}.{os.getpid()}")
if mode == "unusable": sys.exit(2)
if mode == "crash": sys.exit(3)
while True: time.sleep(60)
"""


def part(folder: Path, name: str, mode: str = "good", environ: dict[str, str] | None = None) -> ChildSpec:
    return ChildSpec(name, (sys.executable, "-c", PART, str(folder), name, mode), environ=environ)


def lives(folder: Path, name: str) -> list[list[str]]:
    """For each life of a part so far: pid, grandchild's pid, the secret that it was given."""
    paths = [path for path in folder.glob(f"{name}.*") if path.suffix[1:].isdecimal()]
    return [path.read_text().split() for path in sorted(paths, key=lambda path: path.stat().st_mtime_ns)]


class Run:
    """A supervisor in a thread."""

    def __init__(self, *specs: ChildSpec, drain_s: float = 5.0) -> None:
        self.changes: list[tuple[str, PartChange]] = []
        self.supervisor = Supervisor(
            specs, drain_s=drain_s, backoff=QUICK, on_change=lambda *change: self.changes.append(change)
        )
        self.code: int | None = None
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        self.code = self.supervisor.run()

    def result(self) -> int | None:
        self.thread.join(15)
        assert not self.thread.is_alive()
        return self.code


@pytest.fixture
def runs() -> Iterator[list[Run]]:
    started: list[Run] = []
    yield started
    for run in started:
        run.supervisor.stop()
        run.supervisor.stop()
        run.result()


def test_a_killed_part_comes_back_and_the_other_does_not_notice(tmp_path: Path, runs: list[Run]) -> None:
    run = Run(part(tmp_path, "ingest"), part(tmp_path, "serve"))
    runs.append(run)
    until(lambda: lives(tmp_path, "ingest") and lives(tmp_path, "serve"))
    other = run.supervisor.pid("serve")
    for count in (1, 2):
        os.kill(int(lives(tmp_path, "ingest")[-1][0]), signal.SIGKILL)
        until(lambda count=count: len(lives(tmp_path, "ingest")) == count + 1)
    assert run.supervisor.pid("serve") == other and run.supervisor.restarts("serve") == 0
    assert run.supervisor.restarts("ingest") == 2
    run.supervisor.stop()
    assert run.result() == 0
    assert (tmp_path / "ingest.ended").read_text() == (tmp_path / "serve.ended").read_text() == "x"
    assert run.changes.count(("ingest", PartChange.RESTARTED)) == 2


def test_what_a_dead_part_leaves_behind_is_ended_before_it_comes_back(tmp_path: Path, runs: list[Run]) -> None:
    run = Run(part(tmp_path, "serve", "family"))
    runs.append(run)
    until(lambda: lives(tmp_path, "serve"))
    pid, grandchild, _ = (int(word) if word.isdecimal() else 0 for word in lives(tmp_path, "serve")[0])
    assert alive(grandchild)
    os.kill(pid, signal.SIGKILL)
    until(lambda: len(lives(tmp_path, "serve")) == 2)
    until(lambda: not alive(grandchild))
    run.supervisor.stop()
    assert run.result() == 0
    until(lambda: not any(alive(int(pid)) for life in lives(tmp_path, "serve") for pid in life[:2]))


def test_a_part_that_crashes_at_once_is_tried_again_ever_more_slowly(tmp_path: Path, runs: list[Run]) -> None:
    begun = time.monotonic()
    run = Run(part(tmp_path, "serve", "crash"))
    runs.append(run)
    until(lambda: len(lives(tmp_path, "serve")) >= 5)
    assert time.monotonic() - begun >= 0.05 + 0.1 + 0.2 + 0.4
    run.supervisor.stop()
    assert run.result() == 0


def test_a_part_that_can_not_work_as_configured_ends_everything_with_2(tmp_path: Path, runs: list[Run]) -> None:
    run = Run(part(tmp_path, "serve"), part(tmp_path, "ingest", "unusable"))
    runs.append(run)
    assert run.result() == 2
    assert len(lives(tmp_path, "ingest")) == 1


def test_a_part_that_does_not_end_in_time_is_killed(tmp_path: Path, runs: list[Run]) -> None:
    run = Run(part(tmp_path, "serve", "stubborn"), part(tmp_path, "ingest"), drain_s=0.5)
    runs.append(run)
    until(lambda: lives(tmp_path, "serve") and lives(tmp_path, "ingest"))
    run.supervisor.stop()
    assert run.result() == 1
    assert (tmp_path / "ingest.ended").exists()
    assert not alive(int(lives(tmp_path, "serve")[0][0]))


HANGS = """
import signal, sys, threading, time
from pipeline.cli.stacks import tell_stacks_on_signal
tell_stacks_on_signal()
signal.signal(signal.SIGTERM, signal.SIG_IGN)
def wait_for_nothing():
    open(sys.argv[1], "w").close()
    threading.Event().wait()
threading.Thread(target=wait_for_nothing).start()
"""


def test_a_part_that_has_to_be_killed_says_where_each_of_its_threads_is(tmp_path: Path, runs: list[Run]) -> None:
    there, output = tmp_path / "there", tmp_path / "output"
    argv = (sys.executable, "-c", HANGS, str(there))
    run = Run(ChildSpec("ingest", argv, output=output, stacks_signal=STACKS_SIGNAL), drain_s=0.3)
    runs.append(run)
    until(there.exists)
    run.supervisor.stop()
    assert run.result() == 1
    said = output.read_text()
    assert "in wait_for_nothing" in said and "_shutdown" in said  # the one it waits for, and the one that waits
    assert "Event()" not in said  # no line of source, no value


def test_a_second_stop_ends_at_once(tmp_path: Path, runs: list[Run]) -> None:
    run = Run(part(tmp_path, "serve", "stubborn"), drain_s=600.0)
    runs.append(run)
    until(lambda: lives(tmp_path, "serve"))
    run.supervisor.stop()
    run.supervisor.stop()
    assert run.result() == 1


def test_secrets_go_by_environment_and_are_on_no_command_line(tmp_path: Path, runs: list[Run]) -> None:
    run = Run(part(tmp_path, "serve", environ={**os.environ, "SECRET": "s3cret"}))
    runs.append(run)
    until(lambda: lives(tmp_path, "serve"))
    assert lives(tmp_path, "serve")[0][2] == "s3cret"
    assert b"s3cret" not in Path(f"/proc/{run.supervisor.pid('serve')}/cmdline").read_bytes()


def test_a_command_that_is_not_there_is_an_error_not_a_crash(runs: list[Run]) -> None:
    run = Run(ChildSpec("serve", ("/nowhere/command",)))
    runs.append(run)
    until(lambda: run.supervisor.restarts("serve") >= 1)
    run.supervisor.stop()
    assert run.result() == 0


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells children of their parent's death")
def test_parts_do_not_outlive_a_supervisor_that_is_killed(tmp_path: Path) -> None:
    code = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parents[2])!r})
from pathlib import Path
from pipeline.supervisor import Supervisor
from tests.cli.test_supervisor import part
Supervisor([part(Path(sys.argv[1]), name) for name in ("ingest", "serve")]).run()
"""
    parent = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)])
    try:
        until(lambda: lives(tmp_path, "ingest") and lives(tmp_path, "serve"))
        pids = [int(lives(tmp_path, name)[0][0]) for name in ("ingest", "serve")]
        assert all(alive(pid) for pid in pids)
    finally:
        parent.kill()
        parent.wait()
    until(lambda: not any(alive(pid) for pid in pids))
    assert (tmp_path / "ingest.ended").exists()  # they were asked to end, not cut off


def test_fifty_restarts_leave_neither_processes_nor_file_descriptors(tmp_path: Path) -> None:
    """R10: hundreds of defunct children."""
    ended = threading.Event()
    spec = ChildSpec("p", ("/bin/false",), stdin=b"x" * 100, output=tmp_path / "log")
    child = ChildProcess(spec, backoff=Backoff(first=0.001, longest=0.001), on_end=lambda _: ended.set())
    before = open_descriptors()
    child.start()
    until(lambda: child.restarts >= 50, 30)
    child.terminate()
    assert child.join(5) and ended.is_set()
    assert open_descriptors() <= before + 1
    assert not zombies()


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def zombies() -> list[str]:
    tasks = Path("/proc/self/task").iterdir()
    return [pid for task in tasks for pid in (task / "children").read_text().split() if not alive(int(pid))]
