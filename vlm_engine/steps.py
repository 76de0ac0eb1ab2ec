"""A ring of the last steps: what each did and how long it took."""

from __future__ import annotations

from collections import deque
from dataclasses import asdict, dataclass

RING = 1000


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One step.

    Attributes:
        started: seconds on the monotonic clock.
        seconds: wall time; ``encoder_seconds`` is the part spent on pictures.
        predicted_seconds: what the step-time model said of the rest; 0 without a model.
        encoder_predicted_seconds: what was predicted for the slices.
        target_seconds: how long the step was allowed to take; 0 without a bound.
        decode_tokens, prefill_tokens: new tokens by kind.
        slices: slices of pictures' encodings.
        running, waiting: requests after the step's admissions.
        preemptions: requests preempted in it.
    """

    started: float
    seconds: float
    encoder_seconds: float
    predicted_seconds: float
    encoder_predicted_seconds: float
    target_seconds: float
    decode_tokens: int
    prefill_tokens: int
    slices: int
    running: int
    waiting: int
    preemptions: int


class StepRing:
    """The last 1,000 steps, oldest first."""

    def __init__(self) -> None:
        self._records: deque[StepRecord] = deque(maxlen=RING)

    def add(self, record: StepRecord) -> None:
        self._records.append(record)

    def records(self) -> list[StepRecord]:
        # copy() is one operation; iterating would fail while the engine's thread adds a record.
        return list(self._records.copy())

    def as_json(self) -> list[dict[str, float]]:
        """Plain dictionaries for ``json.dumps``."""
        return [asdict(record) for record in self.records()]
