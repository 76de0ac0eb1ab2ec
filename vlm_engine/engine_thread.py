"""The one thread that touches an engine's core; everybody else reaches it through its inbox."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable

import torch

from vlm_engine.core import EngineCore

logger = logging.getLogger(__name__)

IDLE_S = 0.05
"""Longest sleep between two looks at the inbox while no request can do anything."""

Command = Callable[[EngineCore], None]


class EngineThread:
    """Takes commands, runs steps, and fails what no longer progresses.

    Args:
        watchdog_s: a running request without progress for so long is failed.
        on_death: told, in the thread, what ended it: an error that can't be isolated. Every request is failed then.
    """

    def __init__(self, watchdog_s: float, on_death: Callable[[str], None]) -> None:
        self.inbox: deque[Command] = deque()
        self._watchdog_s = watchdog_s
        self._on_death = on_death
        self._core: EngineCore | None = None
        self._thread: threading.Thread | None = None
        self._wake = threading.Condition()
        self._stopping = False
        self._dead = False

    def start(self, core: EngineCore) -> None:
        """Runs the core's steps from now on."""
        self._core, self._stopping, self._dead = core, False, False
        self._thread = threading.Thread(target=self._run, args=(core,), name="vlm-engine", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Ends it after the present step; unfinished requests end with ``abort``. Blocks; idempotent."""
        with self._wake:
            self._stopping = True
            self._wake.notify()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def wanted(self) -> bool:
        """Whether a command waits, or the end."""
        return bool(self.inbox) or self._stopping

    def post(self, command: Command) -> None:
        """Has a command run between two steps. Any thread."""
        with self._wake:
            self.inbox.append(command)
            self._wake.notify()
        if self._dead and self._core is not None and threading.current_thread() is not self._thread:
            # Nobody reads the inbox any more; the streams of what was just posted must still end.
            with self._wake:
                self._end_all(self._core)

    def _run(self, core: EngineCore) -> None:
        try:
            with torch.inference_mode():
                while self._receive(core):
                    if core.has_work and not core.step():
                        self._watch(core)
            core.abort_all()
        except Exception as error:
            logger.exception("the engine met an error that it can't isolate")
            self._dead = True
            self._on_death(f"{type(error).__name__} in the engine thread")
            self._end_all(core)

    def _receive(self, core: EngineCore) -> bool:
        """Runs everything in the inbox; sleeps while there is nothing to do. False when it is time to stop."""
        with self._wake:
            while not (self.inbox or core.has_work or self._stopping):
                self._wake.wait()
        if self._stopping:
            return False
        self._drain(core)
        return True

    def _drain(self, core: EngineCore) -> None:
        while self.inbox:
            self.inbox.popleft()(core)

    def _end_all(self, core: EngineCore) -> None:
        self._drain(core)
        core.fail_all("the engine died")

    def _watch(self, core: EngineCore) -> None:
        """Work exists and no step is possible: fails what has been stuck for too long, else waits a little."""
        for request_id in core.stuck(self._watchdog_s):
            logger.error(
                "request %s made no progress for %.0f s; last plan: %s", request_id, self._watchdog_s, core.last_plan
            )
            core.fail(request_id, "the request made no progress")
        with self._wake:
            if not self.inbox and not self._stopping:
                self._wake.wait(IDLE_S)
