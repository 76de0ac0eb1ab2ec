"""A child process that is kept alive by a thread of its own, in its own process group, and never outlives us."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO

logger = logging.getLogger(__name__)

_STUB = Path(__file__).with_name("exec_with_parent.py")
EXIT_UNUSABLE = 2
"""A part that ends with this can't work as configured: starting it again would change nothing."""


@dataclass(frozen=True, slots=True)
class Backoff:
    """Seconds before a restart: ``first``, doubled up to ``longest``; ``first`` again after ``healthy_s`` alive."""

    first: float = 0.5
    longest: float = 30.0
    healthy_s: float = 30.0


@dataclass(frozen=True, slots=True)
class ChildSpec:
    """What to run.

    Attributes:
        argv: the command; it is visible to every user of the machine, so it must hold no secret.
        environ: the whole environment (None: ours); that is where secrets go.
        stdin: what the child reads there; secrets may go here too.
        output: stdout and stderr are appended to this file; None: they are ours.
        pass_fds: file descriptors that stay open in the child.
        stacks_signal: has the child write where its threads are; None: it knows no such signal.
    """

    name: str
    argv: tuple[str, ...]
    environ: Mapping[str, str] | None = None
    stdin: bytes = b""
    cwd: Path | None = None
    output: Path | None = None
    pass_fds: tuple[int, ...] = ()
    stacks_signal: int | None = None


class ChildProcess:
    """Starts the child, waits for its end, starts it again with back-off, until :meth:`terminate` or :meth:`kill`.

    The thread that starts the child also waits for it: the kernel's parent-death signal is bound to that thread. What
    a dead child leaves behind in its process group is killed before the child is reaped, while its group id is still
    taken.
    """

    def __init__(
        self,
        spec: ChildSpec,
        *,
        backoff: Backoff | None = None,
        on_start: Callable[[], None] | None = None,
        on_end: Callable[[int | None], None] | None = None,
    ) -> None:
        """``on_start`` runs after each start; ``on_end`` gets the last exit code (None: never started) at the end."""
        self.spec = spec
        self._backoff = backoff or Backoff()
        self._on_start = on_start
        self._on_end = on_end
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._process: subprocess.Popen[bytes] | None = None
        self._restarts = 0
        self._last_exit: int | None = None
        self._thread = threading.Thread(target=self._keep, name=f"keep-{spec.name}", daemon=True)

    @property
    def pid(self) -> int | None:
        """Of the running child, None between two lives."""
        with self._lock:
            return self._process.pid if self._process else None

    @property
    def restarts(self) -> int:
        """How often it was started again."""
        return self._restarts

    @property
    def last_exit(self) -> int | None:
        """Exit code of the last life that ended; negative: the signal that killed it."""
        return self._last_exit

    def start(self) -> None:
        """Once per object; returns at once."""
        self._thread.start()

    def terminate(self) -> None:
        """Asks the child to end (SIGTERM), for good. Returns at once; from any thread."""
        self._signal(signal.SIGTERM, group=False)

    def kill(self) -> None:
        """Ends the child and its group at once, for good. Returns at once; from any thread."""
        self._signal(signal.SIGKILL, group=True)

    def hang_up(self) -> None:
        """Sends SIGHUP to the running child; nothing between two lives. From any thread."""
        self._send_if_running(signal.SIGHUP)

    def ask_for_stacks(self) -> None:
        """Has the running child write where its threads are, if it can. From any thread."""
        if self.spec.stacks_signal is not None:
            self._send_if_running(self.spec.stacks_signal)

    def join(self, timeout: float | None = None) -> bool:
        """Waits for the end after :meth:`terminate` or :meth:`kill`; False when it takes longer than ``timeout``."""
        if self._thread.ident is not None:
            self._thread.join(timeout)
        return not self._thread.is_alive()

    def _signal(self, number: int, *, group: bool) -> None:
        self._stopping.set()
        self._send_if_running(number, group=group)

    def _send_if_running(self, number: int, *, group: bool = False) -> None:
        with self._lock:
            if self._process is not None:
                # Not yet reaped (that happens under the lock), so the id still belongs to our child.
                _send(self._process.pid, number, group=group)

    def _keep(self) -> None:
        delay = self._backoff.first
        try:
            while not self._stopping.is_set():
                begun = time.monotonic()
                code = self._live_once()
                if code is None:
                    break
                self._last_exit = code
                if self._stopping.is_set() or code == EXIT_UNUSABLE:
                    break
                if time.monotonic() - begun >= self._backoff.healthy_s:
                    delay = self._backoff.first
                logger.warning("%s ended (%s), starting it again in %.1f s", self.spec.name, exit_text(code), delay)
                if self._stopping.wait(delay):
                    break
                delay = min(delay * 2, self._backoff.longest)
                self._restarts += 1
        finally:
            if self._on_end is not None:
                self._on_end(self._last_exit)

    def _live_once(self) -> int | None:
        """One life of the child; its exit code. None when it is no longer wanted."""
        with self._lock:
            if self._stopping.is_set():
                return None
            try:
                process = self._process = self._spawn()
            except OSError as error:
                logger.error("%s can't be started: %s", self.spec.name, error.strerror)
                return 127
        if process.stdin is not None:
            _feed(process.stdin, self.spec.stdin)
        if self._on_start is not None:
            self._on_start()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        with self._lock:
            _send(process.pid, signal.SIGKILL, group=True)
            self._process = None
            return process.wait()

    def _spawn(self) -> subprocess.Popen[bytes]:
        spec = self.spec
        stub = (sys.executable, "-I", "-S", str(_STUB), str(os.getpid()), str(int(signal.SIGTERM)))
        output: IO[bytes] | None = open(spec.output, "ab") if spec.output else None  # noqa: SIM115
        try:
            return subprocess.Popen(
                [*stub, *spec.argv],
                env=dict(spec.environ) if spec.environ is not None else None,
                cwd=spec.cwd,
                stdin=subprocess.PIPE if spec.stdin else subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                pass_fds=spec.pass_fds,
                start_new_session=True,
            )
        finally:
            if output is not None:
                output.close()


def exit_text(code: int) -> str:
    """``exit code 3`` or ``killed by SIGKILL``."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"


def _feed(pipe: IO[bytes], data: bytes) -> None:
    try:
        with pipe:
            pipe.write(data)
    except BrokenPipeError:
        pass  # it died before it read; the waiting below notices


def _send(pid: int, number: int, *, group: bool) -> None:
    try:
        if group:
            os.killpg(pid, number)
        else:
            os.kill(pid, number)
    except (ProcessLookupError, PermissionError):
        return  # it ended by itself; macOS says EPERM for a group of which only the dead leader is left
