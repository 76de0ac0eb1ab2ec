"""One spawned process that does one thing at a time, so that its death concerns that thing and nothing else.

``ProcessPoolExecutor`` hands its workers tasks ahead of time and calls the whole pool broken when one dies: whoever
sends a picture that kills a decoder would fail their neighbours' pictures too.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import logging
import math
import multiprocessing
import os
import resource
import signal
import threading
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

logger = logging.getLogger(__name__)

JOIN_S = 5.0
OOM_SCORE = 800
"""Of 1,000: when the machine runs out of memory the kernel ends a worker before it ends the engine."""
CAREFUL_BYTES = 64 * 1024 * 1024
"""A task that leaves so much more memory behind is followed by giving freed memory back."""


M_MMAP_THRESHOLD = -3
MMAP_THRESHOLD = 1024 * 1024
"""glibc's name for the knob (malloc.h), and bytes."""


class WorkerDied(Exception):
    """The process ended while it worked.

    Attributes:
        exit_code: as of ``multiprocessing.Process``: negative for a signal.
    """

    def __init__(self, exit_code: int | None) -> None:
        super().__init__(f"the worker process ended with code {exit_code}")
        self.exit_code = exit_code

    @property
    def out_of_time(self) -> bool:
        """Whether it used up its processor time."""
        return self.exit_code == -signal.SIGXCPU


@dataclass(frozen=True, slots=True)
class WorkerLimits:
    """What one worker may use.

    Attributes:
        memory: bytes of private memory beyond what it has once it is set up. (RLIMIT_DATA, not RLIMIT_AS: torch and
            glibc reserve address space that they never touch.)
        cpu_s: seconds of processor time for one task.
    """

    memory: int
    cpu_s: float


class WorkerProcess:
    """Not thread-safe: one thread at a time.

    Args:
        set_up: run first in the process, with ``arguments``; a module's function.
        arguments: of ``set_up``.
        limits: set after ``set_up``.
    """

    def __init__(self, set_up: Callable[..., None], arguments: tuple[Any, ...], limits: WorkerLimits) -> None:
        self._set_up = (set_up, arguments, limits)
        self._process: multiprocessing.process.BaseProcess | None = None
        self._connection: Connection | None = None
        self._ready = False
        self._start()

    @property
    def pid(self) -> int | None:
        """Of the process that runs now."""
        return self._process.pid if self._process is not None else None

    def wait_ready(self) -> None:
        """Waits until it is set up. Raises what ``set_up`` raised, or WorkerDied; a later call starts it anew."""
        if self._process is None:
            self._start()
        if not self._ready:
            try:
                self._receive()
            except WorkerDied:
                raise
            except BaseException:
                self.end()
                raise
            self._ready = True

    def run(self, task: Callable[..., Any], *arguments: Any) -> Any:
        """``task(*arguments)`` in the process. Raises what it raises, or WorkerDied."""
        self.wait_ready()
        connection = self._connection
        if connection is None:
            raise WorkerDied(None)
        try:
            connection.send((task, arguments))
        except OSError:
            raise self._died() from None
        return self._receive()

    def end(self) -> None:
        """Ends the process: at once when it works, in order when it is idle. Idempotent."""
        if self._connection is not None:
            self._connection.close()
        process, self._process, self._connection, self._ready = self._process, None, None, False
        if process is not None:
            process.join(JOIN_S)
            if process.is_alive():
                process.kill()
                process.join()
            process.close()

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        # A daemon: ended with its parent's interpreter, even when nobody ended it in order.
        process = context.Process(target=_main, args=(theirs, *self._set_up), name="watchword-worker", daemon=True)
        process.start()
        theirs.close()
        self._process, self._connection, self._ready = process, ours, False

    def _receive(self) -> Any:
        if self._connection is None:
            raise WorkerDied(None)
        try:
            failed, value = self._connection.recv()
        except (EOFError, OSError):
            raise self._died() from None
        if failed:
            raise value
        return value

    def _died(self) -> WorkerDied:
        process = self._process
        if process is not None:
            process.join(JOIN_S)
        error = WorkerDied(process.exitcode if process is not None else None)
        self.end()
        return error


# In the process ------------------------------------------------------------------------------------------------------


def _main(
    connection: Connection, set_up: Callable[..., None], arguments: tuple[Any, ...], limits: WorkerLimits
) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which ends the workers in order.
    threading.Thread(target=_end_with_parent, name="end-with-parent", daemon=True).start()
    os.nice(10)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a core file would hold somebody's picture
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(str(OOM_SCORE))
    _keep_memory_flat()
    try:
        set_up(*arguments)
    except Exception as error:  # told to the parent, whoever's fault it is
        _reply(connection, True, error)
        return
    base = _private_memory()
    if base is not None:
        _limit(resource.RLIMIT_DATA, base + limits.memory)
    _reply(connection, False, None)
    while True:
        try:
            task, task_arguments = connection.recv()
        except (EOFError, OSError):
            os._exit(0)  # nothing to tidy up; taking torch down in order takes a second
        used = resource.getrusage(resource.RUSAGE_SELF)
        _limit(resource.RLIMIT_CPU, math.ceil(used.ru_utime + used.ru_stime + limits.cpu_s))
        try:
            value = task(*task_arguments)
        except Exception as error:  # the boundary: the task's failure is its caller's, the worker goes on
            _reply(connection, True, error)
        else:
            _reply(connection, False, value)
            del value
        del task, task_arguments
        now = _private_memory()
        if base is not None and now is not None and now - base > CAREFUL_BYTES:
            _give_back()


def _reply(connection: Connection, failed: bool, value: Any) -> None:
    if isinstance(value, BaseException):
        value.__traceback__ = None
    try:
        connection.send((failed, value))
    except (OSError, BrokenPipeError):
        os._exit(0)  # nobody listens any more
    except Exception as error:  # it can't be pickled
        connection.send((True, RuntimeError(f"{type(value).__name__}: {error}")))


def _end_with_parent() -> None:
    """A parent that is killed closes no pipe that others inherited: its workers would wait for ever."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(0)


def _private_memory() -> int | None:
    """Bytes of this process's private writable mappings; None where the system doesn't say."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[5])
    except (OSError, ValueError, IndexError):
        return None
    return pages * resource.getpagesize()


def _limit(which: int, value: int) -> None:
    """Sets a soft limit as far as the hard one lets it."""
    _, hard = resource.getrlimit(which)
    resource.setrlimit(which, (value if hard == resource.RLIM_INFINITY else min(value, hard), hard))


def _keep_memory_flat() -> None:
    """Large pieces come from the system and go back to it. Left alone, glibc raises the bound from which it does that
    as large pieces are freed, and hundreds of megabytes stay behind in its heaps (measured: 80 to 320 MB)."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL("libc.so.6").mallopt(M_MMAP_THRESHOLD, MMAP_THRESHOLD)


def _give_back() -> None:
    """Freed memory back to the system (glibc keeps what lies between used pieces)."""
    gc.collect()
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL("libc.so.6").malloc_trim(0)
