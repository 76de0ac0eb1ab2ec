"""The scheduler: ``plan(state, budget)`` decides what one step computes. Pure: it reads, it changes nothing; no torch.

A request is computed tokens chasing total tokens. Prefill, chunked prefill, decode, prefix hits and recompute after a
preemption are all "how many new tokens this step". The passes, in order:

1. every running decode that this step does not preempt gets one token; what a grammar has forced beyond that
   (jump-forward) shares the step's time with prefills of its class, before them;
2. waiting requests are admitted, with pages for all their tokens and encoder room for all their pictures reserved, as
   long as the step has something for them: a person's prompt does not wait until a camera's prefill is through;
3. class by class, prefills share what is left of the step's bound, by age, in quanta, round-robin, and then the class's
   pictures whose tokens come next are encoded, so that a lower class gets the time that no higher one can use.

Explicit passes as in Sarathi-Serve (arXiv 2403.02310); the computed-tokens abstraction is vLLM V1's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from vlm_engine.prompt import PriorityClass
from vlm_engine.request import ImageSpan, Request
from vlm_engine.step_time import StepTimeModel

SCORED_TOKENS = 64
"""Most tokens in a step that decodes of a prompt whose log-probabilities are asked for: each costs a row of logits."""
AGEING_STEPS = 64
"""After so many steps without work a background request counts as interactive: neither class starves."""


@dataclass(frozen=True, slots=True)
class Budget:
    """What one step may do.

    Attributes:
        tokens: most new tokens, decodes included (``max_num_batched_tokens``).
        seqs: most running requests (``max_num_seqs``).
        quantum: prefill tokens per turn of the round-robin.
        long_prefill: most prefill tokens of one request in a step; 0 = no such bound.
        encoder_seconds_alone: how long a step encodes while nobody waits for a token; short, because somebody may come.
        target_seconds: how long a step that decodes may take (``target_itl_ms``); None = only tokens count.
        target_auto: the target is twice what the step's decodes take by themselves.
        background_factor: by how much the target grows while only background requests decode: nobody reads them.
        step_time: predicts how long a step's forward takes; needed for a target.
        overhead_seconds: what a step takes besides forward and slices (planning, sampling, handing out).
        margin: a step's predicted time times this keeps the target (:class:`vlm_engine.step_time.Margin`).
        least_prefill: prefill tokens that a step gets even when its time is spent, so that prefill always advances.
    """

    tokens: int
    seqs: int
    quantum: int = 256
    long_prefill: int = 0
    encoder_seconds_alone: float = 0.25
    target_seconds: float | None = None
    target_auto: bool = False
    background_factor: float = 2.0
    step_time: StepTimeModel | None = None
    overhead_seconds: float = 0.0
    margin: float = 1.0
    least_prefill: int = 4


@dataclass(frozen=True, slots=True)
class PrefixHit:
    """What the prefix cache has of a waiting request: its pages, and how many of them are free now."""

    blocks: tuple[int, ...] = ()
    free: int = 0


@dataclass(frozen=True, slots=True)
class SchedulerState:
    """What the plan depends on. Functions only read.

    Attributes:
        running, waiting: the requests; any order.
        free_blocks: pages that can be handed out.
        releasable: pages that preempting a request would free.
        prefix_hit: what the prefix cache has of a request.
        encoded: whether all of a picture's features are there.
        rows_ready: how many of a picture's feature rows are there, from the first on.
        encoder_free: bytes of the encoder cache not held by running requests.
        encoder_need: bytes that a request's pictures would add to what is held, given the tokens already computed.
        encoder_seconds: predicted seconds until a request's picture is encoded (0 = not known yet).
        slice_seconds: what a slice takes; prefills leave room for one where pictures wait.
    """

    running: Sequence[Request]
    waiting: Sequence[Request]
    block_size: int
    free_blocks: int
    releasable: Callable[[Request], int]
    prefix_hit: Callable[[Request], PrefixHit]
    encoded: Callable[[bytes], bool]
    rows_ready: Callable[[bytes], int]
    encoder_free: int
    encoder_need: Callable[[Request, int], int]
    encoder_seconds: Callable[[Request, int], float]
    slice_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Chunk:
    """``length`` new tokens of a request from index ``start``; ``samples`` when they are the last ones it has."""

    request: Request
    start: int
    length: int
    samples: bool


@dataclass(frozen=True, slots=True)
class Admission:
    """A waiting request starts: with these cached pages and so many fresh ones."""

    request: Request
    hit: PrefixHit
    new_blocks: int


@dataclass(frozen=True, slots=True)
class Encode:
    """A picture of a request that is to be encoded; pictures of one ``group`` (class) may be encoded together."""

    request: Request
    image: int
    group: int


@dataclass(frozen=True, slots=True)
class Plan:
    """One step.

    Attributes:
        chunks: new tokens.
        encodes: pictures in the order of their turn; as many slices as fit are run, and one in any case.
        encoder_seconds: what the pictures may take, by prediction.
        target: how long the step may take; None = no bound of time. A device whose time is measured while the step
            runs gives pictures what is left of it.
        growth: decodes that need a fresh page, or several for tokens that a grammar forced.
        passed_over: requests that gain age.
    """

    chunks: tuple[Chunk, ...] = ()
    encodes: tuple[Encode, ...] = ()
    encoder_seconds: float = 0.0
    target: float | None = None
    admissions: tuple[Admission, ...] = ()
    preemptions: tuple[Request, ...] = ()
    growth: tuple[Request, ...] = ()
    passed_over: tuple[Request, ...] = ()

    @property
    def num_tokens(self) -> int:
        """New tokens in this step."""
        return sum(chunk.length for chunk in self.chunks)

    @property
    def num_prefill(self) -> int:
        """Those of them in chunks of more than one."""
        return sum(chunk.length for chunk in self.chunks if chunk.length > 1)

    @property
    def empty(self) -> bool:
        """Whether the step would do nothing."""
        return not (self.chunks or self.encodes or self.admissions or self.preemptions)


@dataclass(slots=True)
class _Draft:
    """The plan while it is being made, with what is left of the bounds."""

    tokens: int
    free_blocks: int
    encoder_free: int
    running: list[Request]
    used_tokens: int = 0
    used_seconds: float = 0.0
    decode_seconds: float = 0.0
    target: float | None = None
    encoder_seconds: float = 0.0
    reserved: float = 0.0
    granted: dict[str, int] = field(default_factory=dict)
    encodes: list[Encode] = field(default_factory=list)
    admissions: list[Admission] = field(default_factory=list)
    preemptions: list[Request] = field(default_factory=list)
    growth: list[Request] = field(default_factory=list)
    decodes: list[Request] = field(default_factory=list)
    prefills: list[Request] = field(default_factory=list)


def plan(state: SchedulerState, budget: Budget) -> Plan:
    """Decides one step.

    Args:
        state: what is running and waiting, and what is free.
        budget: what the step may do.

    Returns:
        A plan that keeps the budget, gives every decode it does not preempt its token, and is empty only when no
        request can do anything.
    """
    draft = _Draft(budget.tokens, state.free_blocks, state.encoder_free, sorted(state.running, key=_turn))
    _serve_decodes(state, draft)
    draft.used_tokens = len(draft.decodes)
    if budget.step_time is not None:
        forward = budget.step_time.predict([(r.computed, 1) for r in draft.decodes])
        draft.decode_seconds = draft.used_seconds = forward + budget.overhead_seconds
        draft.target = _target(budget, draft)
    jumps = [r for r in draft.decodes if r.remaining > 1]
    starts = {r.key: r.computed for r in (*draft.prefills, *jumps)}
    if not draft.preemptions:
        _admit(state, budget, draft, starts)
    if any(_next_unready(state, r.spans, starts[r.key]) for r in draft.prefills):
        draft.reserved = state.slice_seconds
    for group in _by_class([*jumps, *draft.prefills]):
        _share_prefill(state, budget, draft, starts, group)
        _choose_encodes(state, budget, draft, starts, group)
    return _finish(state, budget, draft, starts)


def _target(budget: Budget, draft: _Draft) -> float | None:
    """Seconds for a step with these decodes; None without decodes or without a target."""
    target = 2.0 * draft.decode_seconds if budget.target_auto else budget.target_seconds
    if target is None or not draft.decodes:
        return None
    read = any(r.priority_class is PriorityClass.INTERACTIVE for r in draft.decodes)
    return target if read else target * budget.background_factor


def effective_class(request: Request) -> int:
    """The request's class, raised to interactive once it was passed over for long."""
    return 0 if request.passed_over >= AGEING_STEPS else int(request.priority_class)


def _turn(request: Request) -> tuple[int, int, int]:
    return (effective_class(request), request.priority, request.arrival)


def _serve_decodes(state: SchedulerState, draft: _Draft) -> None:
    """Pass 1. Served by rank, so that whoever is preempted for a page (lowest class, newest) has no token yet."""
    by_rank = sorted(draft.running, key=lambda r: r.rank)
    gone: set[str] = set()
    for request in by_rank:
        if not request.decoding or request.key in gone:
            continue
        needed = request.blocks_for(request.total) - len(request.blocks)
        if needed > 0:
            while draft.free_blocks < needed:
                victim = next(r for r in reversed(by_rank) if r.key not in gone)
                gone.add(victim.key)
                draft.preemptions.append(victim)
                draft.free_blocks += state.releasable(victim)
                if victim is request:
                    break
            if request.key in gone:
                continue
            draft.free_blocks -= needed
            draft.growth.append(request)
        draft.granted[request.key] = 1
        draft.decodes.append(request)
        draft.tokens -= 1
    draft.running = [r for r in draft.running if r.key not in gone]
    draft.prefills = [r for r in draft.running if not r.decoding]


def _share_prefill(
    state: SchedulerState, budget: Budget, draft: _Draft, starts: dict[str, int], group: Sequence[Request]
) -> None:
    """Pass 3. Within a class, quanta go round until the bound is used or all have what they can use."""
    quantum = _quantum(budget)
    want = {r.key: _usable(state, budget, r, starts[r.key]) - draft.granted.get(r.key, 0) for r in group}
    if draft.decodes:
        want |= {r.key: min(want[r.key], SCORED_TOKENS) for r in group if r.unscored}
    while draft.tokens > 0 and any(want[r.key] > 0 for r in group):
        for request in group:
            share = min(want[request.key], quantum, draft.tokens)
            granted = draft.granted.get(request.key, 0)
            share = _within_time(budget, draft, starts[request.key] + granted, share)
            if share > 0:
                draft.granted[request.key] = granted + share
                want[request.key] -= share
                draft.tokens -= share


def _within_time(budget: Budget, draft: _Draft, prefix: int, share: int) -> int:
    """Cuts a share to what the step's time still allows while somebody decodes; accounts for what is granted."""
    model, target = budget.step_time, draft.target
    if model is None or target is None or share < 1:
        return share
    floor = min(share, budget.least_prefill) if draft.used_tokens == len(draft.decodes) else 0
    left = target / budget.margin - draft.used_seconds - max(draft.encoder_seconds, draft.reserved)
    allowed = max(floor, model.tokens_within(left, draft.used_tokens, prefix, share))
    before = model.base(draft.used_tokens)
    draft.used_tokens += allowed
    cost = model.base(draft.used_tokens) - before + model.looking_back(prefix, allowed)
    draft.used_seconds += model.chunk_correction * cost
    if allowed < share:
        draft.tokens = allowed  # The time is spent: nothing remains for those who come after.
    return allowed


def _choose_encodes(
    state: SchedulerState, budget: Budget, draft: _Draft, starts: dict[str, int], group: Sequence[Request]
) -> None:
    """Pass 3. The class's next pictures, by turn, while the step has time; one in any case, so that they advance."""
    chosen = {encode.request.spans[encode.image].content_hash for encode in draft.encodes}
    for request in group:
        for index, span in enumerate(request.spans):
            if span.end <= starts[request.key] or span.content_hash in chosen or state.encoded(span.content_hash):
                continue
            left = _encoder_left(budget, draft)
            if draft.encodes and left <= 0:
                return
            chosen.add(span.content_hash)
            draft.encodes.append(Encode(request, index, effective_class(request)))
            # What a picture's time isn't known of takes all there is.
            draft.encoder_seconds += min(state.encoder_seconds(request, index) or left, max(left, 0.0))


def _encoder_left(budget: Budget, draft: _Draft) -> float:
    """What a step may still spend on pictures: beside decodes the rest of the target, or without a target as much as
    they take themselves."""
    if not draft.decodes:
        return budget.encoder_seconds_alone - draft.encoder_seconds
    if draft.target is None:
        return draft.decode_seconds - draft.encoder_seconds
    return draft.target - draft.used_seconds - draft.encoder_seconds


def _admit(state: SchedulerState, budget: Budget, draft: _Draft, starts: dict[str, int]) -> None:
    """Pass 2. In turn, and nobody overtakes a request that doesn't fit yet: small ones must not starve a large one.

    A request is admitted only when the prefills before it leave a part of the step's bound: its pages would lie idle.
    """
    for request in sorted(state.waiting, key=_turn):
        turn = effective_class(request)
        before = [r for r in draft.prefills if effective_class(r) <= turn and _usable(state, budget, r, starts[r.key])]
        if len(draft.running) >= budget.seqs or len(before) * _quantum(budget) >= draft.tokens:
            return
        hit = state.prefix_hit(request)
        start = len(hit.blocks) * state.block_size
        new_blocks = request.blocks_for(request.total) - len(hit.blocks)
        encoder_need = state.encoder_need(request, start)
        # One spare page for every running request, so that an admission does not force a preemption in the next step.
        spare = len(draft.running)
        if new_blocks + hit.free + spare > draft.free_blocks or encoder_need > draft.encoder_free:
            return
        draft.free_blocks -= new_blocks + hit.free
        draft.encoder_free -= encoder_need
        draft.admissions.append(Admission(request, hit, new_blocks))
        draft.running.append(request)
        draft.prefills.append(request)
        starts[request.key] = start


def _quantum(budget: Budget) -> int:
    """At least four prompts can share a step, however small its bound."""
    return min(budget.quantum, max(1, budget.tokens // 4))


def _usable(state: SchedulerState, budget: Budget, request: Request, start: int) -> int:
    """New tokens that a prefill can compute now: up to the first whose picture's features aren't there yet."""
    tokens = request.total - start
    waits_for = _next_unready(state, request.spans, start)
    if waits_for is not None:
        ready = waits_for.token_of_row(state.rows_ready(waits_for.content_hash))
        tokens = min(tokens, max(0, ready - start))
    return min(tokens, budget.long_prefill) if budget.long_prefill else tokens


def _next_unready(state: SchedulerState, spans: Iterable[ImageSpan], start: int) -> ImageSpan | None:
    return next((span for span in spans if span.end > start and not state.encoded(span.content_hash)), None)


def _by_class(requests: Iterable[Request]) -> list[list[Request]]:
    groups: dict[int, list[Request]] = {}
    for request in requests:
        groups.setdefault(effective_class(request), []).append(request)
    return [groups[key] for key in sorted(groups)]


def _finish(state: SchedulerState, budget: Budget, draft: _Draft, starts: dict[str, int]) -> Plan:
    chunks = []
    for request in (*draft.decodes, *draft.prefills):
        length = draft.granted.get(request.key, 0)
        if length:
            start = starts.get(request.key, request.computed)
            chunks.append(Chunk(request, start, length, start + length == request.total))
    encoding = {e.request.key for e in draft.encodes}
    admitted = {a.request.key for a in draft.admissions}
    idle = [r for r in draft.prefills if r.key not in draft.granted and r.key not in encoding]
    passed = idle + [r for r in state.waiting if r.key not in admitted]
    return Plan(
        chunks=tuple(chunks),
        encodes=tuple(draft.encodes),
        encoder_seconds=draft.encoder_seconds + max(0.0, _encoder_left(budget, draft)),
        target=draft.target,
        admissions=tuple(draft.admissions),
        preemptions=tuple(draft.preemptions),
        growth=tuple(draft.growth),
        passed_over=tuple(passed),
    )
