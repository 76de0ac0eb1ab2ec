"""A request (one output sequence) and its own book-keeping: computed tokens chase total tokens."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

from vlm_engine.outputs import FinishReason
from vlm_engine.prompt import PriorityClass

if TYPE_CHECKING:
    from vlm_engine.prompt import PreparedPrompt
    from vlm_engine.sampling_params import SamplingParams


class RequestState(Enum):
    """HELD (waits for its sibling's prompt) -> WAITING -> RUNNING (-> WAITING by preemption) -> FINISHED."""

    HELD = "held"
    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


@dataclass(frozen=True, slots=True)
class ImageSpan:
    """Where a picture's features go, in plain numbers: all that the scheduler and the block hashes need of it.

    Attributes:
        content_hash: identity of the features.
        first: index of the first token that takes a feature row; tokens before it never wait for this picture.
        end: one past the last such token.
        num_bytes: size of the features in the encoder cache.
        indices: of every token that takes a feature row, ascending; empty when they follow each other from ``first``.
    """

    content_hash: bytes
    first: int
    end: int
    num_bytes: int
    indices: tuple[int, ...] = ()

    def token_of_row(self, row: int) -> int:
        """Index of the token that takes this feature row."""
        return self.indices[row] if self.indices else self.first + row


@dataclass(slots=True, eq=False)
class Request:
    """One output sequence.

    Attributes:
        key: unique in the engine (``request_id`` and index).
        token_ids: prompt and output so far.
        num_prompt: how many of them are the prompt.
        arrival: admission order among equals; kept over preemption.
        salt: part of every block hash; requests with different salts never share pages.
        max_total: total tokens after which the request ends with ``length``.
        computed: tokens whose K and V are in the pages.
        forced: of the last tokens, how many nobody sampled: a grammar left no choice after the one before them.
        scored: of the prompt's tokens, how many (from the second on) have their log-probabilities.
        blocks: the block table.
        passed_over: steps in which it could have worked but got nothing; the scheduler's ageing.
        spans: its pictures, ascending.
    """

    key: str
    request_id: str
    index: int
    token_ids: list[int]
    num_prompt: int
    params: SamplingParams
    priority_class: PriorityClass
    arrival: int
    max_total: int
    block_size: int
    priority: int = 0
    salt: bytes = b""
    prompt: PreparedPrompt | None = None
    spans: tuple[ImageSpan, ...] = ()
    state: RequestState = RequestState.WAITING
    computed: int = 0
    forced: int = 0
    scored: int = 0
    cached: int = 0
    blocks: list[int] = field(default_factory=list)
    passed_over: int = 0
    finish_reason: FinishReason | None = None
    arrival_time: float = 0.0
    admitted_time: float | None = None
    last_token_time: float | None = None
    progress_time: float = 0.0
    num_preemptions: int = 0
    _hashes: list[bytes] = field(default_factory=list)

    @property
    def total(self) -> int:
        """Tokens known so far, prompt and output."""
        return len(self.token_ids)

    @property
    def remaining(self) -> int:
        """Tokens still to be computed before the next one can be sampled."""
        return len(self.token_ids) - self.computed

    @property
    def num_output(self) -> int:
        """Output tokens so far."""
        return len(self.token_ids) - self.num_prompt

    @property
    def decoding(self) -> bool:
        """Whether its next step is the newest token of its own output, or tokens that a grammar forced upon that (and
        not a prefill or a recompute)."""
        return self.num_output > 0 and 1 <= self.remaining <= 1 + self.forced

    @property
    def rank(self) -> tuple[int, int, int]:
        """Sorts the most deserving first: class, then priority (lower first, as in vLLM), then age."""
        return (self.priority_class, self.priority, self.arrival)

    @property
    def unscored(self) -> int:
        """Prompt tokens whose log-probabilities are asked for and not known yet."""
        return self.num_prompt - 1 - self.scored if self.params.prompt_logprobs is not None else 0

    def blocks_for(self, tokens: int) -> int:
        """Pages that hold so many tokens."""
        return -(-tokens // self.block_size)

    def block_hashes(self, num_blocks: int) -> Sequence[bytes]:
        """Chained SHA-256 of the first ``num_blocks`` full blocks: parent, tokens, pictures with their offsets, salt.

        Hashes are kept; only blocks not yet hashed cost work. Tokens of a full block never change.
        """
        while len(self._hashes) < num_blocks:
            self._hashes.append(self._hash_block(len(self._hashes)))
        return self._hashes[:num_blocks]

    def _hash_block(self, number: int) -> bytes:
        start, end = number * self.block_size, (number + 1) * self.block_size
        parent = self._hashes[number - 1] if number else b"root" + self.salt
        digest = hashlib.sha256(struct.pack("<I", len(parent)) + parent)
        digest.update(struct.pack(f"<{self.block_size}q", *self.token_ids[start:end]))
        for span in self.spans:
            if span.first < end and start < span.end:
                digest.update(span.content_hash + struct.pack("<q", span.first - start))
        return digest.digest()
