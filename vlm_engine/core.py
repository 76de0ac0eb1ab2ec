"""The engine's synchronous heart: ``plan -> execute -> apply``. One thread owns everything in it.

Nothing here knows of threads, asyncio or HTTP; tests drive it step by step, also with a runner that computes nothing.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

from vlm_engine import scheduler
from vlm_engine.encoder_cache import EncoderCache
from vlm_engine.encoder_lane import Lane
from vlm_engine.encoder_stage import CPU_PACK, EncoderStage
from vlm_engine.encoding import Encoder
from vlm_engine.errors import InvalidRequestError
from vlm_engine.kv_blocks import BlockPool
from vlm_engine.outputs import FinishReason
from vlm_engine.request import Request, RequestState
from vlm_engine.sampler import Sample, SamplingState, sample
from vlm_engine.scheduler import Budget, Chunk, Plan, PrefixHit, SchedulerState
from vlm_engine.sequence import OutputSequence
from vlm_engine.step_time import OUTLIER, Margin, StepTimeModel
from vlm_engine.steps import StepLog, StepRecord

if TYPE_CHECKING:
    import torch

    from vlm_engine.config import EngineConfig
    from vlm_engine.metrics import EngineMetrics

logger = logging.getLogger(__name__)

OVERHEAD_RATE = 0.05
"""How fast a step's own overhead is learned; it is counted at most OUTLIER times what is known."""


class Runner(Encoder, Protocol):
    """What computes: :class:`vlm_engine.runner.ModelRunner`."""

    num_blocks: int

    def forward(self, chunks: Sequence[Chunk]) -> torch.Tensor: ...

    def score(self, chunk: Chunk) -> list[Sample]: ...


class EngineCore:
    """Requests, pages, features, and one step after another.

    Args:
        config: budgets.
        runner: computes encodes and forwards.
        encoder_cache: shared with the runner, which reads it.
        metrics: counted there.
        choose: logits and sampling states -> samples; the tests' seam for a runner without logits.
        lane: where slices of pictures run; None = in the engine's thread.
        pack_patches: patches that are encoded together, at most.
        interrupted: whether somebody new has come; encoding ends early then when nobody decodes.
    """

    def __init__(
        self,
        config: EngineConfig,
        runner: Runner,
        encoder_cache: EncoderCache,
        metrics: EngineMetrics,
        choose: Callable[[torch.Tensor, Sequence[SamplingState]], list[Sample]] = sample,
        lane: Lane | None = None,
        pack_patches: int = CPU_PACK,
        interrupted: Callable[[], bool] = lambda: False,
    ) -> None:
        self.config = config
        self.runner = runner
        self.pool = BlockPool(runner.num_blocks)
        self.encoder_cache = encoder_cache
        self.metrics = metrics
        self.steps = StepLog(metrics)
        self.last_plan = Plan()
        self._choose = choose
        self._sequences: dict[str, OutputSequence] = {}
        self._running: dict[str, Request] = {}
        self._waiting: dict[str, Request] = {}
        self._overhead = 0.0  # seconds of a decoding step besides its forward and slices
        self._margin = Margin()
        self.encoder = EncoderStage(
            runner, encoder_cache, metrics, self.fail, pack_patches, config.encoder_slicing, lane, interrupted
        )
        self.step_time: StepTimeModel | None = None
        self._budget = Budget(
            config.max_num_batched_tokens,
            config.max_num_seqs,
            config.prefill_quantum,
            config.long_prefill_token_threshold,
            target_seconds=config.target_itl_ms / 1000.0 if isinstance(config.target_itl_ms, float | int) else None,
            target_auto=config.target_itl_ms == "auto",
        )

    @property
    def capacity_tokens(self) -> int:
        """Tokens that all pages hold together."""
        return self.pool.num_blocks * self.config.block_size

    @property
    def has_work(self) -> bool:
        """Whether any request is unfinished."""
        return bool(self._sequences)

    @property
    def num_waiting(self) -> int:
        """Requests that are not running yet (siblings held back included)."""
        return len(self._sequences) - len(self._running)

    def check_fits(self, request: Request) -> None:
        """Refuses what can never run. Safe to call from any thread.

        Raises:
            InvalidRequestError: with the numbers and the knob.
        """
        if request.blocks_for(request.max_total) > self.pool.num_blocks:
            raise InvalidRequestError(
                f"prompt and output take up to {request.max_total} tokens, the KV cache holds {self.capacity_tokens} "
                "(kv_cache_memory)",
                param="messages",
                code="context_length_exceeded",
            )
        size = self.encoder_cache.need(request.spans, 0)
        distinct = sum({span.content_hash: span.num_bytes for span in request.spans}.values())
        if max(size, distinct) > self.encoder_cache.capacity:
            raise InvalidRequestError(
                f"the pictures' features take {distinct} bytes, the encoder cache holds {self.encoder_cache.capacity} "
                "(encoder_cache_memory)",
                param="messages",
                code="context_length_exceeded",
            )

    def add(self, group: Sequence[OutputSequence]) -> None:
        """Takes the sequences of one request: the first computes the prompt, the others then share its pages."""
        leader, *others = group
        leader.followers.extend(others)
        for sequence in group:
            sequence.jumps = self.config.jump_forward
            self._sequences[sequence.request.key] = sequence
            sequence.request.state = RequestState.HELD
        self._enqueue(leader.request)

    def abort(self, request_id: str) -> None:
        """Ends all sequences of a request, whatever state they are in."""
        self._end_all(request_id, FinishReason.ABORT, None)

    def fail(self, request_id: str, error: str) -> None:
        """Ends all sequences of a request with an error; its neighbours go on."""
        self._end_all(request_id, FinishReason.ERROR, error)

    def fail_all(self, error: str) -> None:
        """Ends everything with an error."""
        for request_id in {s.request.request_id for s in self._sequences.values()}:
            self.fail(request_id, error)

    def abort_all(self) -> None:
        """Ends everything."""
        for request_id in {s.request.request_id for s in self._sequences.values()}:
            self.abort(request_id)
        self.encoder.drop_unwanted()

    def step(self) -> bool:
        """One step: plan, execute, apply.

        Returns:
            False when no request could do anything.
        """
        started = time.monotonic()
        budget = replace(
            self._budget, step_time=self.step_time, overhead_seconds=self._overhead, margin=self._margin.factor
        )
        plan = self.last_plan = scheduler.plan(self._state(), budget)
        self._apply_moves(plan)
        predicted = forward = 0.0
        if plan.chunks:
            logits, predicted, forward = self._forward(plan.chunks)
            forward += self._advance(plan.chunks, logits)
        if plan.target is not None:
            self._learn(plan, plan.target, time.monotonic() - started, forward)
        # Tokens are out; pictures get what is left of the step's time.
        self.encoder.run(plan, started)
        self._record(plan, started, predicted)
        return not plan.empty

    def stuck(self, seconds: float) -> list[str]:
        """Ids of running requests without progress for so long."""
        limit = time.monotonic() - seconds
        return sorted({r.request_id for r in self._running.values() if r.progress_time < limit})

    def check_integrity(self) -> None:
        """Raises RuntimeError when pages or features don't add up with the requests. For tests and idle moments."""
        self.pool.check_integrity(r.blocks for r in self._running.values())
        holds = {r.key: sum(1 for s in r.spans if s.end > r.computed) for r in self._running.values()}
        self.encoder_cache.check_integrity(holds)

    # The step's parts ------------------------------------------------------------------------------------------------

    def _state(self) -> SchedulerState:
        cache = self.encoder_cache
        return SchedulerState(
            running=tuple(self._running.values()),
            waiting=tuple(self._waiting.values()),
            block_size=self.config.block_size,
            free_blocks=self.pool.num_free,
            releasable=lambda request: self.pool.count_sole(request.blocks),
            prefix_hit=self._prefix_hit,
            encoded=cache.encoded,
            rows_ready=cache.rows_ready,
            encoder_free=cache.free,
            encoder_need=lambda request, start: cache.need(request.spans, start),
            encoder_seconds=self.encoder.seconds_left,
            slice_seconds=self.encoder.encodings.slice_seconds,
        )

    def _prefix_hit(self, request: Request) -> PrefixHit:
        # The last token is always computed: its logits are needed, as are those before a token still to be scored.
        usable = request.scored if request.unscored else request.total - 1
        blocks = self.pool.lookup(request.block_hashes(usable // self.config.block_size))
        return PrefixHit(tuple(blocks), self.pool.count_free(blocks))

    def _apply_moves(self, plan: Plan) -> None:
        """Preemptions, admissions, growth. Cached pages are taken before any fresh page could evict them."""
        now = time.monotonic()
        for request in plan.preemptions:
            self._release(request)
            del self._running[request.key]
            request.computed, request.num_preemptions = 0, request.num_preemptions + 1
            self._enqueue(request)
            self.metrics.inc("num_preemptions")
        for admission in plan.admissions:
            self.pool.acquire(admission.hit.blocks)
        for admission in plan.admissions:
            self._start(admission, now)
        admitted = [admission.request for admission in plan.admissions]
        self.encoder_cache.hold((r.key, span) for r in admitted for span in r.spans if span.end > r.computed)
        for request in plan.growth:
            request.blocks += self.pool.allocate(request.blocks_for(request.total) - len(request.blocks))
        for request in plan.passed_over:
            request.passed_over += 1

    def _start(self, admission: scheduler.Admission, now: float) -> None:
        request = admission.request
        del self._waiting[request.key]
        self._running[request.key] = request
        request.state = RequestState.RUNNING
        request.blocks = [*admission.hit.blocks, *self.pool.allocate(admission.new_blocks)]
        request.computed = len(admission.hit.blocks) * self.config.block_size
        request.progress_time = now
        if request.admitted_time is None:
            request.admitted_time = now
            request.cached = request.computed
            self.metrics.inc("prefix_cache_queries", request.num_prompt)
            self.metrics.inc("prefix_cache_hits", request.cached)
            self.metrics.inc("encoder_cache_queries", len(request.spans))
            hits = sum(
                1 for s in request.spans if s.end <= request.computed or self.encoder_cache.encoded(s.content_hash)
            )
            self.metrics.inc("encoder_cache_hits", hits)
            self.metrics.observe("request_queue_time_seconds", now - request.arrival_time, **_class(request))

    def _forward(self, chunks: Sequence[Chunk]) -> tuple[torch.Tensor, float, float]:
        """The packed forward. Gives the logits, and its seconds as predicted and as measured."""
        work = [(chunk.start, chunk.length) for chunk in chunks]
        predicted = self.step_time.predict(work) if self.step_time is not None else 0.0
        started = time.monotonic()
        logits = self.runner.forward(chunks)
        seconds = time.monotonic() - started
        if self.step_time is not None:
            self.step_time = self.step_time.observed(work, seconds)
            self.metrics.observe("step_predicted_seconds", predicted)
        self.metrics.observe("step_forward_seconds", seconds)
        return logits, predicted, seconds

    def _learn(self, plan: Plan, target: float, seconds: float, forward: float) -> None:
        """From a step with a target, before its slices: its own overhead, and how well chunks keep the target."""
        besides = seconds - forward
        self._overhead += OVERHEAD_RATE * (min(besides, OUTLIER * self._overhead or besides) - self._overhead)
        if not plan.encodes and plan.num_prefill > self._budget.least_prefill:
            self._margin.observe(seconds, target)

    def _score(self, chunks: Sequence[Chunk]) -> float:
        """Log-probabilities of the forward's prompt tokens, for those who asked; gives the seconds that it took.

        A failure is the request's alone.
        """
        started = time.monotonic()
        for chunk in chunks:
            request = chunk.request
            if not request.unscored:
                continue
            try:
                self._sequences[request.key].take_scores(self.runner.score(chunk))
            except Exception:
                logger.exception("scoring the prompt of request %s failed", request.request_id)
                self.fail(request.request_id, "scoring the prompt failed")
        return time.monotonic() - started

    def _advance(self, chunks: Sequence[Chunk], logits: torch.Tensor) -> float:
        """Moves ``computed`` on, publishes full pages, lets go of used features, and hands out the new tokens.

        Gives the seconds that scoring prompts took: few steps do, so it is no overhead of a step.
        """
        now = time.monotonic()
        for chunk in chunks:
            request, end = chunk.request, chunk.start + chunk.length
            request.computed, request.passed_over, request.progress_time = end, 0, now
            full = end // self.config.block_size
            hashes = request.block_hashes(full)
            for number in range(chunk.start // self.config.block_size, full):
                self.pool.publish(request.blocks[number], hashes[number])
            used = [span for span in request.spans if chunk.start < span.end <= end]
            self.encoder_cache.release(request.key, used)
            if request.last_token_time is None:
                self.metrics.inc("prompt_tokens", chunk.length)
        sampled = [self._sequences[chunk.request.key] for chunk in chunks if chunk.samples]
        seconds = self._score(chunks)
        for sequence, result in zip(sampled, self._sample(logits, sampled), strict=True):
            if result is None:
                self.fail(sequence.request.request_id, "sampling failed")
            elif sequence.request.key in self._sequences:
                self._take(sequence, result, now)
        return seconds

    def _sample(self, logits: torch.Tensor, sequences: Sequence[OutputSequence]) -> list[Sample | None]:
        """One batched call; if it fails, row by row, so that only the row at fault is lost (None)."""
        if not sequences:
            return []
        try:
            return list(self._choose(logits, [s.sampling for s in sequences]))
        except Exception:
            logger.exception("sampling a batch of %d failed; trying row by row", len(sequences))
        results: list[Sample | None] = []
        for row, sequence in enumerate(sequences):
            try:
                results.append(self._choose(logits[row : row + 1], [sequence.sampling])[0])
            except Exception:
                logger.exception("sampling for request %s failed", sequence.request.request_id)
                results.append(None)
        return results

    def _take(self, sequence: OutputSequence, result: Sample, now: float) -> None:
        request = sequence.request
        try:
            output = sequence.take(result)
        except Exception:
            logger.exception("detokenising for request %s failed", request.request_id)
            self.fail(request.request_id, "detokenising failed")
            return
        self.metrics.inc("generation_tokens", len(output.token_ids))
        self.metrics.inc("jump_forward_tokens", request.forced)
        if request.last_token_time is None:
            self.metrics.observe("time_to_first_token_seconds", now - request.arrival_time, **_class(request))
            for follower in sequence.followers:
                if follower.request.state is RequestState.HELD:
                    self._enqueue(follower.request)
        else:
            gap = now - request.last_token_time
            self.metrics.observe("inter_token_latency_seconds", gap, **_class(request))
            self.steps.explain_gap(gap, self.last_plan)
        request.last_token_time = now
        if output.finish_reason is not None:
            self._forget(sequence, output.finish_reason)
        sequence.deliver(output)

    # Leaving ---------------------------------------------------------------------------------------------------------

    def _enqueue(self, request: Request) -> None:
        request.state = RequestState.WAITING
        request.passed_over = 0
        self._waiting[request.key] = request

    def _end_all(self, request_id: str, reason: FinishReason, error: str | None) -> None:
        for sequence in [s for s in self._sequences.values() if s.request.request_id == request_id]:
            self._forget(sequence, reason)
            sequence.deliver(sequence.output("", (), reason=reason, error=error))

    def _forget(self, sequence: OutputSequence, reason: FinishReason) -> None:
        """Frees everything that a sequence holds."""
        request = sequence.request
        del self._sequences[request.key]
        if request.state is RequestState.RUNNING:
            del self._running[request.key]
            self._release(request)
        else:
            self._waiting.pop(request.key, None)
        request.state = RequestState.FINISHED
        request.finish_reason = reason
        self._count_requests()
        self.metrics.inc("request_finished", finished_reason=str(reason), **_class(request))
        self.metrics.observe("e2e_request_latency_seconds", time.monotonic() - request.arrival_time, **_class(request))

    def _release(self, request: Request) -> None:
        self.pool.release(request.blocks)
        request.blocks = []
        self.encoder_cache.release(request.key, [span for span in request.spans if span.end > request.computed])

    # Observing -------------------------------------------------------------------------------------------------------

    def _record(self, plan: Plan, started: float, predicted: float) -> None:
        if plan.empty:
            return
        spent = self.encoder.encodings.spent
        decodes = sum(1 for chunk in plan.chunks if chunk.request.num_output > 1 and chunk.length == 1)
        record = StepRecord(
            started,
            time.monotonic() - started,
            self.encoder.seconds,
            predicted,
            spent.predicted,
            plan.target or 0.0,
            decodes,
            plan.num_tokens - decodes,
            spent.slices,
            len(self._running),
            self.num_waiting,
            len(plan.preemptions),
        )
        self.steps.add(record)
        self._count_requests()
        self.metrics.set("kv_cache_usage_ratio", self.pool.usage)
        self.metrics.set("encoder_cache_usage_ratio", self.encoder_cache.usage)

    def _count_requests(self) -> None:
        self.metrics.set("num_requests_running", len(self._running))
        self.metrics.set("num_requests_waiting", self.num_waiting)


def _class(request: Request) -> dict[str, str]:
    return {"class": request.priority_class.name.lower()}
