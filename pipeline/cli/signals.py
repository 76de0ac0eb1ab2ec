"""Signals, connected only here: everything below is told to stop by a call."""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

logger = logging.getLogger(__name__)

HEARD = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
EXIT_FORCED = 1
ONE_PRESS_S = 0.5
"""Signals that come so close together are one wish: `timeout` sends two, a terminal and a parent one each."""


def hangup_reloads() -> bool:
    """Whether SIGHUP asks to read the configuration again, as of services. In a terminal it says that it was closed."""
    return sys.stdin is None or not sys.stdin.isatty()


def leave_at_once() -> NoReturn:
    """Ends the process as it is, exit code 1: whoever asks a second time doesn't want to wait."""
    for child in multiprocessing.active_children():
        child.kill()
    os._exit(EXIT_FORCED)


class _Wishes:
    """What the signals so far ask for."""

    def __init__(
        self, stop: Callable[[], None], reload: Callable[[], None] | None, again: Callable[[], None] | None
    ) -> None:
        self._stop = stop
        self._reload = reload
        self._again = again
        self._last = -ONE_PRESS_S
        self._presses = 0

    def hear(self, number: int) -> None:
        """One signal; others than those that are heard may have been given a handler elsewhere."""
        if number not in HEARD:
            return
        if number == signal.SIGHUP and self._reload is not None and hangup_reloads():
            self._reload()
            return
        now = time.monotonic()
        if now - self._last < ONE_PRESS_S:
            return
        self._last, self._presses = now, self._presses + 1
        if self._again is not None and self._presses > 1:
            self._again()
        else:
            self._stop()


@contextmanager
def on_stop_signals(
    stop: Callable[[], None], reload: Callable[[], None] | None = None, *, again: Callable[[], None] | None = None
) -> Iterator[None]:
    """Within the block Ctrl-C and SIGTERM call ``stop``, from the second one on ``again``, if given; SIGHUP calls
    ``reload`` where there is one and no terminal, else it is like the others. For the main thread; blocks may nest.

    The calls come from a thread of their own, one after another, and have ended when the block has. Handlers of
    Python's would run in the main thread alone, and only once it computes: the kernel may hand a signal to any thread
    of the process, and a main thread that waits for a lock or a queue is not woken by that. (Measured with ingest on a
    busy machine: of about a hundred SIGTERMs three were heard only when another one came, and of 95 with this none.)
    What C does at a signal, whatever thread it reaches, is to write its number to a pipe (``signal.set_wakeup_fd``);
    that is what is listened to here.
    """
    wishes = _Wishes(stop, reload, again)
    numbers, heard_at = os.pipe()
    os.set_blocking(heard_at, False)  # as set_wakeup_fd asks for
    listener = threading.Thread(target=_listen, args=(numbers, wishes), name="signals", daemon=True)
    listener.start()
    outer = signal.set_wakeup_fd(heard_at, warn_on_full_buffer=False)
    before = {number: signal.signal(number, _wake) for number in HEARD}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(outer, warn_on_full_buffer=False)
        os.close(heard_at)
        listener.join()


def _wake(_number: int, _frame: FrameType | None) -> None:
    """The handler that Python wants before it writes to the pipe."""


def _listen(numbers: int, wishes: _Wishes) -> None:
    """Until the pipe's other end is closed."""
    with open(numbers, "rb", buffering=0) as pipe:
        while number := pipe.read(1):
            try:
                wishes.hear(number[0])
            except Exception:  # the next signal must be heard all the same
                logger.exception("signal %d: unexpected failure", number[0])


class _Forks:
    """A child forked within a block (a library may do that) neither writes to its parent's pipe nor outlasts a SIGTERM
    because of handlers that it inherits. Until they are gone the signals wait, so that none comes too early."""

    def __init__(self) -> None:
        self._of_thread = threading.local()

    def before(self) -> None:
        self._of_thread.mask = None
        if signal.getsignal(signal.SIGTERM) is _wake:
            self._of_thread.mask = signal.pthread_sigmask(signal.SIG_BLOCK, HEARD)

    def after_in_child(self) -> None:
        if self._of_thread.mask is not None:
            signal.set_wakeup_fd(-1)
            for number in HEARD:
                signal.signal(number, signal.SIG_DFL)
        self.after_in_parent()

    def after_in_parent(self) -> None:
        if self._of_thread.mask is not None:
            signal.pthread_sigmask(signal.SIG_SETMASK, self._of_thread.mask)


_forks = _Forks()
os.register_at_fork(before=_forks.before, after_in_child=_forks.after_in_child, after_in_parent=_forks.after_in_parent)
