"""A runner that computes nothing but remembers every page slot, so that a wrong page can't go unnoticed."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

from vlm_engine import EngineConfig, SamplingParams, scheduler
from vlm_engine.core import EngineCore
from vlm_engine.encoder_cache import EncoderCache, ImageFeatures
from vlm_engine.encoder_task import EncoderItem
from vlm_engine.metrics import EngineMetrics
from vlm_engine.outputs import RequestOutput
from vlm_engine.prompt import ImageInput, PreparedPrompt, PriorityClass
from vlm_engine.request import ImageSpan, Request
from vlm_engine.row_cuts import SliceWork
from vlm_engine.sampler import Sample, SamplingState
from vlm_engine.scheduler import Chunk
from vlm_engine.sequence import OutputSequence
from vlm_engine.step_time import StepTimeModel

FEATURE_BYTES = 8
"""Bytes of one feature row here."""


def next_token(token_ids: Sequence[int]) -> int:
    """A stand-in for a model: the next token depends on every token before it."""
    digest = hashlib.blake2b(repr(list(token_ids)).encode(), digest_size=4).digest()
    return int.from_bytes(digest, "little") % 50_000


class FixedTime(StepTimeModel):
    """A step-time model that learns nothing from a runner that takes no time."""

    def observed(self, work, seconds):
        return self


class FakeTokenizer:
    """Every token is one letter of text."""

    def decode(self, ids: Sequence[int], **options: object) -> str:
        return "".join(chr(ord("a") + i % 26) for i in ids)


ITEM_ROWS = 6
"""Feature rows of a picture's item here; the last has what is left."""


class FakeTask:
    """Three slices a pack."""

    slices = 3

    def __init__(self, runner: FakeRunner, items: Sequence[EncoderItem]) -> None:
        self._runner = runner
        self._items = items
        self.next = SliceWork("block", sum(item.rows for item in items))
        self.done = 0
        self.aborted = False

    def advance(self) -> list[ImageFeatures] | None:
        assert not self.aborted
        self.done += 1
        if self.done < self.slices:
            return None
        self._runner.encoded += [item.inputs["name"] for item in self._items if item.inputs["first"]]
        return [ImageFeatures(rows=torch.zeros(item.rows, 1)) for item in self._items]

    def abort(self) -> None:
        self.aborted = True


class FakeRunner:
    """Writes tokens into page slots and checks that each chunk's whole context lies where its block table says."""

    def __init__(self, num_blocks: int, block_size: int, cache: EncoderCache) -> None:
        self.num_blocks = num_blocks
        self._block_size = block_size
        self._cache = cache
        self._slots: dict[int, tuple[int, bytes]] = {}
        self.encoded: list[bytes] = []
        self.fail_images: set[bytes] = set()
        self.packs: list[list[tuple[bytes, int]]] = []

    def encoder_items(self, inputs) -> list[EncoderItem]:
        rows = inputs["rows"]
        sizes = [min(ITEM_ROWS, rows - start) for start in range(0, rows, ITEM_ROWS)]
        return [
            EncoderItem({"name": inputs["name"], "first": place == 0}, size, size, "fake")
            for place, size in enumerate(sizes)
        ]

    def start_encode(self, items: Sequence[EncoderItem]) -> FakeTask:
        if any(item.inputs["name"] in self.fail_images for item in items):
            raise RuntimeError("this picture can't be encoded")
        self.packs.append([(item.inputs["name"], item.rows) for item in items])
        return FakeTask(self, items)

    def forward(self, chunks: Sequence[Chunk]) -> list[int]:
        for chunk in chunks:
            request = chunk.request
            assert request.computed == chunk.start, "a chunk starts where the last one ended"
            for index in range(chunk.start, chunk.start + chunk.length):
                self._slots[self._slot(request, index)] = self._content(request, index)
        for chunk in chunks:
            request = chunk.request
            for index in range(chunk.start + chunk.length):
                assert self._slots[self._slot(request, index)] == self._content(request, index), (
                    "a page was overwritten"
                )
            for span in request.spans:
                end = min(span.end, chunk.start + chunk.length)
                if span.first < end and chunk.start < span.end:
                    ready = span.first + self._cache.rows_ready(span.content_hash)
                    assert end <= ready, "image tokens were computed before their features"
        return [next_token(chunk.request.token_ids) for chunk in chunks if chunk.samples]

    def _slot(self, request: Request, index: int) -> int:
        return request.blocks[index // self._block_size] * self._block_size + index % self._block_size

    def _content(self, request: Request, index: int) -> tuple[int, bytes]:
        image = next((s.content_hash for s in request.spans if s.first <= index < s.end), b"")
        return request.token_ids[index], image


def choose(rows: list[int], states: Sequence[SamplingState]) -> list[Sample]:
    """Takes the runner's tokens as they are."""
    return [Sample(token) for token in rows]


class FakeGrammar:
    """Forces what the runner would say anyway, up to ``longest`` tokens in a row, so that nothing else changes."""

    ended = False

    def __init__(self, ids: Sequence[int], longest: int) -> None:
        self._ids = list(ids)
        self._longest = longest

    def accept(self, token: int) -> None:
        assert token == next_token(self._ids)
        self._ids.append(token)

    def forced(self) -> tuple[int, ...]:
        ids = list(self._ids)
        for _ in range(next_token([*ids, -1]) % (self._longest + 1)):
            ids.append(next_token(ids))
        return tuple(ids[len(self._ids) :])


@dataclass
class FakeJob:
    """A request in plain numbers; ``images``: (first index, tokens, name); ``forced``: most tokens that a grammar
    forces at once."""

    name: str
    prompt: list[int]
    max_tokens: int
    priority_class: PriorityClass = PriorityClass.INTERACTIVE
    images: list[tuple[int, int, bytes]] = field(default_factory=list)
    n: int = 1
    forced: int = 0
    outputs: list[RequestOutput] = field(default_factory=list)

    def tokens(self, index: int = 0) -> list[int]:
        return [token for o in self.outputs if o.index == index for token in o.token_ids]

    @property
    def finished(self) -> dict[int, str]:
        return {o.index: str(o.finish_reason) for o in self.outputs if o.finish_reason is not None}

    def expected(self) -> list[int]:
        ids = list(self.prompt)
        for _ in range(self.max_tokens):
            ids.append(next_token(ids))
        return ids[len(self.prompt) :]


class FakeEngine:
    """An :class:`EngineCore` over a :class:`FakeRunner`."""

    def __init__(
        self,
        num_blocks: int,
        encoder_bytes: int = 10_000,
        step_time: StepTimeModel | None = None,
        pack_patches: int = 16,
        **knobs,
    ) -> None:
        self.config = EngineConfig(model="fake", encoder_cache_memory=encoder_bytes, **knobs)
        self.cache = EncoderCache(encoder_bytes)
        self.runner = FakeRunner(num_blocks, self.config.block_size, self.cache)
        self.core = EngineCore(self.config, self.runner, self.cache, EngineMetrics(), choose, pack_patches=pack_patches)
        self.core.step_time = step_time
        self._arrival = 0

    def add(self, job: FakeJob) -> None:
        """As ``submit`` does it; raises InvalidRequestError for what can never fit."""
        images = tuple(
            ImageInput(name, first, tuple(range(first, first + count)), {"name": name, "rows": count})
            for first, count, name in job.images
        )
        group = []
        for index in range(job.n):
            request = Request(
                key=f"{job.name}/{index}",
                request_id=job.name,
                index=index,
                token_ids=list(job.prompt),
                num_prompt=len(job.prompt),
                params=SamplingParams(max_tokens=job.max_tokens, temperature=0.0, ignore_eos=True),
                priority_class=job.priority_class,
                arrival=self._arrival,
                max_total=len(job.prompt) + job.max_tokens,
                block_size=self.config.block_size,
                salt=b"" if self.config.enable_prefix_caching else job.name.encode(),
                prompt=PreparedPrompt(tuple(job.prompt), images),
                spans=tuple(ImageSpan(i.content_hash, i.start, i.end, i.num_tokens * FEATURE_BYTES) for i in images),
            )
            self._arrival += 1
            self.core.check_fits(request)
            grammar: Any = FakeGrammar(job.prompt, job.forced) if job.forced else None
            group.append(OutputSequence.create(request, FakeTokenizer(), frozenset(), 0, job.outputs.append, grammar))
        self.core.add(group)

    def step(self) -> None:
        """One step, and everything that must hold after every step."""
        core = self.core
        decoding = [r for r in core._running.values() if r.decoding]
        overhead = core._overhead
        progressed = core.step()
        plan = core.last_plan
        assert progressed, "work exists and no request could do anything"
        assert plan.num_tokens <= self.config.max_num_batched_tokens
        assert len(core._running) <= self.config.max_num_seqs
        self._check_time(plan, {r.key for r in decoding}, overhead)
        served = {chunk.request.key for chunk in plan.chunks}
        preempted = {request.key for request in plan.preemptions}
        assert all(r.key in served or r.key in preempted for r in decoding), "a running decode got no token"
        assert len(served) == len(plan.chunks), "a request has two chunks in one step"
        core.check_integrity()

    def _check_time(self, plan, decoding: set[str], overhead: float) -> None:
        """While somebody decodes, the step's predicted time stays under the target, or prefill got just its floor."""
        target, model = self.config.target_itl_ms, self.core.step_time
        if target == "auto" and model is not None:
            target = 2000 * (overhead + model.predict([(c.start, 1) for c in plan.chunks if c.request.key in decoding]))
        decodes = [c for c in plan.chunks if c.request.key in decoding]
        if target is None or model is None or not decodes:
            return
        prefill = plan.num_tokens - len(decodes)
        if not any(c.request.priority_class is PriorityClass.INTERACTIVE for c in decodes):
            target *= scheduler.Budget(1, 1).background_factor
        assert plan.target == pytest.approx(target / 1000)
        predicted = model.predict([(c.start, c.length) for c in plan.chunks])
        assert predicted + overhead <= target / 1000 or prefill <= scheduler.Budget(1, 1).least_prefill

    def run(self, limit: int = 20_000) -> None:
        """Until everything is finished."""
        steps = 0
        while self.core.has_work:
            self.step()
            steps += 1
            assert steps < limit, "requests don't finish"
