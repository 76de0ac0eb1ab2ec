"""Phases against an endpoint that stalls, fails and hangs as told."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable

import pytest

from pipeline.bench.asks import Ask
from pipeline.bench.endpoint import EndpointError, Usage
from pipeline.bench.phase import Chats, run_phase

CHATS = Chats(2, 8, 0)


class Scripted:
    """Chats get a token every millisecond, unless ``stalled`` is set; the load's prompts do what ``on_load`` does."""

    def __init__(self, on_load: Callable[[], object] | None = None) -> None:
        self.go = asyncio.Event()
        self.go.set()
        self.on_load = on_load
        self.loads = self.most_loads = self.cancelled = 0
        self.all_talk = asyncio.Event()
        """Set once every chat is in the middle of an answer."""
        self._begun = 0

    async def answer(self, ask: Ask, on_tokens: Callable[[int], None]) -> Usage:
        if not ask.background:
            for _ in range(ask.max_tokens):
                await asyncio.sleep(0.001)
                await self.go.wait()
                on_tokens(1)
                self._begun += 1
                if self._begun == 2 * CHATS.streams:
                    self.all_talk.set()
            return Usage(5, ask.max_tokens)
        self.loads += 1
        self.most_loads = max(self.most_loads, self.loads)
        try:
            await self.on_load()
            on_tokens(1)
            return Usage(70, 1)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self.loads -= 1


LONG_CHATS = Chats(2, 100_000, 0)
LOAD = Ask("load", 1, background=True)


async def test_a_stall_that_outlasts_the_phase_counts_in_full() -> None:
    """The gaps that matter most are those that are still open when the phase's time is up."""

    async def stall_into_the_drain() -> None:
        await endpoint.all_talk.wait()
        endpoint.go.clear()
        await asyncio.sleep(1.2)
        endpoint.go.set()

    endpoint = Scripted(stall_into_the_drain)
    record = await run_phase(endpoint, "x", 1.0, LONG_CHATS, [(0.0, LOAD)], drain_s=30.0)
    long = [(at, gap) for at, gap in record.gaps if gap >= 1.19]
    assert len(long) == 2 and record.open_gaps == 0  # one a chat
    assert all(at < record.seconds < at + gap for at, gap in long)
    assert record.unfinished == 0 and len(record.completed) == 1


async def test_a_gap_that_never_ends_counts_as_far_as_it_went_and_the_prompt_is_unfinished(monkeypatch) -> None:
    async def stall_for_good() -> None:
        await endpoint.all_talk.wait()
        endpoint.go.clear()
        await asyncio.Event().wait()

    monkeypatch.setattr("pipeline.bench.phase.GAP_WAIT_S", 0.2)
    endpoint = Scripted(stall_for_good)
    record = await run_phase(endpoint, "x", 1.0, LONG_CHATS, [(0.0, LOAD)], drain_s=0.2)
    assert record.open_gaps == 2 and max(gap for _, gap in record.gaps) > 0.2
    assert record.unfinished == 1 and endpoint.cancelled == 1
    load = record.summary()["load"]
    assert (load["sent"], load["completed"], load["unfinished"], load["failed"]) == (1, 0, 1, 0)
    assert load["completed_per_s"] == 0.0 and load["ttft_s"]["p50"] is None


async def test_a_failing_prompt_is_recorded_and_its_neighbours_go_on() -> None:
    outcomes = iter([EndpointError("no room", 429), None])

    async def fail_once() -> None:
        if error := next(outcomes):
            raise error

    record = await run_phase(Scripted(fail_once), "x", 0.2, CHATS, [(0.0, LOAD), (0.1, LOAD)], drain_s=30.0)
    load = record.summary()["load"]
    assert (load["sent"], load["completed"], load["failed"], load["first_error"]) == (2, 1, 1, "no room")
    assert load["prompt_tokens_p50"] == 70


async def test_a_failing_chat_ends_the_measurement() -> None:
    class Broken:
        async def answer(self, ask: Ask, on_tokens: Callable[[int], None]) -> Usage:
            raise EndpointError("gone")

    with pytest.raises(EndpointError, match="gone"):
        await run_phase(Broken(), "x", 30.0, CHATS)


async def test_one_prompt_after_another_is_never_two_at_once() -> None:
    async def briefly() -> None:
        await asyncio.sleep(0.01)

    endpoint = Scripted(briefly)
    record = await run_phase(endpoint, "x", 0.3, CHATS, back_to_back=itertools.repeat(LOAD), drain_s=30.0)
    assert endpoint.most_loads == 1 and len(record.completed) == len(record.asks) > 1
    assert all(ask.sent < record.seconds for ask in record.asks)


async def test_the_first_token_of_an_answer_is_no_gap() -> None:
    record = await run_phase(Scripted(), "x", 0.2, Chats(1, 2, 0))
    assert len(record.chat_first_tokens) > 2
    # Answers of two tokens have one gap each; the last answer may be cut off.
    assert abs(len(record.gaps) - len(record.chat_first_tokens)) <= 1
