"""Paged attention in plain torch: any device, and the judge of every other backend.

The pages that a step needs are gathered in one ``index_select`` a layer for K and one for V. Decodes are batched by
context length in buckets with at most a quarter of padding, or a few hundred tokens of it (padding all to the longest
would make a step of lengths 6000 and 7 x 200 ten times slower); a prefill chunk is a bucket of its own. The GQA group
is folded into the query length, so that K and V are never repeated.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass

import torch
from torch.nn.functional import scaled_dot_product_attention

from vlm_engine.attention.base import Sequence, StepMetadata

PADDING = 1.25
SPARE_TOKENS = 512
"""Tokens of padding that cost no more than another bucket's call (on two cores 0.075 us a token, 40 us a call)."""


@dataclass(frozen=True, slots=True)
class Bucket:
    """Sequences attended in one call.

    Attributes:
        rows: int64 ``[b * q]`` rows of the packed batch, None when they are the ``q`` rows from ``first`` on.
        first: first row of the packed batch.
        size, length, context: b sequences of q new tokens over up to c context tokens.
        offset: where its ``b * c`` gathered slots begin.
        mask: bool ``[b, 1, 1 or g * q, c]``, True = attend; None = everything.
    """

    rows: torch.Tensor | None
    first: int
    size: int
    length: int
    context: int
    offset: int
    mask: torch.Tensor | None


@dataclass(frozen=True, slots=True)
class Prepared:
    """``gather``: int64 slots of all buckets' contexts, one after another."""

    gather: torch.Tensor
    buckets: tuple[Bucket, ...]


class TorchBackend:
    """See the module's text.

    Args:
        padding: longest context of a bucket over its shortest; 1.0 attends each length on its own.
    """

    name = "torch"

    def __init__(self, padding: float = PADDING) -> None:
        self._padding = padding

    def prepare(
        self, sequences: tuple[Sequence, ...], block_size: int, num_heads: int, kv_heads: int, device: torch.device
    ) -> Prepared:
        """Buckets, gather indices and masks of a step; ``num_heads / kv_heads`` query heads share a KV head."""
        group = num_heads // kv_heads
        buckets: list[Bucket] = []
        slots: list[torch.Tensor] = []
        offset = 0
        for members in _bucketed([s for s in sequences if s.length == 1], self._padding):
            context = members[0].context
            padded = torch.zeros(len(members), context, dtype=torch.long)
            for row, sequence in enumerate(members):
                own = _context_slots(sequence, block_size)
                padded[row, : sequence.context] = own
                # Masked, but still multiplied by zero: padding must be numbers, so it repeats what the sequence wrote.
                padded[row, sequence.context :] = own[-1]
            lengths = torch.tensor([s.context for s in members])
            ragged = members[-1].context < context
            mask = (torch.arange(context) < lengths[:, None])[:, None, None, :].to(device) if ragged else None
            rows = torch.tensor([s.start for s in members]).to(device)
            buckets.append(Bucket(rows, members[0].start, len(members), 1, context, offset, mask))
            slots.append(padded.flatten())
            offset += padded.numel()
        for sequence in sequences:
            if sequence.length > 1:
                mask = _causal(sequence, group).to(device)
                buckets.append(Bucket(None, sequence.start, 1, sequence.length, sequence.context, offset, mask))
                slots.append(_context_slots(sequence, block_size))
                offset += sequence.context
        return Prepared(torch.cat(slots).to(device), tuple(buckets))

    def attend(
        self,
        layer: int,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        scale: float,
        step: StepMetadata,
    ) -> torch.Tensor:
        """See :class:`vlm_engine.attention.base.AttentionBackend`."""
        prepared: Prepared = step.prepared
        keys, values = step.kv.keys[layer].flatten(0, 1), step.kv.values[layer].flatten(0, 1)
        keys.index_copy_(0, step.slots, key)
        values.index_copy_(0, step.slots, value)
        context_k = keys.index_select(0, prepared.gather)
        context_v = values.index_select(0, prepared.gather)
        out = torch.empty_like(query)
        for bucket in prepared.buckets:
            _attend_bucket(bucket, query, context_k, context_v, scale, out)
        return out


def _attend_bucket(
    bucket: Bucket, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, scale: float, out: torch.Tensor
) -> None:
    heads, head_dim = query.shape[1:]
    kv_heads = keys.shape[1]
    group, size, length = heads // kv_heads, bucket.size, bucket.length
    part = slice(bucket.offset, bucket.offset + size * bucket.context)
    k = keys[part].view(size, bucket.context, kv_heads, head_dim).transpose(1, 2)
    v = values[part].view(size, bucket.context, kv_heads, head_dim).transpose(1, 2)
    own = slice(bucket.first, bucket.first + length)
    q = query[own] if bucket.rows is None else query.index_select(0, bucket.rows)
    q = q.view(size, length, kv_heads, group, head_dim).permute(0, 2, 3, 1, 4).reshape(size, kv_heads, -1, head_dim)
    result = scaled_dot_product_attention(q, k, v, attn_mask=bucket.mask, scale=scale)
    result = result.view(size, kv_heads, group, length, head_dim).permute(0, 3, 1, 2, 4)
    result = result.reshape(size * length, heads, head_dim)
    if bucket.rows is None:
        out[own] = result
    else:
        out.index_copy_(0, bucket.rows, result)


def _bucketed(decodes: Seq[Sequence], padding: float) -> list[list[Sequence]]:
    """Groups by context length, longest first: no member is padded by more than this factor, unless all the padding of
    a bucket together is cheaper than another call."""
    buckets: list[list[Sequence]] = []
    spare = 0
    for sequence in sorted(decodes, key=lambda s: -s.context):
        longest = buckets[-1][0].context if buckets else 0
        added = longest - sequence.context
        if buckets and (longest <= sequence.context * padding or (padding > 1.0 and added <= spare)):
            buckets[-1].append(sequence)
            spare -= added
        else:
            buckets.append([sequence])
            spare = SPARE_TOKENS
    return buckets


def _context_slots(sequence: Sequence, block_size: int) -> torch.Tensor:
    """int64 ``[context]``: the slots of a sequence's tokens in order."""
    blocks = torch.tensor(sequence.blocks, dtype=torch.long)
    slots = blocks[:, None] * block_size + torch.arange(block_size)
    return slots.flatten()[: sequence.context]


def _causal(sequence: Sequence, group: int) -> torch.Tensor:
    """bool ``[1, 1, group * length, context]``: each new token sees the prefix, itself, and what lies between."""
    prefix = sequence.context - sequence.length
    mask = torch.ones(sequence.length, sequence.context, dtype=torch.bool).tril(prefix)
    return mask.repeat(group, 1)[None, None]
