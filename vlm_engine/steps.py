"""The last steps: what each did and how long it took, and why a gap in somebody's answer was long."""

from __future__ import annotations

from collections import deque
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vlm_engine.metrics import EngineMetrics
    from vlm_engine.scheduler import Plan

RING = 1000
LONG_GAP = 3.0
"""A decode gap counts as long from so many times the usual decode-only step on."""


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


class StepLog:
    """The last 1,000 steps, oldest first, also as metrics.

    Args:
        metrics: counted there.
    """

    def __init__(self, metrics: EngineMetrics) -> None:
        self._metrics = metrics
        self._records: deque[StepRecord] = deque(maxlen=RING)
        self._usual_step = 0.0

    def add(self, record: StepRecord) -> None:
        """From the engine's thread."""
        self._records.append(record)
        if record.decode_tokens and not record.prefill_tokens and not record.slices:
            usual = self._usual_step
            self._usual_step = 0.9 * usual + 0.1 * record.seconds if usual else record.seconds
        self._metrics.inc("engine_steps")
        self._metrics.observe("step_seconds", record.seconds)
        self._metrics.observe("iteration_tokens", record.decode_tokens + record.prefill_tokens)

    def explain_gap(self, gap: float, plan: Plan) -> None:
        """Counts a long decode gap (seconds) under what its step did besides decoding."""
        if not self._usual_step or gap < LONG_GAP * self._usual_step:
            return
        if plan.encodes:
            cause = "encoder"
        elif any(chunk.length > 1 for chunk in plan.chunks):
            cause = "prefill"
        elif plan.preemptions:
            cause = "preemption"
        else:
            cause = "other"
        self._metrics.inc("decode_gap_cause", cause=cause)

    def records(self) -> list[StepRecord]:
        # copy() is one operation; iterating would fail while the engine's thread adds a record.
        return list(self._records.copy())

    def as_json(self) -> list[dict[str, float]]:
        """Plain dictionaries for ``json.dumps``."""
        return [asdict(record) for record in self.records()]
