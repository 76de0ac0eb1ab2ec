"""Signals, connected only here: everything below is told to stop by a call."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
ONE_PRESS_S = 0.5
"""Signals that come so close together are one wish: `timeout` sends two, a terminal and a parent one each."""


@contextmanager
def on_stop_signals(stop: Callable[[], None]) -> Iterator[None]:
    """Within the block Ctrl-C, SIGTERM and SIGHUP call ``stop``, which must be safe in a signal handler.

    ``SimpleQueue.put`` is; ``Event.set`` is not: its lock may be held by the very code that the signal interrupts.
    """

    last = -ONE_PRESS_S

    def handle(_number: int, _frame: FrameType | None) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last >= ONE_PRESS_S:
            last = now
            stop()

    before = {number: signal.signal(number, handle) for number in STOP_SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
