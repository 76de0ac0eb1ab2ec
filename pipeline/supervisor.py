"""Keeps the parts of a ``watchword up`` running: each a process of its own, restarted alone, ended together."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum, StrEnum
from queue import Empty, SimpleQueue

from pipeline.child import EXIT_UNUSABLE, Backoff, ChildProcess, ChildSpec, exit_text

logger = logging.getLogger(__name__)

DRAIN_S = 17.5
"""Time that the parts have to end by themselves; with the embedded Valkey after them it stays under 20 s."""
STACKS_S = 0.5
"""Time that a part which didn't has to say where it hangs."""
TURN_S = 7.0
"""A part is told to end when the one before it has, or when it had its turn for so long."""


class PartChange(StrEnum):
    STARTED = "started"
    RESTARTED = "restarted"
    ENDED = "ended"


@dataclass(frozen=True, slots=True)
class _Ended:
    name: str
    code: int | None


@dataclass(frozen=True, slots=True)
class _StopAsked:
    pass


@dataclass(frozen=True, slots=True)
class _ReloadAsked:
    pass


class _Waited(Enum):
    """What ended a wait."""

    ENDED = 0
    LATE = 1
    ASKED = 2


class Supervisor:
    """Runs the parts until it is asked to stop, or until one of them can't work as configured (exit code 2). They are
    ended in the order in which they are given.

    :meth:`run` blocks in the caller's thread and holds no signal handlers; the outermost layer connects signals to
    :meth:`stop`, which is safe inside a signal handler (it only puts a word into a reentrant queue).
    """

    def __init__(
        self,
        parts: Sequence[ChildSpec],
        *,
        drain_s: float = DRAIN_S,
        backoff: Backoff | None = None,
        on_change: Callable[[str, PartChange], None] | None = None,
    ) -> None:
        """``on_change`` hears of every start, restart and end of a part, from that part's thread."""
        self._drain_s = drain_s
        self._on_change = on_change
        self._mailbox: SimpleQueue[_Ended | _StopAsked | _ReloadAsked] = SimpleQueue()
        self._parts = {spec.name: self._make_part(spec, backoff) for spec in parts}

    def run(self) -> int:
        """Blocks until every part has ended. 0: all ended when asked; 1: one had to be killed; 2: one is unusable."""
        running = set(self._parts)
        for part in self._parts.values():
            part.start()
        result = 0
        while isinstance(message := self._mailbox.get(), _ReloadAsked):
            for name in running:
                self._parts[name].hang_up()
        if isinstance(message, _Ended):
            # While running, a part ends for good only when starting it again would change nothing.
            running.discard(message.name)
            logger.error("%s can't go on (%s); stopping", message.name, exit_text(message.code or 0))
            result = EXIT_UNUSABLE
        if not self._drain(running):
            result = result or 1
            logger.warning("ending %s by force", ", ".join(sorted(running)))
            for name in running:
                self._parts[name].kill()
            self._wait(running, set(running), None)
        return result

    def _drain(self, running: set[str]) -> bool:
        """Asks the parts to end, one after another: what the first ones say at their end, the later ones still hear.
        False when some are still there after the whole time, or when it's not to be waited for any longer."""
        deadline = time.monotonic() + self._drain_s
        turn_s = min(TURN_S, self._drain_s / len(self._parts))
        for name in self._parts:
            if name in running:
                self._parts[name].terminate()
                if self._wait(running, {name}, time.monotonic() + turn_s) is _Waited.ASKED:
                    return False
        if self._wait(running, set(running), deadline) is _Waited.LATE:
            for name in sorted(running):
                logger.warning("%s did not end within %.1f s; where it hangs:", name, self._drain_s)
                self._parts[name].ask_for_stacks()
            self._wait(running, set(running), time.monotonic() + STACKS_S)
        return not running

    def _wait(self, running: set[str], awaited: set[str], deadline: float | None) -> _Waited:
        """Until all of those parts have ended, the deadline, or (with one) the next wish to stop."""
        while awaited & running:
            message = self._next(deadline)
            if message is None:
                return _Waited.LATE
            if isinstance(message, _Ended):
                running.discard(message.name)
            elif isinstance(message, _StopAsked) and deadline is not None:
                return _Waited.ASKED
        return _Waited.ENDED

    def stop(self) -> None:
        """Asks :meth:`run` to end: the first time the parts may finish, the second time they are killed."""
        self._mailbox.put(_StopAsked())

    def reload(self) -> None:
        """Has every part read its configuration again (SIGHUP). Safe inside a signal handler, like :meth:`stop`."""
        self._mailbox.put(_ReloadAsked())

    def pid(self, name: str) -> int | None:
        """Process id of a part, None while it is down."""
        return self._parts[name].pid

    def restarts(self, name: str) -> int:
        """How often a part was started again."""
        return self._parts[name].restarts

    def _make_part(self, spec: ChildSpec, backoff: Backoff | None) -> ChildProcess:
        starts = 0

        def on_start() -> None:
            nonlocal starts
            starts += 1
            self._tell(spec.name, PartChange.STARTED if starts == 1 else PartChange.RESTARTED)

        def on_end(code: int | None) -> None:
            self._tell(spec.name, PartChange.ENDED)
            self._mailbox.put(_Ended(spec.name, code))

        return ChildProcess(spec, backoff=backoff, on_start=on_start, on_end=on_end)

    def _tell(self, name: str, change: PartChange) -> None:
        if self._on_change is not None:
            self._on_change(name, change)

    def _next(self, deadline: float | None) -> _Ended | _StopAsked | _ReloadAsked | None:
        """The next message; None once the deadline is over."""
        if deadline is None:
            return self._mailbox.get()
        try:
            return self._mailbox.get(timeout=max(0.0, deadline - time.monotonic()))
        except Empty:
            return None
