"""How long a step will take: a measured table over new tokens, plus terms for what the tokens look back on.

    t = f(N) + gamma * sum(L) + alpha * sum(2 * L * x + x * x)

N is the number of new tokens of all requests, L a request's tokens before the step, x its new ones. f is a table (1,
2, 4, ... tokens, interpolated): on a CPU a token costs a quarter as much between 1 and 8 tokens as in a prefill, so
one line fits nowhere. gamma is reading the prefix's K and V, alpha the attention scores. Taken by timed forwards at
start, corrected online.

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
OUTLIER = 3.0
"""A step so many times longer or shorter than predicted says little: something else happened to the machine."""


@dataclass(frozen=True, slots=True)
class StepTimeModel:
    """See the module's text. Immutable; corrections give a new one.

    Attributes:
        sizes: token counts of the table, ascending, from 1.
        seconds: f at each size.
        gamma: seconds per prefix token.
        alpha: seconds per (query, key) pair.
        correction: factor of what decodes cost, learned online from steps that only decode.
        chunk_correction: factor of what prefill chunks add to a step, learned online from the steps that have some.
    """

    sizes: tuple[int, ...]
    seconds: tuple[float, ...]
    gamma: float
    alpha: float
    correction: float = 1.0
    chunk_correction: float = 1.0

    def as_json(self) -> dict[str, Any]:
        """All of it, for :meth:`from_json`."""
        return {
            "sizes": list(self.sizes),
            "seconds": list(self.seconds),
            "gamma": self.gamma,
            "alpha": self.alpha,
            "corrections": [self.correction, self.chunk_correction],
        }

    @staticmethod
    def from_json(stored: Mapping[str, Any]) -> StepTimeModel:
        """Raises ValueError, TypeError or KeyError for anything but what ``as_json`` gives."""
        sizes = tuple(int(size) for size in stored["sizes"])
        seconds = tuple(float(value) for value in stored["seconds"])
        gamma, alpha = float(stored["gamma"]), float(stored["alpha"])
        decodes, chunks = (float(factor) for factor in stored["corrections"])
        rising = all(low < high for low, high in itertools.pairwise(sizes)) and sizes[:1] == (1,)
        if not rising or len(sizes) != len(seconds):
            raise ValueError(f"a table of sizes {sizes} with {len(seconds)} times")
        if not all(math.isfinite(value) and value >= 0 for value in (*seconds, gamma, alpha)) or seconds[0] <= 0:
            raise ValueError("times are not all finite and from 0 on")
        if not all(math.isfinite(factor) and factor > 0 for factor in (decodes, chunks)):
            raise ValueError(f"corrections of {decodes} and {chunks}")
        return StepTimeModel(sizes, seconds, gamma, alpha, decodes, chunks)

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
        return self.gamma * prefix + self.alpha * (2.0 * prefix * new + new * new)

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
    chunk = min(64, sizes[-1])
    gamma = max(0.0, (_timed(forward, context, 1, repeats) - raw[0]) / context)
    at_chunk = StepTimeModel(tuple(sizes), tuple(raw), 0.0, 0.0).base(chunk)
    with_prefix = _timed(forward, context, chunk, repeats)
    alpha = max(0.0, (with_prefix - at_chunk - gamma * context) / (2.0 * context * chunk))
    # The table was measured with x * x score pairs in it; f is what remains without them.
    seconds = [max(value - alpha * size * size, 1e-9) for size, value in zip(sizes, raw, strict=True)]
    rising = [max(seconds[: place + 1]) for place in range(len(seconds))]
    return StepTimeModel(tuple(sizes), tuple(rising), gamma, alpha)


def _timed(forward: Callable[[int, int], None], prefix: int, new: int, repeats: int) -> float:
    times: list[float] = []
    for _ in range(repeats):
        begun = time.perf_counter()
        forward(prefix, new)
        times.append(time.perf_counter() - begun)
        if times[-1] > 0.25:
            break
    return median(times)
