"""Signals, connected only here: everything below is told to stop by a call."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)
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


@contextmanager
def on_stop_signals(
    stop: Callable[[], None], reload: Callable[[], None] | None = None, *, again: Callable[[], None] | None = None
) -> Iterator[None]:
    """Within the block Ctrl-C and SIGTERM call ``stop``, from the second one on ``again``, if given; SIGHUP calls
    ``reload`` where there is one and no terminal, else it is like the others. All must be safe in a signal handler.

    ``SimpleQueue.put`` and ``loop.call_soon_threadsafe`` are; ``Event.set`` is not: its lock may be held by the very
    code that the signal interrupts.
    """

    last, presses = -ONE_PRESS_S, 0

    def handle(_number: int, _frame: FrameType | None) -> None:
        nonlocal last, presses
        now = time.monotonic()
        if now - last < ONE_PRESS_S:
            return
        last, presses = now, presses + 1
        if again is not None and presses > 1:
            again()
        else:
            stop()

    def hang_up(number: int, frame: FrameType | None) -> None:
        if reload is not None and hangup_reloads():
            reload()
        else:
            handle(number, frame)

    before = {number: signal.signal(number, handle) for number in STOP_SIGNALS}
    before[signal.SIGHUP] = signal.signal(signal.SIGHUP, hang_up)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
