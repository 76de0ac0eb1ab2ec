"""What the describer counts and times, as Prometheus reads it."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import Metric

from pipeline.answers import AnswerForm
from pipeline.reasons import Reason

_SECONDS = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0)
_PREFIX = "watchword_describer_"


class Outcome(StrEnum):
    """How a crop's time with the describer ends."""

    DESCRIBED = "described"
    EXPIRED = "expired"
    FAILED = "failed"


class DescriberMetrics:
    """Of one serve process, since it started. For any thread."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._crops = Counter(_PREFIX + "crops", "Crops by outcome.", ["outcome"], registry=self._registry)
        self._put_off = Counter(
            _PREFIX + "put_off",
            "Attempts that the engine had no time for, by reason.",
            ["reason"],
            registry=self._registry,
        )
        self._answers = Counter(
            _PREFIX + "answers",
            "Answers by form: valid fits the schema as it is; repaired was cut off, wrapped or didn't fit; text has no "
            "attributes.",
            ["form"],
            registry=self._registry,
        )
        self._first_words = Histogram(
            _PREFIX + "first_words_seconds",
            "From the request to the first words of the description.",
            buckets=_SECONDS,
            registry=self._registry,
        )
        self._stored = Histogram(
            _PREFIX + "stored_seconds",
            "From the crop's frame, or from asking for it once more, to the stored description.",
            buckets=_SECONDS,
            registry=self._registry,
        )
        self._queued = Histogram(
            _PREFIX + "queued_seconds",
            "From the crop's arrival in the queue to the stored description.",
            buckets=_SECONDS,
            registry=self._registry,
        )
        for outcome in Outcome:
            self._crops.labels(outcome.value)
        for form in AnswerForm:
            self._answers.labels(form.value)

    def put_off(self, reason: Reason) -> None:
        """An attempt that will be made again: the engine is down or busy."""
        self._put_off.labels(reason.value).inc()

    def answered(self, form: AnswerForm, first_words_s: float | None) -> None:
        """An answer with words. ``first_words_s``: None when they came all at once."""
        self._answers.labels(form.value).inc()
        if first_words_s is not None:
            self._first_words.observe(first_words_s)

    def ended(self, outcome: Outcome, *, age_s: float | None = None, queued_s: float | None = None) -> None:
        """A crop's end. When it was described, ``age_s``: the time since its frame, ``queued_s``: since it came into
        the queue."""
        self._crops.labels(outcome.value).inc()
        if age_s is not None:
            self._stored.observe(max(0.0, age_s))
        if queued_s is not None:
            self._queued.observe(max(0.0, queued_s))

    def collect(self) -> Iterable[Metric]:
        """The families as they stand."""
        return self._registry.collect()
