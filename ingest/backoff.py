"""When to try again: soon at first, then ever more rarely, but always again."""

from __future__ import annotations

import random
from collections.abc import Callable

HEALTHY_AFTER_S = 30.0
"""Only so long after it came online does a camera count as well again; a flapping one must not be hammered."""

AUTH_DELAY_S = 60.0
"""Cameras lock accounts after a few wrong passwords."""


class Backoff:
    """Delays ``first``, ``2*first``, ``4*first`` ... up to ``cap`` seconds, 20 % more or less, at most ``cap``.

    Never gives up. The jitter keeps many cameras behind one switch from coming back in step.
    """

    def __init__(
        self,
        first: float = 1.0,
        cap: float = 30.0,
        jitter: float = 0.2,
        uniform: Callable[[float, float], float] = random.uniform,
    ) -> None:
        self._first = first
        self._cap = cap
        self._jitter = jitter
        self._uniform = uniform
        self.failures = 0

    def next_delay(self, auth: bool = False) -> float:
        """Counts a failure and says how many seconds to wait; refused credentials wait at least ``AUTH_DELAY_S``."""
        step = self._first * 2.0 ** min(self.failures, 30)
        self.failures += 1
        if auth:
            return self._uniform(AUTH_DELAY_S, AUTH_DELAY_S * (1 + self._jitter))
        step = min(step, self._cap)
        return self._uniform(step * (1 - self._jitter), min(self._cap, step * (1 + self._jitter)))

    def reset(self) -> None:
        self.failures = 0
