"""One phase: chats that go on all the time, a load beside them, and what arrived when."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from pipeline.bench.asks import Ask, chat_question
from pipeline.bench.endpoint import Endpoint, EndpointError
from pipeline.bench.engine_steps import Step, StepWatch
from pipeline.bench.statistics import milliseconds, percentile, spread

LOOK_S = 0.02
GAP_WAIT_S = 15.0
"""So long, or the drain if that is longer, gaps that are open at the phase's end may take to show their length."""


@dataclass(frozen=True, slots=True)
class Chats:
    """So many streams, each asking for ``max_tokens`` tokens again and again. ``seed``: makes their questions."""

    streams: int
    max_tokens: int
    seed: int


@dataclass(slots=True)
class AskRecord:
    """One prompt of the load: times in seconds, ``sent`` since the phase began, the others since it was sent."""

    sent: float
    first_token: float | None = None
    whole: float | None = None
    prompt_tokens: int | None = None
    error: str | None = None


@dataclass(slots=True)
class PhaseRecord:
    """What one phase saw.

    Attributes:
        gaps: (seconds from the phase's beginning to the gap's, its length) before every chat token but each answer's
            first, for gaps that began in the phase, however late they ended.
        chat_first_tokens: seconds to the first token of each chat answer begun in the phase.
        chat_tokens: chat tokens that arrived in the phase.
        asks: the load's prompts, in the order they were sent.
        unfinished: prompts that the drain ended.
        drained_s: seconds from the phase's end until the last prompt was done, or the drain was over.
        steps, drain_steps: of an engine of ours, up to the phase's end and after it.
        open_gaps: gaps that had not ended when waiting for them did; they count with what they had reached.
        steps_lost: whether steps may be missing.
    """

    name: str
    seconds: float
    gaps: list[tuple[float, float]] = field(default_factory=list)
    chat_first_tokens: list[float] = field(default_factory=list)
    chat_tokens: int = 0
    asks: list[AskRecord] = field(default_factory=list)
    unfinished: int = 0
    drained_s: float = 0.0
    steps: list[Step] = field(default_factory=list)
    drain_steps: list[Step] = field(default_factory=list)
    open_gaps: int = 0
    steps_lost: bool = False

    @property
    def completed(self) -> list[AskRecord]:
        """Prompts answered to the end."""
        return [ask for ask in self.asks if ask.whole is not None]

    def summary(self) -> dict[str, Any]:
        """Gaps in milliseconds, the load's times in seconds."""
        out: dict[str, Any] = {
            "phase": self.name,
            "gap_ms": milliseconds(gap for _, gap in self.gaps),
            "gaps": len(self.gaps),
            "open_gaps": self.open_gaps,
            "tokens_per_s": round(self.chat_tokens / self.seconds, 1),
            "chat_ttft_ms": milliseconds(self.chat_first_tokens),
        }
        return out | ({"load": self._load_summary()} if self.asks else {})

    def _load_summary(self) -> dict[str, Any]:
        completed = self.completed
        ends = [ask.sent + ask.whole for ask in completed if ask.whole is not None]
        busy = (self.seconds + self.drained_s if self.unfinished else max(ends, default=0.0)) - self.asks[0].sent
        prompts = [ask.prompt_tokens for ask in self.asks if ask.prompt_tokens is not None]
        errors = [ask.error for ask in self.asks if ask.error is not None]
        return {
            "sent": len(self.asks),
            "completed": len(completed),
            "completed_in_phase": sum(end <= self.seconds for end in ends),
            "completed_per_s": round(len(completed) / busy, 4) if completed else 0.0,
            "unfinished": self.unfinished,
            "failed": len(errors),
            "first_error": errors[0] if errors else None,
            "ttft_s": spread(ask.first_token for ask in self.asks if ask.first_token is not None),
            "e2e_s": spread(ask.whole for ask in completed if ask.whole is not None),
            "prompt_tokens_p50": percentile(prompts, 0.5),
        }


class _Chat:
    """One stream of chats; keeps when its last token came."""

    def __init__(self, number: int, chats: Chats, record: PhaseRecord, began: float) -> None:
        self._number = number
        self._chats = chats
        self._record = record
        self._began = began
        self.last: float | None = None
        """When the newest token of the answer in progress arrived; None between two answers."""
        self._asked = 0.0

    async def run(self, endpoint: Endpoint) -> None:
        turn = 0
        while True:
            turn += 1
            question = chat_question(self._chats.seed, self._number, turn)
            self.last, self._asked = None, time.monotonic()
            await endpoint.answer(Ask(question, self._chats.max_tokens), self._take)
            await asyncio.sleep(0)  # an endpoint that answers at once must not keep the loop to itself

    def _take(self, tokens: int) -> None:
        now, record = time.monotonic(), self._record
        end = self._began + record.seconds
        if now < end:
            record.chat_tokens += tokens
        if self.last is None:
            if self._asked < end:
                record.chat_first_tokens.append(now - self._asked)
        elif self.last < end:
            record.gaps.append((self.last - self._began, now - self.last))
        self.last = now

    def waits(self, end: float) -> bool:
        """Whether a gap that began before ``end`` is still open."""
        return self.last is not None and self.last < end

    def close(self, end: float) -> None:
        """Counts the open gap with what it has reached."""
        if self.last is not None and self.last < end:
            self._record.gaps.append((self.last - self._began, time.monotonic() - self.last))
            self._record.open_gaps += 1


async def run_phase(
    endpoint: Endpoint,
    name: str,
    seconds: float,
    chats: Chats,
    asks: Sequence[tuple[float, Ask]] = (),
    *,
    back_to_back: Iterator[Ask] | None = None,
    drain_s: float = 0.0,
    watch: StepWatch | None = None,
) -> PhaseRecord:
    """Runs chats for so long, sends the load's prompts at their times, then waits for them; the chats go on meanwhile.

    Args:
        endpoint: what is measured.
        name: of the phase.
        seconds: its length.
        chats: the streams.
        asks: (seconds since the phase began, prompt), ascending.
        back_to_back: prompts that are sent one after another, each when the one before is done, until the phase ends.
        drain_s: how long prompts, and gaps still open, may take after the phase.
        watch: collects the engine's steps; started.

    Raises:
        EndpointError: a chat was refused or broke. Failures of the load's prompts are in the record.
    """
    record = PhaseRecord(name, seconds)
    if watch is not None:
        await watch.take()
    began = time.monotonic()
    streams = [_Chat(number, chats, record, began) for number in range(chats.streams)]
    chat_tasks = [asyncio.create_task(stream.run(endpoint)) for stream in streams]
    ask_tasks = [asyncio.create_task(_ask_at(endpoint, ask, began + at, began, record)) for at, ask in asks]
    if back_to_back is not None:
        ask_tasks.append(asyncio.create_task(_ask_in_turn(endpoint, back_to_back, began, record)))
    try:
        await _run_until(began + seconds, chat_tasks)
        if watch is not None:
            record.steps = await watch.take()
        await _drain(record, streams, chat_tasks, ask_tasks, began + seconds, drain_s)
        for stream in streams:
            stream.close(began + seconds)
        if watch is not None:
            record.drain_steps, record.steps_lost = await watch.take(), watch.lost
    finally:
        for task in (*chat_tasks, *ask_tasks):
            task.cancel()
        await asyncio.gather(*chat_tasks, *ask_tasks, return_exceptions=True)
    record.asks.sort(key=lambda ask: ask.sent)
    return record


async def _drain(
    record: PhaseRecord,
    streams: Sequence[_Chat],
    chat_tasks: Sequence[asyncio.Task[None]],
    ask_tasks: Sequence[asyncio.Task[None]],
    end: float,
    drain_s: float,
) -> None:
    """Until every prompt is done and every gap closed, at most ``drain_s`` after ``end``."""
    deadline = end + drain_s
    while (waiting := [task for task in ask_tasks if not task.done()]) and time.monotonic() < deadline:
        await _run_until(min(time.monotonic() + LOOK_S, deadline), chat_tasks)
    record.unfinished = len(waiting)
    record.drained_s = max(0.0, time.monotonic() - end)
    deadline = end + max(drain_s, GAP_WAIT_S)
    while any(stream.waits(end) for stream in streams) and time.monotonic() < deadline:
        await _run_until(min(time.monotonic() + LOOK_S, deadline), chat_tasks)


async def _run_until(deadline: float, chats: Sequence[asyncio.Task[None]]) -> None:
    """Sleeps. Chats never end by themselves: the first that fails is raised."""
    timeout = max(0.0, deadline - time.monotonic())
    if not chats:
        await asyncio.sleep(timeout)
        return
    ended, _ = await asyncio.wait(chats, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
    for task in ended:
        task.result()


async def _ask_at(endpoint: Endpoint, ask: Ask, when: float, began: float, record: PhaseRecord) -> None:
    await asyncio.sleep(max(0.0, when - time.monotonic()))
    sent = time.monotonic()
    entry = AskRecord(sent - began)
    record.asks.append(entry)

    def first(_tokens: int) -> None:
        if entry.first_token is None:
            entry.first_token = time.monotonic() - sent

    try:
        usage = await endpoint.answer(ask, first)
    except EndpointError as error:
        entry.error = str(error)
        return
    entry.whole = time.monotonic() - sent
    entry.prompt_tokens = usage.prompt_tokens


async def _ask_in_turn(endpoint: Endpoint, asks: Iterator[Ask], began: float, record: PhaseRecord) -> None:
    while (now := time.monotonic()) < began + record.seconds:
        await _ask_at(endpoint, next(asks), now, began, record)
