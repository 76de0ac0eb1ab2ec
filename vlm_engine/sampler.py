"""From logits to tokens: one batched call per step, every row by its own request's parameters and random stream."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch

from vlm_engine.sampling_params import SamplingParams
from vlm_engine.structured import GrammarMatcher, allowed_tokens

LARGEST_LOGIT = 1e30
"""Finite in float32 also when divided by the least temperature."""


@dataclass(slots=True)
class SamplingState:
    """What sampling remembers of one output sequence.

    Attributes:
        rng: own stream; one number is drawn per sampled token, so batch mates and preemption change nothing.
        prompt_ids: distinct prompt tokens (repetition penalty).
        output_counts: how often each token was generated.
        end_ids: tokens masked until ``min_tokens`` are out.
        grammar: where the output stands in the grammar that it must follow; None without one.
    """

    params: SamplingParams
    rng: random.Random
    prompt_ids: frozenset[int]
    end_ids: frozenset[int]
    output_counts: Counter[int] = field(default_factory=Counter)
    grammar: GrammarMatcher | None = None

    def accept(self, token: int) -> None:
        """Counts a generated token, and moves on in the grammar."""
        self.output_counts[token] += 1
        if self.grammar is not None:
            self.grammar.accept(token)

    def forced(self) -> tuple[int, ...]:
        """Tokens that the grammar leaves no choice about here. None where log-probabilities are asked for, which such
        tokens have none of, and where the end is held back until ``min_tokens`` are out."""
        if self.grammar is None or self.params.logprobs is not None or self.below_minimum:
            return ()
        return self.grammar.forced()

    @property
    def ended(self) -> bool:
        """Whether the grammar lets nothing follow."""
        return self.grammar is not None and self.grammar.ended

    @property
    def below_minimum(self) -> bool:
        """Whether fewer than ``min_tokens`` are out."""
        return self.output_counts.total() < self.params.min_tokens

    @property
    def adjusts(self) -> bool:
        """Whether logits are changed before the choice."""
        p = self.params
        return bool(
            p.logit_bias
            or p.repetition_penalty != 1.0
            or p.presence_penalty
            or p.frequency_penalty
            or self.below_minimum
        )


@dataclass(frozen=True, slots=True)
class Sample:
    """One row's result.

    Attributes:
        logprob: of the token, when asked for.
        top: (token, log-probability) pairs, most likely first, when asked for.
        rank: of the token among all, 1 the most likely; prompts' tokens have it.
    """

    token: int
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()
    rank: int | None = None


def sample(logits: torch.Tensor, states: Sequence[SamplingState]) -> list[Sample]:
    """Chooses a token for every row.

    Args:
        logits: float ``[rows, vocabulary]``; may be changed in place.
        states: one per row.

    Returns:
        One sample per row. Log-probabilities are those of the model's own distribution, before any change.
    """
    logits = logits.float()
    wants = [i for i, s in enumerate(states) if s.params.logprobs is not None]
    logprobs = torch.log_softmax(logits[wants], dim=-1) if wants else None
    for row, state in enumerate(states):
        if state.adjusts:
            _adjust(logits[row], state)
    _constrain(logits, states)
    tokens = logits.argmax(dim=-1)
    drawn = [i for i, s in enumerate(states) if not s.params.greedy]
    if drawn:
        tokens[drawn] = _draw(logits[drawn], [states[i] for i in drawn])
    chosen = tokens.tolist()
    samples = [Sample(token) for token in chosen]
    if logprobs is not None:
        for place, row in enumerate(wants):
            samples[row] = _with_logprobs(chosen[row], logprobs[place], states[row].params.logprobs or 0)
    return samples


def score(logits: torch.Tensor, tokens: Sequence[int], count: int) -> list[Sample]:
    """What is known of tokens that were given, not chosen.

    Args:
        logits: ``[rows, vocabulary]``.
        tokens: the one that followed, for each row.
        count: alternatives to tell.

    Returns:
        One sample per row, with its rank.
    """
    logprobs = torch.log_softmax(logits.float(), dim=-1)
    given = logprobs.gather(1, torch.tensor(tokens, device=logits.device)[:, None])
    ranks = ((logprobs > given).sum(dim=-1) + 1).tolist()
    rows = zip(tokens, logprobs, ranks, strict=True)
    return [replace(_with_logprobs(token, row, count), rank=rank) for token, row, rank in rows]


def _adjust(row: torch.Tensor, state: SamplingState) -> None:
    """Penalties, bias and the mask of end tokens, in place on ``[vocabulary]``."""
    p = state.params
    if p.repetition_penalty != 1.0:
        seen = torch.tensor(sorted(state.prompt_ids | state.output_counts.keys()), device=row.device)
        values = row[seen]
        changed = torch.where(values > 0, values / p.repetition_penalty, values * p.repetition_penalty)
        # A penalty near 0 may give infinity, which no softmax bears.
        row[seen] = changed.clamp(max=LARGEST_LOGIT)
    if (p.presence_penalty or p.frequency_penalty) and state.output_counts:
        ids = torch.tensor(list(state.output_counts), device=row.device)
        counts = torch.tensor(list(state.output_counts.values()), device=row.device, dtype=row.dtype)
        row[ids] -= p.presence_penalty + p.frequency_penalty * counts
    if p.logit_bias:
        ids = torch.tensor(list(p.logit_bias), device=row.device)
        row[ids] += torch.tensor(list(p.logit_bias.values()), device=row.device, dtype=row.dtype)
    if state.below_minimum and state.end_ids and state.grammar is None:
        row[torch.tensor(sorted(state.end_ids), device=row.device)] = float("-inf")


def _constrain(logits: torch.Tensor, states: Sequence[SamplingState]) -> None:
    """Masks what the grammars of the rows that have one forbid, in place on ``[rows, vocabulary]``.

    An end that ``min_tokens`` or ``ignore_eos`` holds back stays allowed where nothing else is.
    """
    rows = [(i, s.grammar) for i, s in enumerate(states) if s.grammar is not None]
    if not rows:
        return
    allowed = allowed_tokens([grammar for _, grammar in rows], logits.shape[-1], logits.device)
    for place, (row, grammar) in enumerate(rows):
        state = states[row]
        held = grammar.end_ids if state.params.ignore_eos else frozenset()
        held = held | state.end_ids if state.below_minimum else held
        if held:
            others = allowed[place].clone()
            others[torch.tensor(sorted(held), device=logits.device)] = False
            if others.any():
                allowed[place] = others
    index = torch.tensor([row for row, _ in rows], device=logits.device)
    logits[index] = logits[index].masked_fill(~allowed, float("-inf"))


def _draw(logits: torch.Tensor, states: Sequence[SamplingState]) -> torch.Tensor:
    """Temperature, top-k, top-p, min-p (in vLLM's order), then inverse-transform sampling: int64 ``[rows]``."""
    device = logits.device
    temperatures = torch.tensor([s.params.temperature for s in states], device=device)
    ordered, ids = (logits / temperatures[:, None]).sort(dim=-1, descending=True, stable=True)
    vocabulary = logits.shape[-1]
    top_k = torch.tensor([s.params.top_k if s.params.top_k > 0 else vocabulary for s in states], device=device)
    ordered = ordered.masked_fill(torch.arange(vocabulary, device=device) >= top_k[:, None], float("-inf"))
    probs = ordered.softmax(dim=-1)
    top_p = torch.tensor([s.params.top_p for s in states], device=device)
    min_p = torch.tensor([s.params.min_p for s in states], device=device)
    before = probs.cumsum(dim=-1) - probs
    keep = (before < top_p[:, None]) & (probs >= min_p[:, None] * probs[:, :1])
    # Nothing lies before the first token, but a top_p below float32's least number is none.
    keep[:, 0] = True
    cumulative = torch.where(keep, probs, 0.0).double().cumsum(dim=-1)
    uniform = torch.tensor([s.rng.random() for s in states], dtype=torch.float64, device=device)
    place = (cumulative <= (uniform * cumulative[:, -1])[:, None]).sum(dim=-1)
    return ids.gather(1, place.clamp(max=vocabulary - 1)[:, None])[:, 0]


def _with_logprobs(token: int, row: torch.Tensor, count: int) -> Sample:
    top = row.topk(count) if count else None
    pairs = tuple(zip(top.indices.tolist(), top.values.tolist(), strict=True)) if top else ()
    return Sample(token, float(row[token]), pairs)
