"""Fewer tokens a crop while crops wait too long: detail is given up step by step before crops are."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping
from enum import StrEnum

from pipeline.clock import Clock, SystemClock
from pipeline.config.engine import DescriberConfig

log = logging.getLogger(__name__)


class StepChange(StrEnum):
    """Which way a step went."""

    LOWERED = "lowered"
    RAISED = "raised"


class ImageLadder:
    """The bound on the image tokens of the next crop. Step 0 is none but the engine's own.

    One step down at once when the oldest waiting crop is over the limit, and further ones no sooner than the hold after
    the last, so that each has time to act. One step up when for the whole hold the queue was under the lower limit;
    between the two limits everything stays.

    Args:
        config: steps, limits and hold.
    """

    def __init__(self, config: DescriberConfig, clock: Clock | None = None) -> None:
        self._steps = config.image_ladder
        self._limit, self._recovered = config.image_ladder_age_s, config.image_ladder_recovered_age_s
        self._hold = config.image_ladder_hold_s
        self._clock = clock or SystemClock()
        self._step = 0
        self._changed = float("-inf")
        self._under_since: float | None = None
        self._changes: Counter[StepChange] = Counter()

    @property
    def step(self) -> int:
        """How many steps down it stands."""
        return self._step

    @property
    def num_steps(self) -> int:
        """How many there are; 0: the ladder is off."""
        return len(self._steps)

    @property
    def tokens(self) -> int | None:
        """Most image tokens of a crop now; None: as the engine is configured."""
        return self._steps[self._step - 1] if self._step else None

    @property
    def changes(self) -> Mapping[StepChange, int]:
        """Steps taken since the process started."""
        return {change: self._changes[change] for change in StepChange}

    def observe(self, oldest_age: float | None) -> None:
        """Takes a step if it is time for one. ``oldest_age``: seconds of the oldest waiting crop, None without any."""
        now, age = self._clock.monotonic(), oldest_age or 0.0
        rested = now - self._changed >= self._hold
        if age >= self._recovered:
            self._under_since = None
        elif self._under_since is None:
            self._under_since = now
        if age > self._limit and rested and self._step < len(self._steps):
            self._go(StepChange.LOWERED, now, age)
        elif self._step and rested and self._under_since is not None and now - self._under_since >= self._hold:
            self._go(StepChange.RAISED, now, age)

    def _go(self, change: StepChange, now: float, age: float) -> None:
        self._step += 1 if change is StepChange.LOWERED else -1
        self._changed = now
        self._changes[change] += 1
        log.log(
            logging.WARNING if change is StepChange.LOWERED else logging.INFO,
            "the oldest waiting crop is %.0f s old: %s image tokens a crop (step %d of %d)",
            age,
            "all" if self.tokens is None else f"at most {self.tokens}",
            self._step,
            len(self._steps),
        )
