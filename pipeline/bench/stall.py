"""Do chats stutter while others use the model? Chats alone, then beside a load, against any OpenAI endpoint."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import httpx

from pipeline.bench.asks import Ask, CameraLoad, Load, TextLoad, prose
from pipeline.bench.endpoint import Endpoint, EndpointError, OpenAIEndpoint
from pipeline.bench.engine_steps import OperatorApi, StepWatch, decode_only_seconds, encoder_use, summarise_steps
from pipeline.bench.phase import Chats, PhaseRecord, run_phase
from pipeline.bench.statistics import ratio

WARM_UP_TOKENS = 256
CALIBRATION_WORDS = (64, 256)

Report = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class StallSettings:
    """What is measured.

    Attributes:
        streams: chats at once.
        chat_tokens: tokens of each chat answer.
        seconds: length of a phase.
        drain_s: how long the load's prompts may take after the phase.
        warm_up_s: chats before anything counts; 0 leaves the warm-up out.
        seed: makes all questions, texts and pictures; the same seed gives two servers the same.
        target_ms: the server's ``target_itl_ms`` where it is a number; steps are counted under it.
    """

    streams: int = 4
    chat_tokens: int = 256
    seconds: float = 40.0
    drain_s: float = 60.0
    warm_up_s: float = 5.0
    seed: int = 0
    target_ms: float | None = None


@dataclass(slots=True)
class StallResult:
    """Both phases, as measured (:attr:`records`) and summed up (:attr:`document`, for JSON)."""

    records: list[PhaseRecord]
    document: dict[str, Any] = field(default_factory=dict)


async def measure(
    endpoint: OpenAIEndpoint, load: Load, settings: StallSettings, report: Report = lambda text: None
) -> StallResult:
    """Warm-up, the chats alone, then beside the load.

    Raises:
        EndpointError: a chat was refused or broke.
    """
    operator = OperatorApi(endpoint.client, endpoint.root)
    watch = StepWatch(operator.steps) if await operator.available() else None
    words = await words_for(endpoint, load)
    if settings.warm_up_s > 0:
        report("warming up")
        await warm_up(endpoint, load, settings, words)
    if watch is not None:
        await watch.start()
    try:
        report(f"chats alone, {settings.seconds:g} s")
        alone = await run_phase(endpoint, "alone", settings.seconds, _chats(settings, 1), drain_s=0.0, watch=watch)
        asks = make_asks(load, settings.seconds, settings.seed * 1000 + 1, words)
        report(
            f"chats beside {load.title}: {len(asks)} prompts in {settings.seconds:g} s, drain {settings.drain_s:g} s"
        )
        before = await operator.counters() if watch is not None else {}
        beside = await run_phase(
            endpoint,
            "beside the load",
            settings.seconds,
            _chats(settings, 2),
            asks,
            drain_s=settings.drain_s,
            watch=watch,
        )
        after = await operator.counters() if watch is not None else {}
    except httpx.HTTPError as error:
        raise EndpointError(f"{endpoint.root}: {type(error).__name__} while its engine's steps were read") from error
    finally:
        if watch is not None:
            await watch.stop()
    records = [alone, beside]
    document = {
        "settings": {**asdict(settings), "load": {"kind": type(load).__name__, "title": load.title, **asdict(load)}},
        "server": {
            "model": endpoint.model,
            "extras_refused": list(endpoint.refused),
            "ours": watch is not None,
        },
        "phases": [record.summary() for record in records],
        "compared": compare(alone, beside),
    }
    if watch is not None:
        document["engine"] = engine_summary(records, before, after, settings.target_ms)
    return StallResult(records, document)


async def warm_up(endpoint: Endpoint, load: Load, settings: StallSettings, words: int) -> None:
    """Chats and one small prompt of the load's kind, with questions of their own."""
    ask = load.ask(settings.seed * 1000 + 999, min(words, WARM_UP_TOKENS))
    asks = [(0.0, replace(ask, max_tokens=2))]
    record = await run_phase(
        endpoint, "warm-up", settings.warm_up_s, _chats(settings, 0), asks, drain_s=max(60.0, settings.drain_s)
    )
    failed = [entry.error for entry in record.asks if entry.error is not None]
    if failed:
        raise EndpointError(f"a prompt of the load ({load.title}) fails: {failed[0]}")


def make_asks(load: Load, seconds: float, seed: int, words: int) -> list[tuple[float, Ask]]:
    """The load's prompts with their times, all different."""
    return [(at, load.ask(seed + number, words)) for number, at in enumerate(load.arrivals(seconds))]


async def words_for(endpoint: Endpoint, load: Load) -> int:
    """How many words make the load's prompt tokens with this server's tokenizer and template; 0 for pictures.

    Two prompts are counted by the server and a line is put through them; a server that doesn't count gets a word a
    token.
    """
    if isinstance(load, CameraLoad):
        return 0
    counts: list[int] = []
    for words in CALIBRATION_WORDS:
        usage = await endpoint.answer(Ask(prose(words, 7_000_000 + words), 1), lambda _tokens: None)
        if usage.prompt_tokens is None:
            return load.prompt_tokens
        counts.append(usage.prompt_tokens)
    slope = (counts[1] - counts[0]) / (CALIBRATION_WORDS[1] - CALIBRATION_WORDS[0])
    return max(1, round((load.prompt_tokens - counts[0]) / slope) + CALIBRATION_WORDS[0])


def compare(alone: PhaseRecord, beside: PhaseRecord) -> dict[str, Any]:
    """The phase with load over the one without: what the load costs the chats."""
    before, after = alone.summary(), beside.summary()
    base = before["gap_ms"]["p99"]
    return {
        "p99_gap_over_p99_alone": ratio(after["gap_ms"]["p99"], base),
        "max_gap_over_p99_alone": ratio(after["gap_ms"]["max"], base),
        "tokens_per_s_over_alone": ratio(after["tokens_per_s"], before["tokens_per_s"]),
        "every_prompt_finished": beside.unfinished == 0 and all(ask.error is None for ask in beside.asks),
    }


def engine_summary(
    records: list[PhaseRecord], before: Mapping[str, float], after: Mapping[str, float], target_ms: float | None
) -> dict[str, Any]:
    """What the engine's own steps say, phase by phase, and what the encoder took in the second one and its drain."""
    alone, beside = records
    decode_only = decode_only_seconds(alone.steps)
    return {
        "decode_only_ms": None if decode_only is None else round(1000 * decode_only, 2),
        "target_ms": target_ms,
        "steps_lost": any(record.steps_lost for record in records),
        "alone": summarise_steps(alone.steps, decode_only, target_ms),
        "beside the load": summarise_steps(beside.steps, decode_only, target_ms),
        "drain": summarise_steps(beside.drain_steps, decode_only, target_ms),
        "encoder": encoder_use(before, after, len(beside.completed)),
    }


def _chats(settings: StallSettings, phase: int) -> Chats:
    return Chats(settings.streams, settings.chat_tokens, settings.seed * 10 + phase)


def run(
    base_url: str,
    load: Load,
    settings: StallSettings,
    *,
    model: str | None = None,
    api_key: str | None = None,
    report: Report = lambda text: None,
) -> StallResult:
    """:func:`measure` from code that isn't asynchronous; opens and closes the endpoint.

    Raises:
        EndpointError: the server can't be reached, refuses, or breaks.
    """

    async def whole() -> StallResult:
        report(f"asking {base_url} what it takes")
        one_tile = isinstance(load, CameraLoad) and load.one_tile
        async with await OpenAIEndpoint.open(base_url, model, api_key, one_tile=one_tile) as endpoint:
            began = time.time()
            result = await measure(endpoint, load, settings, report)
            result.document["settings"]["base_url"] = base_url
            result.document["measured"] = {"unix_time": round(began), "took_s": round(time.time() - began, 1)}
            return result

    return asyncio.run(whole())


def load_named(kind: str, *, rate: float, one_tile: bool, prompt_tokens: int | None, every_s: float) -> Load:
    """A load by its name on the command line: ``cameras``, ``texts`` or ``one-text``.

    Raises:
        ValueError: there is none of this name.
    """
    if kind == "cameras":
        return CameraLoad(rate, one_tile)
    if kind == "texts":
        return TextLoad(prompt_tokens or 2000, every_s)
    if kind == "one-text":
        return TextLoad(prompt_tokens or 6000)
    raise ValueError(f"load is {kind!r}, allowed are cameras, texts, one-text")
