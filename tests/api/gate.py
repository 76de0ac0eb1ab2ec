"""Holds an engine between two steps, so that a test sees each state for as long as it likes."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from tests.api.waiting import until
from vlm_engine.engine import VLMEngine


class Gate:
    """Steps of a held engine: each waits in front of the gate until it is let through."""

    def __init__(self) -> None:
        self._permits = threading.Semaphore(0)
        self._open = False
        self.waiting = 0
        self.done = 0

    def wait(self) -> None:
        """Called by the engine's thread in front of each step."""
        self.waiting += 1
        if not self._open:
            self._permits.acquire()
        self.waiting -= 1

    def let_one_through(self) -> None:
        """One step, waiting until it is done."""
        before = self.done
        until(lambda: self.waiting)
        self._permits.release()
        until(lambda: self.done > before)

    def open(self) -> None:
        """No more waiting."""
        self._open = True
        self._permits.release()


@contextmanager
def held(engine: VLMEngine) -> Iterator[Gate]:
    """The engine, held; it goes on by itself at the end of the block."""
    core = engine._core
    assert core is not None
    step, gate = core.step, Gate()

    def gated() -> bool:
        gate.wait()
        try:
            return step()
        finally:
            gate.done += 1

    core.step = gated
    try:
        yield gate
    finally:
        core.step = step
        gate.open()
