"""The engine's own counters, gauges and histograms; the API turns them into Prometheus text.

Written by the engine thread and the preprocessing pool's callbacks, read through :meth:`EngineMetrics.snapshot`.
Meanings are vLLM's where vLLM has the metric. Names go out with the prefix ``watchword_``.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, field

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
SLICE_SECONDS = (0.0005, 0.001, 0.002, 0.004, 0.008, 0.012, 0.016, 0.024, 0.032, 0.064, 0.128, 0.256, 0.512, 1.024)
TOKENS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768)

Labels = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Spec:
    """A metric's kind ("counter", "gauge", "histogram"), help text, label names and (histogram) bucket bounds."""

    kind: str
    help: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()


SPECS: Mapping[str, Spec] = {
    "num_requests_running": Spec("gauge", "Requests that hold KV pages."),
    "num_requests_waiting": Spec("gauge", "Requests in the queue."),
    "kv_cache_usage_ratio": Spec("gauge", "Share of KV pages in use, 0 to 1."),
    "encoder_cache_usage_ratio": Spec("gauge", "Share of the encoder cache in use, 0 to 1."),
    "preprocess_queue_depth": Spec("gauge", "Pictures waiting for or in preprocessing."),
    "prompt_tokens": Spec("counter", "Prompt tokens computed."),
    "generation_tokens": Spec("counter", "Tokens generated."),
    "jump_forward_tokens": Spec("counter", "Those of them that a grammar forced, so that nobody sampled them."),
    "prefix_cache_queries": Spec("counter", "Prompt tokens looked up in the prefix cache."),
    "prefix_cache_hits": Spec("counter", "Prompt tokens found in the prefix cache."),
    "encoder_cache_queries": Spec("counter", "Pictures looked up in the encoder cache."),
    "encoder_cache_hits": Spec("counter", "Pictures found in the encoder cache."),
    "num_preemptions": Spec("counter", "Requests preempted (recomputed later)."),
    "request_finished": Spec("counter", "Requests ended.", ("finished_reason", "class")),
    "encoder_items": Spec("counter", "Pictures encoded."),
    "encoder_slices": Spec("counter", "Slices of pictures' encodings."),
    "engine_steps": Spec("counter", "Engine steps."),
    "time_to_first_token_seconds": Spec("histogram", "From arrival to the first token.", ("class",), SECONDS),
    "inter_token_latency_seconds": Spec("histogram", "Gap between two tokens of one output.", ("class",), SECONDS),
    "e2e_request_latency_seconds": Spec("histogram", "From arrival to the end.", ("class",), SECONDS),
    "request_queue_time_seconds": Spec("histogram", "From arrival to admission.", ("class",), SECONDS),
    "iteration_tokens": Spec("histogram", "New tokens per step.", (), TOKENS),
    "step_seconds": Spec("histogram", "Wall time of a step.", (), SECONDS),
    "step_predicted_seconds": Spec("histogram", "Predicted time of a step's packed forward.", (), SECONDS),
    "step_forward_seconds": Spec("histogram", "Measured time of a step's packed forward.", (), SECONDS),
    "encoder_slice_predicted_seconds": Spec(
        "histogram", "Predicted time of a slice of an encoding.", ("kind",), SLICE_SECONDS
    ),
    "encoder_slice_seconds": Spec("histogram", "Measured time of a slice of an encoding.", ("kind",), SLICE_SECONDS),
    "encoder_seconds": Spec("histogram", "Encoder time per step that encodes.", (), SECONDS),
    "preprocess_seconds": Spec("histogram", "Decode, resize and normalise, per picture.", (), SECONDS),
    "decode_gap_cause": Spec("counter", "Decode gaps of over 3 times the usual step, by cause.", ("cause",)),
}


@dataclass(slots=True)
class Histogram:
    """Cumulative-free counts: ``counts[i]`` values up to ``buckets[i]``, the last for everything above."""

    buckets: tuple[float, ...]
    counts: list[int] = field(default_factory=list)
    total: float = 0.0

    def __post_init__(self) -> None:
        if not self.counts:
            self.counts = [0] * (len(self.buckets) + 1)

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.buckets, value)] += 1
        self.total += value

    def copy(self) -> Histogram:
        return Histogram(self.buckets, list(self.counts), self.total)


class EngineMetrics:
    """A small registry. Unknown names and label names are programming errors and raise KeyError."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._values: dict[tuple[str, Labels], float] = {}
        self._histograms: dict[tuple[str, Labels], Histogram] = {}
        for name, spec in SPECS.items():
            if spec.kind != "histogram" and not spec.labels:
                self._values[(name, ())] = 0.0

    def inc(self, name: str, by: float = 1.0, /, **labels: str) -> None:
        """Adds to a counter."""
        key = self._key(name, labels)
        with self._lock:
            self._values[key] = self._values.get(key, 0.0) + by

    def set(self, name: str, value: float, /, **labels: str) -> None:
        """Sets a gauge."""
        with self._lock:
            self._values[self._key(name, labels)] = value

    def observe(self, name: str, value: float, /, **labels: str) -> None:
        """Adds a value to a histogram."""
        key = self._key(name, labels)
        with self._lock:
            histogram = self._histograms.get(key)
            if histogram is None:
                histogram = self._histograms[key] = Histogram(SPECS[name].buckets)
            histogram.observe(value)

    def value(self, name: str, **labels: str) -> float:
        """A counter's or gauge's value now."""
        with self._lock:
            return self._values.get(self._key(name, labels), 0.0)

    def snapshot(self) -> tuple[dict[tuple[str, Labels], float], dict[tuple[str, Labels], Histogram]]:
        """Copies of all values and of all histograms, keyed by name and labels."""
        with self._lock:
            return dict(self._values), {key: histogram.copy() for key, histogram in self._histograms.items()}

    @staticmethod
    def _key(name: str, labels: Mapping[str, str]) -> tuple[str, Labels]:
        spec = SPECS[name]
        return name, tuple((label, labels[label]) for label in spec.labels)
