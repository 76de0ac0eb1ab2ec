"""What ``max_num_batched_tokens`` and ``target_itl_ms`` cost and give on this machine, point by point.

Each point is measured with chats that go on all the time and one prompt after another beside them: as much work as the
engine takes, so that the prompt tokens it computes a second are the price of a small gap. A long prompt is computed
with nobody else there, too, at every token budget: small chunks read the tokens before them again and again.
"""

from __future__ import annotations

import asyncio
import itertools
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

from pipeline.bench.asks import Ask, CameraLoad, TextLoad
from pipeline.bench.engine_endpoint import EngineEndpoint
from pipeline.bench.engine_steps import Step, StepWatch, decode_only_seconds
from pipeline.bench.phase import Chats, PhaseRecord, run_phase
from pipeline.bench.stall import words_for
from pipeline.bench.statistics import milliseconds, percentile

if TYPE_CHECKING:
    from vlm_engine import EngineConfig, VLMEngine

BUDGETS = (128, 256, 512, 1024, 2048, 4096, 8192)
MULTIPLES = (1.5, 2.0, 3.0, 4.0, 8.0)
QUICK_BUDGETS = (128, 512, 2048)
QUICK_MULTIPLES = (2.0, 4.0)
USUAL_LIMIT = 2.0
"""Largest p99 gap beside prompts, over the p99 gap of chats alone, where no limit is given."""


@dataclass(frozen=True, slots=True)
class TunePlan:
    """What is tried, and for how long.

    Attributes:
        budgets: ``max_num_batched_tokens``, each with ``target_itl_ms`` off.
        multiples: ``target_itl_ms`` over the decode-only step, each with the configuration's token budget.
        streams, chat_tokens: chats at once, and tokens of each of their answers.
        seconds: length of a phase; ``drain_s``: how long its last prompt may take afterwards.
        prompt_tokens: of the long prompts.
        limit_ms: largest p99 gap that may be recommended; None: twice that of chats alone.
    """

    budgets: Sequence[int] = BUDGETS
    multiples: Sequence[float] = MULTIPLES
    streams: int = 4
    chat_tokens: int = 256
    seconds: float = 20.0
    drain_s: float = 60.0
    prompt_tokens: int = 2048
    limit_ms: float | None = None


@dataclass(frozen=True, slots=True)
class Knobs:
    """One point. ``multiple``: where its target comes from."""

    max_num_batched_tokens: int
    target_itl_ms: float | None
    multiple: float | None = None

    @property
    def text(self) -> str:
        """As in the configuration file."""
        target = "null" if self.target_itl_ms is None else f"{self.target_itl_ms:g}"
        return f"max_num_batched_tokens: {self.max_num_batched_tokens}, target_itl_ms: {target}"


class Report(Protocol):
    """Told what is being done, and how much of the whole is done (0 to 1)."""

    def __call__(self, text: str, done: float | None = None, /) -> None: ...


async def tune(config: EngineConfig, plan: TunePlan, report: Report) -> dict[str, Any]:
    """Measures all points; gives them with a recommendation, ready for JSON.

    Raises:
        ConfigError, ModelLoadError: of the engine.
        EndpointError: the engine refuses or fails a chat.
    """
    # Points that differ in nothing that step times depend on are planned with the same measured times.
    with tempfile.TemporaryDirectory() as kept:
        return await _tune(replace(config, calibration_dir=config.calibration_dir or kept), plan, report)


async def _tune(config: EngineConfig, plan: TunePlan, report: Report) -> dict[str, Any]:
    points: list[dict[str, Any]] = []
    total = len(plan.budgets) + len(plan.multiples) + 1
    done = itertools.count()

    def say(text: str) -> None:
        report(text, next(done) / total)

    say("chats alone")
    async with _engine(config, Knobs(config.max_num_batched_tokens, None)) as engine:
        alone, decode_only = await _measure_alone(engine, plan)
        takes_images, model, plan = engine.takes_images, engine.model_name, _fitting(plan, engine)
    for budget in plan.budgets:
        knobs = Knobs(budget, None)
        say(knobs.text)
        async with _engine(config, knobs) as engine:
            point = {"prefill_alone": await _prefill_alone(engine, plan), "beside_texts": await _texts(engine, plan)}
            points.append({"sweep": "max_num_batched_tokens", **asdict(knobs), **point})
    for multiple in plan.multiples:
        knobs = Knobs(config.max_num_batched_tokens, round(1000 * multiple * decode_only, 1), multiple)
        say(knobs.text)
        async with _engine(config, knobs) as engine:
            point = {"beside_texts": await _texts(engine, plan)}
            if takes_images:
                point["beside_pictures"] = await _pictures(engine, plan)
            points.append({"sweep": "target_itl_ms", **asdict(knobs), **point})
    return {
        "model": model,
        "plan": asdict(plan),
        "chats_alone": {**alone, "decode_only_ms": round(1000 * decode_only, 2)},
        "points": points,
        "recommendation": recommend(points, alone["gap_ms"]["p99"], plan.limit_ms),
    }


@asynccontextmanager
async def _engine(config: EngineConfig, knobs: Knobs) -> AsyncIterator[VLMEngine]:
    """An engine with these knobs, ready."""
    from vlm_engine import VLMEngine

    # The engine wants room for a token of every running decode.
    engine = VLMEngine(
        replace(
            config,
            max_num_batched_tokens=knobs.max_num_batched_tokens,
            target_itl_ms=knobs.target_itl_ms,
            max_num_seqs=min(config.max_num_seqs, knobs.max_num_batched_tokens),
        )
    )
    try:
        await asyncio.to_thread(engine.start)
        yield engine
    finally:
        await asyncio.to_thread(engine.shutdown)


def _fitting(plan: TunePlan, engine: VLMEngine) -> TunePlan:
    """The plan with prompts that fit the model's context."""
    return replace(plan, prompt_tokens=min(plan.prompt_tokens, engine.max_model_len - 64))


async def _measure_alone(engine: VLMEngine, plan: TunePlan) -> tuple[dict[str, Any], float]:
    """Chats with nothing beside them: gaps, tokens a second; and the seconds of a step that only decodes."""
    record = await _phase(engine, plan, "alone", 1, None)
    decode_only = decode_only_seconds(record.steps)
    if decode_only is None:
        raise RuntimeError("no step of the engine did nothing but decode; the phase is too short")
    return _chat_numbers(record), decode_only


async def _texts(engine: VLMEngine, plan: TunePlan) -> dict[str, Any]:
    """Chats beside one long text after another."""
    load = TextLoad(plan.prompt_tokens, max_tokens=1)
    words = await words_for(EngineEndpoint(engine), load)
    record = await _phase(engine, plan, "texts", 2, lambda number: load.ask(number, words))
    prefilled = sum(int(step["prefill_tokens"]) for step in record.steps)
    return {
        **_chat_numbers(record),
        "ttft_s": _median_first(record),
        "prompt_tokens_per_s": round(prefilled / plan.seconds, 1),
        "prompts": len(record.completed),
    }


async def _pictures(engine: VLMEngine, plan: TunePlan) -> dict[str, Any]:
    """Chats beside one camera picture after another."""
    load = CameraLoad(1.0)
    record = await _phase(engine, plan, "pictures", 3, lambda number: load.ask(number, 0))
    whole = sum(ask.whole for ask in record.completed if ask.whole is not None)
    return {
        **_chat_numbers(record),
        "ttft_s": _median_first(record),
        # One is in work at a time, so its time from end to end is the reciprocal of the rate.
        "pictures_per_s": round(len(record.completed) / whole, 4) if whole else None,
        "pictures": len(record.completed),
    }


async def _prefill_alone(engine: VLMEngine, plan: TunePlan) -> dict[str, Any]:
    """One long text with nobody else there: time to its token, and how often its tokens were read again."""
    endpoint = EngineEndpoint(engine)
    # Two tokens: with the second, the step that gave the first is in the engine's record.
    load = TextLoad(plan.prompt_tokens, max_tokens=2)
    words = await words_for(endpoint, load)
    no_chats = Chats(0, plan.chat_tokens, 0)
    watch = StepWatch(endpoint.steps)
    await watch.start()
    try:
        record = await run_phase(
            endpoint, "prefill", 0.0, no_chats, [(0.0, load.ask(9_000_001, words))], drain_s=plan.drain_s, watch=watch
        )
    finally:
        await watch.stop()
    chunks = prefill_chunks([*record.steps, *record.drain_steps], record.asks[0].prompt_tokens or 0)
    tokens = sum(chunks)
    first = record.asks[0].first_token
    return {
        "prompt_tokens": record.asks[0].prompt_tokens,
        "ttft_s": None if first is None else round(first, 3),
        "tokens_per_s": round(tokens / first, 1) if first else None,
        "chunks": len(chunks),
        "prefix_reads_per_token": round(prefix_reads(chunks) / tokens, 2) if tokens else None,
    }


def prefill_chunks(steps: Sequence[Step], prompt_tokens: int) -> list[int]:
    """New prompt tokens of each step that had any: the newest steps, back to where the prompt of so many began."""
    chunks: list[int] = []
    for step in reversed(steps):
        if sum(chunks) >= prompt_tokens:
            break
        if step["prefill_tokens"]:
            chunks.append(int(step["prefill_tokens"]))
    return chunks[::-1]


def prefix_reads(chunks: Sequence[int]) -> int:
    """How many tokens computed before were read again as the prefixes of later chunks, in one prompt cut like this."""
    return sum(itertools.accumulate(chunks[:-1]))


async def _phase(
    engine: VLMEngine, plan: TunePlan, name: str, seed: int, make_ask: Callable[[int], Ask] | None
) -> PhaseRecord:
    """Chats, and beside them one prompt after another."""
    endpoint = EngineEndpoint(engine)
    chat_tokens = min(plan.chat_tokens, engine.max_model_len // 2)
    watch = StepWatch(endpoint.steps)
    await watch.start()
    try:
        return await run_phase(
            endpoint,
            name,
            plan.seconds,
            Chats(plan.streams, chat_tokens, seed),
            back_to_back=_numbered(make_ask, seed) if make_ask is not None else None,
            drain_s=plan.drain_s,
            watch=watch,
        )
    finally:
        await watch.stop()


def _numbered(make_ask: Callable[[int], Ask], seed: int) -> Iterator[Ask]:
    return (make_ask(seed * 1_000_000 + number) for number in itertools.count())


def _chat_numbers(record: PhaseRecord) -> dict[str, Any]:
    return {
        "gap_ms": milliseconds(gap for _, gap in record.gaps),
        "chat_tokens_per_s": round(record.chat_tokens / record.seconds, 1),
    }


def _median_first(record: PhaseRecord) -> float | None:
    value = percentile((ask.first_token for ask in record.asks if ask.first_token is not None), 0.5)
    return None if value is None else round(value, 3)


def recommend(points: Sequence[dict[str, Any]], p99_alone_ms: float, limit_ms: float | None) -> dict[str, Any]:
    """The point with the most prompt tokens a second among those whose p99 gap is small enough.

    Where pictures were measured, only points with pictures count, and the gap beside pictures must be small enough too.
    With none small enough it is the point with the smallest p99 gap.

    Args:
        points: as measured.
        p99_alone_ms: p99 gap of chats alone.
        limit_ms: largest p99 gap; None: twice ``p99_alone_ms``.
    """
    limit = limit_ms if limit_ms is not None else round(USUAL_LIMIT * p99_alone_ms, 1)
    with_pictures = [point for point in points if "beside_pictures" in point]
    candidates = with_pictures or list(points)
    good = [point for point in candidates if worst_p99(point) <= limit]
    if good:
        best = max(good, key=lambda point: (point["beside_texts"]["prompt_tokens_per_s"], -worst_p99(point)))
    else:
        best = min(candidates, key=worst_p99)
    knobs = Knobs(best["max_num_batched_tokens"], best["target_itl_ms"])
    rate = best["beside_texts"]["prompt_tokens_per_s"]
    most = max(point["beside_texts"]["prompt_tokens_per_s"] for point in points)
    share = f", {100 * rate / most:.0f} % of the most measured" if most else ""
    kept = f"of at most {limit:g}" if good else f"and no point keeps {limit:g}"
    text = f"{knobs.text}  # p99 gap {worst_p99(best):g} ms {kept}; {rate:g} prompt tokens/s beside the chats{share}"
    return {
        "max_num_batched_tokens": knobs.max_num_batched_tokens,
        "target_itl_ms": knobs.target_itl_ms,
        "limit_ms": limit,
        "within_limit": bool(good),
        "text": text,
    }


def worst_p99(point: dict[str, Any]) -> float:
    """The larger p99 gap of the point's phases, in milliseconds; infinite where no gap was seen."""
    phases = [point[name] for name in ("beside_texts", "beside_pictures") if name in point]
    return max(float("inf") if phase["gap_ms"]["p99"] is None else phase["gap_ms"]["p99"] for phase in phases)
