"""Random traces of arrivals, lengths, pictures, aborts and tight memory through plan and apply, checked every step."""

from __future__ import annotations

import random
from dataclasses import dataclass

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.vlm_engine.fake import FEATURE_BYTES, FakeEngine, FakeJob, FixedTime
from vlm_engine import InvalidRequestError
from vlm_engine.prompt import PriorityClass


@dataclass(frozen=True)
class Arrival:
    """A request of a trace: ``shared`` prompts begin alike, so that prefixes are found again."""

    at: int
    length: int
    shared: int
    max_tokens: int
    background: bool
    images: tuple[tuple[int, int, int], ...]
    n: int
    abort_after: int | None
    forced: int = 0

    def job(self, number: int) -> FakeJob:
        prompt = [self.shared * 7 + i % 5 if i < 40 else number * 1000 + i for i in range(self.length)]
        images, end = [], 0
        for gap, count, name in self.images:
            first = end + gap
            if first + count < self.length:
                for index in range(first, first + count):
                    prompt[index] = 49190
                images.append((first, count, b"picture %d of size %d" % (name, count)))
                end = first + count
        kind = PriorityClass.BACKGROUND if self.background else PriorityClass.INTERACTIVE
        return FakeJob(f"job{number}", prompt, self.max_tokens, kind, images, self.n, self.forced)


arrivals = st.builds(
    Arrival,
    at=st.integers(0, 30),
    length=st.integers(1, 120),
    shared=st.integers(0, 2),
    max_tokens=st.integers(1, 25),
    background=st.booleans(),
    # Few layouts, so that prompts often differ in nothing but which picture stands there.
    images=st.lists(st.tuples(st.sampled_from([0, 3]), st.sampled_from([1, 6, 20]), st.integers(0, 2)), max_size=3).map(
        tuple
    ),
    n=st.sampled_from([1, 1, 1, 2, 3]),
    abort_after=st.one_of(st.none(), st.none(), st.integers(0, 40)),
    forced=st.sampled_from([0, 0, 3, 40]),
)

knobs = st.fixed_dictionaries(
    {
        "num_blocks": st.integers(3, 60),
        "encoder_bytes": st.sampled_from([25, 40, 70, 1000]).map(lambda tokens: tokens * FEATURE_BYTES),
        "max_num_batched_tokens": st.sampled_from([4, 7, 16, 64, 256]),
        "max_num_seqs": st.sampled_from([1, 2, 4]),
        "block_size": st.sampled_from([1, 4, 16]),
        "prefill_quantum": st.sampled_from([1, 5, 32]),
        "long_prefill_token_threshold": st.sampled_from([0, 0, 3, 20]),
        "enable_prefix_caching": st.booleans(),
    }
)


def drive(settings_: dict, trace: list[Arrival]) -> None:
    engine = FakeEngine(**settings_)
    jobs = {number: (arrival, arrival.job(number)) for number, arrival in enumerate(trace)}
    refused: set[int] = set()
    pending = sorted(jobs, key=lambda number: jobs[number][0].at)
    step = 0
    while pending or engine.core.has_work:
        while pending and (jobs[pending[0]][0].at <= step or not engine.core.has_work):
            number = pending.pop(0)
            try:
                engine.add(jobs[number][1])
            except InvalidRequestError:
                refused.add(number)
        for arrival, job in jobs.values():
            if arrival.abort_after is not None and step == arrival.at + arrival.abort_after:
                engine.core.abort(job.name)
                engine.core.check_integrity()
        if engine.core.has_work:
            engine.step()
        step += 1
        assert step < 20_000, "the trace does not finish"
    for number, (arrival, job) in jobs.items():
        if number in refused:
            assert not job.outputs
            continue
        assert sorted(job.finished) == list(range(job.n)), "every sequence finishes exactly once"
        for index, reason in job.finished.items():
            whole = job.expected()
            got = job.tokens(index)
            assert got == whole[: len(got)], "tokens don't depend on the schedule, and none comes twice"
            if arrival.abort_after is None:
                assert (reason, len(got)) == ("length", job.max_tokens)
    assert engine.core.pool.num_free == engine.core.pool.num_blocks, "pages leak"
    assert engine.cache.free == engine.cache.capacity, "features leak"


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(knobs, st.lists(arrivals, min_size=1, max_size=10))
def test_random_traces_keep_every_invariant(settings_, trace):
    if settings_["max_num_seqs"] > settings_["max_num_batched_tokens"]:
        settings_["max_num_seqs"] = settings_["max_num_batched_tokens"]
    drive(settings_, trace)


def dense_trace(rng: random.Random) -> tuple[dict, list[Arrival]]:
    """Many long requests at once in a cache with hardly more room than the largest needs: all limits bind."""
    block_size = rng.choice([1, 4, 16])
    trace = [
        Arrival(
            at=rng.randrange(12),
            length=rng.randrange(1, 90),
            shared=rng.randrange(2),
            max_tokens=rng.randrange(1, 40),
            background=rng.random() < 0.5,
            images=tuple((rng.choice([0, 3]), rng.choice([6, 20]), rng.randrange(3)) for _ in range(rng.randrange(4))),
            n=rng.choice([1, 1, 1, 3]),
            abort_after=rng.randrange(30) if rng.random() < 0.15 else None,
            forced=rng.choice([0, 0, 2, 9, 40]),
        )
        for _ in range(rng.randrange(4, 12))
    ]
    largest = max(-(-(a.length + a.max_tokens) // block_size) for a in trace)
    tokens = rng.choice([4, 16, 64, 256])
    knobs_ = {
        "num_blocks": largest + rng.randrange(0, 1 + 48 // block_size),
        "encoder_bytes": rng.choice([40, 60, 80]) * FEATURE_BYTES,
        "max_num_batched_tokens": tokens,
        "max_num_seqs": min(tokens, rng.choice([2, 4, 8])),
        "block_size": block_size,
        "prefill_quantum": rng.choice([1, 5, 32]),
        "long_prefill_token_threshold": rng.choice([0, 0, 3, 20]),
        "enable_prefix_caching": rng.random() < 0.8,
        "pack_patches": rng.choice([1, 16, 40]),
        "encoder_slicing": rng.random() < 0.8,
    }
    if rng.random() < 0.5:
        knobs_["step_time"] = FixedTime((1, 8, 64), (0.010, 0.012, 0.05), 1e-5, 1e-6)
        knobs_["target_itl_ms"] = rng.choice([5.0, 15.0, 40.0, "auto", None])
    return knobs_, trace


@pytest.mark.parametrize("start", range(0, 800, 400))
def test_dense_traces_keep_every_invariant(start):
    for seed in range(start, start + 400):
        try:
            drive(*dense_trace(random.Random(seed)))
        except Exception as error:
            raise AssertionError(f"seed {seed}: {error}") from error


@pytest.mark.soak
@pytest.mark.parametrize("start", range(1000, 21_000, 1000))
def test_twenty_thousand_dense_traces(start):
    for seed in range(start, start + 1000):
        try:
            drive(*dense_trace(random.Random(seed)))
        except Exception as error:
            raise AssertionError(f"seed {seed}: {error}") from error
