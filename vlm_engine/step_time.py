"""How long a step will take: a measured table over new tokens, plus terms for what the tokens look back on.

    t = f(N) + sum over decodes(gamma * L) + sum over chunks(delta * L + alpha * (2 * L * x + x * x))

N is the number of new tokens of all requests, L a request's tokens before the step, x its new ones. f is a table (1,
2, 4, ... tokens, interpolated): on a CPU a token costs a quarter as much between 1 and 8 tokens as in a prefill, so
one line fits nowhere. gamma and delta are reading the prefix's K and V (a kernel that attends several queries prepares
them first: on two cores behind 6,000 tokens that is 27 ms of a chunk's time, and each of its tokens 1.4 ms more),
alpha the attention scores. Taken by timed forwards at start, corrected online.

The shape follows ROCm/ATOM#2007 and Sarathi-Serve's profile; the table in place of a line is ours.
"""

from __future__ import annotations

import itertools
import math
import time
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

Work = Sequence[tuple[int, int]]
"""(L, x) of each request in a step."""

LEARNING_RATE = 0.05
CHUNKS = (8, 64)
"""Sizes of the chunks that are measured behind a long prefix: between them lies what a step has room for."""
OUTLIER = 3.0
"""A step so many times longer or shorter than predicted says little: something else happened to the machine."""

MISSES = 0.03
"""Share of steps that may take longer than their target."""
MARGIN_RATE = 0.05
MOST_MARGIN = 1.5


@dataclass(frozen=True, slots=True)
class StepTimeModel:
    """See the module's text. Immutable; corrections give a new one.

    Attributes:
        sizes: token counts of the table, ascending, from 1.
        seconds: f at each size.
        gamma: seconds per prefix token of a decode.
        alpha: seconds per (query, key) pair of a chunk.
        delta: seconds per prefix token of a chunk, at least gamma.
        correction: factor of what decodes cost, learned online from steps that only decode.
        chunk_correction: factor of what prefill chunks add to a step, learned online from the steps that have some.
    """

    sizes: tuple[int, ...]
    seconds: tuple[float, ...]
    gamma: float
    alpha: float
    delta: float = 0.0
    correction: float = 1.0
    chunk_correction: float = 1.0

    def as_json(self) -> dict[str, Any]:
        """All of it, for :meth:`from_json`."""
        return {
            "sizes": list(self.sizes),
            "seconds": list(self.seconds),
            "gamma": self.gamma,
            "alpha": self.alpha,
            "delta": self.delta,
            "corrections": [self.correction, self.chunk_correction],
        }

    @staticmethod
    def from_json(stored: Mapping[str, Any]) -> StepTimeModel:
        """Raises ValueError, TypeError or KeyError for anything but what ``as_json`` gives."""
        sizes = tuple(int(size) for size in stored["sizes"])
        seconds = tuple(float(value) for value in stored["seconds"])
        gamma, alpha, delta = (float(stored[name]) for name in ("gamma", "alpha", "delta"))
        decodes, chunks = (float(factor) for factor in stored["corrections"])
        rising = all(low < high for low, high in itertools.pairwise(sizes)) and sizes[:1] == (1,)
        if not rising or len(sizes) != len(seconds):
            raise ValueError(f"a table of sizes {sizes} with {len(seconds)} times")
        if not all(math.isfinite(value) and value >= 0 for value in (*seconds, gamma, alpha, delta)) or seconds[0] <= 0:
            raise ValueError("times are not all finite and from 0 on")
        if not all(math.isfinite(factor) and factor > 0 for factor in (decodes, chunks)):
            raise ValueError(f"corrections of {decodes} and {chunks}")
        return StepTimeModel(sizes, seconds, gamma, alpha, delta, decodes, chunks)

    def base(self, tokens: int) -> float:
        """f: linear between the table's points, in proportion to the last slope beyond them."""
        if tokens <= 0:
            return 0.0
        if len(self.sizes) == 1:
            return self.seconds[0] * tokens / self.sizes[0]
        place = min(max(bisect_right(self.sizes, tokens), 1), len(self.sizes) - 1)
        low, high = self.sizes[place - 1], self.sizes[place]
        slope = (self.seconds[place] - self.seconds[place - 1]) / (high - low)
        return self.seconds[place - 1] + slope * (tokens - low)

    def looking_back(self, prefix: int, new: int) -> float:
        """The context terms of one request, uncorrected."""
        if new == 1:
            return self.gamma * prefix
        return max(self.gamma, self.delta) * prefix + self.alpha * (2.0 * prefix * new + new * new)

    def predict(self, work: Work) -> float:
        """Seconds that a step with this work takes."""
        decodes, chunks = self._parts(work)
        return self.correction * decodes + self.chunk_correction * chunks

    def _parts(self, work: Work) -> tuple[float, float]:
        """Uncorrected seconds of a step's decodes, and what its chunks add."""
        single = [item for item in work if item[1] == 1]
        decodes = self.base(len(single)) + sum(self.looking_back(*item) for item in single)
        total = self.base(sum(new for _, new in work)) + sum(self.looking_back(*item) for item in work)
        return decodes, max(0.0, total - decodes)

    def tokens_within(self, seconds: float, tokens_so_far: int, prefix: int, most: int) -> int:
        """How many new tokens of a request with this prefix may join a step.

        Args:
            seconds: what the step may still take.
            tokens_so_far: new tokens already in the step.
            prefix: tokens of the request computed so far, those of this step included.
            most: answer at most this.
        """
        before = self.base(tokens_so_far)
        low, high = 0, most
        while low < high:
            middle = (low + high + 1) // 2
            cost = self.base(tokens_so_far + middle) - before + self.looking_back(prefix, middle)
            if self.chunk_correction * cost <= seconds:
                low = middle
            else:
                high = middle - 1
        return low

    def observed(self, work: Work, seconds: float) -> StepTimeModel:
        """The model after a measured step: a correction moves a little towards what was measured."""
        decodes, chunks = self._parts(work)
        if seconds <= 0 or decodes + chunks <= 0:
            return self
        if chunks <= 0:
            return replace(self, correction=_moved(self.correction, seconds / decodes))
        added = max(0.0, seconds - self.correction * decodes)
        return replace(self, chunk_correction=_moved(self.chunk_correction, added / chunks))


def _moved(correction: float, measured: float) -> float:
    """A step from a factor towards a measured one, however far that is no further than OUTLIER allows."""
    ratio = min(max(measured / correction, 1 / OUTLIER), OUTLIER)
    return correction * math.exp(LEARNING_RATE * math.log(ratio))


def calibrate(
    forward: Callable[[int, int], None], largest: int, context: int, *, limit_s: float = 4.0, repeats: int = 3
) -> StepTimeModel:
    """Measures a model's step times.

    Args:
        forward: runs a step of one request with (prefix, new) tokens and waits for it.
        largest: most new tokens in a step.
        context: a long prefix to measure with.
        limit_s: larger sizes are left out (and extrapolated) once so much time has gone.
        repeats: forwards per size; the median counts (one run where a forward takes over a quarter second).
    """
    started = time.monotonic()
    forward(0, 1)  # warm-up: lazily made buffers and kernels
    sizes: list[int] = []
    raw: list[float] = []
    size = 1
    while size <= largest and (time.monotonic() - started < limit_s or len(sizes) < 2):
        sizes.append(size)
        raw.append(_timed(forward, 0, size, repeats))
        size *= 2
    table = StepTimeModel(tuple(sizes), tuple(raw), 0.0, 0.0)
    gamma = max(0.0, (_timed(forward, context, 1, repeats) - raw[0]) / context)
    small, large = (min(chunk, sizes[-1]) for chunk in CHUNKS)
    behind = [max(0.0, _timed(forward, context, chunk, repeats) - table.base(chunk)) for chunk in (small, large)]
    alpha = max(0.0, behind[1] - behind[0]) / (2.0 * context * max(1, large - small))
    delta = max(gamma, behind[0] / context - 2.0 * alpha * small)
    # The table was measured with x * x score pairs in it; f is what remains without them.
    seconds = [max(value - alpha * size * size, 1e-9) for size, value in zip(sizes, raw, strict=True)]
    rising = [max(seconds[: place + 1]) for place in range(len(seconds))]
    return StepTimeModel(tuple(sizes), tuple(rising), gamma, alpha, delta)


def _timed(forward: Callable[[int, int], None], prefix: int, new: int, repeats: int) -> float:
    times: list[float] = []
    for _ in range(repeats):
        begun = time.perf_counter()
        forward(prefix, new)
        times.append(time.perf_counter() - begun)
        if times[-1] > 0.25:
            break
    return median(times)


class Margin:
    """How much of a target's time may be planned with, so that nearly all steps keep the target and not half of them.

    The factor follows the quantile of steps (stochastic approximation, Robbins and Monro 1951): a step over its target
    raises it, every other one lowers it a little, and the two balance where ``MISSES`` of the steps are over.
    """

    def __init__(self) -> None:
        self.factor = 1.1

    def observe(self, seconds: float, target: float) -> None:
        """A step that was planned up to its target took so long."""
        missed = seconds > target
        self.factor *= 1.0 + MARGIN_RATE * ((1.0 if missed else 0.0) - MISSES)
        self.factor = min(max(self.factor, 1.0), MOST_MARGIN)
