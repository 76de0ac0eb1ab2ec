"""How long a slice of an encoding takes: for each kind of slice, v0 + v1 * rows + v2 * pairs.

Rows are patches, pairs what they attend, so that a whole layer of p patches costs v0 + v1 * p + v2 * p^2. Measured at
start on pictures of a few sizes, corrected online by kind; a slice that took three times as long as predicted, or a
third, moves its correction no further than that.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

from vlm_engine.row_cuts import SliceWork
from vlm_engine.step_time import OUTLIER

LEARNING_RATE = 0.05

Terms = tuple[float, float, float]
Sample = tuple[SliceWork, float]


@dataclass(slots=True)
class EncoderCost:
    """See the module's text. Owned by the engine thread.

    Attributes:
        terms: v0, v1, v2 of each kind, in seconds, seconds a row, and seconds a pair.
        corrections: factor of each kind, learned online.
    """

    terms: dict[str, Terms] = field(default_factory=dict)
    corrections: dict[str, float] = field(default_factory=dict)

    @staticmethod
    def fit(samples: Iterable[Sample]) -> EncoderCost:
        """From timed slices; kinds without a sample predict 0 until they are observed."""
        by_kind: dict[str, list[Sample]] = {}
        for work, seconds in samples:
            by_kind.setdefault(work.kind, []).append((work, seconds))
        return EncoderCost({kind: _fit_kind(group) for kind, group in by_kind.items()})

    def predict(self, work: SliceWork) -> float:
        """Seconds; 0 for a kind that nothing is known of."""
        v0, v1, v2 = self.terms.get(work.kind, (0.0, 0.0, 0.0))
        return self.corrections.get(work.kind, 1.0) * (v0 + v1 * work.rows + v2 * work.pairs)

    def observe(self, work: SliceWork, seconds: float) -> None:
        """Learns from a measured slice."""
        if seconds <= 0:
            return
        predicted = self.predict(work)
        if predicted <= 0:
            self.terms[work.kind] = (0.0, seconds / max(1, work.rows), 0.0)
            self.corrections[work.kind] = 1.0
            return
        ratio = min(max(seconds / predicted, 1 / OUTLIER), OUTLIER)
        # The step towards what was measured is bounded too, so that one hiccup doesn't empty the next steps.
        correction = self.corrections.get(work.kind, 1.0) * math.exp(LEARNING_RATE * math.log(ratio))
        self.corrections[work.kind] = correction

    def as_json(self) -> dict[str, list[float]]:
        """Terms with their corrections worked in."""
        return {k: [self.corrections.get(k, 1.0) * term for term in terms] for k, terms in self.terms.items()}

    @staticmethod
    def from_json(stored: Mapping[str, list[float]]) -> EncoderCost:
        """Raises ValueError or TypeError for anything but what ``as_json`` gives."""
        terms: dict[str, Terms] = {}
        for kind, values in stored.items():
            v0, v1, v2 = (float(value) for value in values)
            if not all(math.isfinite(value) and value >= 0 for value in (v0, v1, v2)):
                raise ValueError(f"terms of {kind} are {values}, allowed are numbers from 0 on")
            terms[kind] = (v0, v1, v2)
        return EncoderCost(terms)


def _fit_kind(samples: list[Sample]) -> Terms:
    """Least squares on the medians of equal works, weighted so that relative errors count, no term below 0.

    With as few different works as a tower of one size gives, fewer terms are fitted: pairs before rows before the
    constant, as far as they differ.
    """
    grouped: dict[tuple[int, int], list[float]] = {}
    for work, seconds in samples:
        grouped.setdefault((work.rows, work.pairs), []).append(seconds)
    works = np.array(list(grouped), dtype=np.float64)
    times = np.array([float(np.median(values)) for values in grouped.values()])
    design = np.column_stack([np.ones(len(works)), works])
    active = [2] if works[:, 1].any() else [1]
    for term in (1, 0):
        if term not in active and np.linalg.matrix_rank(_scaled(design[:, [*active, term]])) > len(active):
            active.append(term)
    while active:
        solution, *_ = np.linalg.lstsq(design[:, active] / times[:, None], np.ones(len(times)), rcond=None)
        if (solution >= 0).all():
            break
        del active[int(np.argmin(solution))]
    terms = [0.0, 0.0, 0.0]
    for place, value in zip(active, solution if active else (), strict=True):
        terms[place] = float(value)
    return (terms[0], terms[1], terms[2]) if any(terms) else (float(np.median(times)), 0.0, 0.0)


def _scaled(matrix: np.ndarray) -> np.ndarray:
    scaled: np.ndarray = matrix / np.maximum(np.abs(matrix).max(axis=0), 1e-30)
    return scaled
