"""Batches for an attention backend, and the judges: dense attention in float64, and the torch backend.

Used by the tests (through Triton's interpreter) and by ``gpu_check.py`` (on a GPU); plain Python and torch.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

import torch

from vlm_engine.attention import AttentionBackend, KVCache, Sequence, StepMetadata
from vlm_engine.attention.torch_backend import TorchBackend

TOLERANCE = {torch.float32: 2e-6, torch.float16: 1e-3, torch.bfloat16: 8e-3}
"""Largest norm of the error over the norm of the reference (a float16 has 11 bits, a bfloat16 8)."""


@dataclass(frozen=True)
class Case:
    """One packed step of one layer.

    Attributes:
        rows: (new tokens, context with them) of each sequence, in batch order.
        shared: pages that the second sequence has in common with the first (a prefix hit).
    """

    name: str
    heads: int
    kv_heads: int
    head_dim: int
    block_size: int
    dtype: torch.dtype
    rows: tuple[tuple[int, int], ...]
    shared: int = 0
    seed: int = 0

    @property
    def tokens(self) -> int:
        """New tokens of the step."""
        return sum(length for length, _ in self.rows)


@dataclass(frozen=True)
class Batch:
    """A case's tensors. Pages hold NaN wherever no token lies; ``kv`` has one layer, and each run works on a copy."""

    sequences: tuple[Sequence, ...]
    slots: torch.Tensor
    kv: KVCache
    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    scale: float

    def run(self, backend: AttentionBackend, fill: float | None = None) -> tuple[torch.Tensor, KVCache]:
        """The output, and the pages afterwards. ``fill``: replaces the NaNs first, for a backend that reads them."""
        keys, values = self.kv.keys[0].clone(), self.kv.values[0].clone()
        if fill is not None:
            keys.nan_to_num_(fill), values.nan_to_num_(fill)
        kv = replace(self.kv, keys=(keys,), values=(values,))
        heads, kv_heads, device = self.query.shape[1], self.key.shape[1], self.query.device
        prepared = backend.prepare(self.sequences, kv.block_size, heads, kv_heads, device)
        step = StepMetadata(kv, backend, self.sequences, self.slots, prepared)
        return backend.attend(0, self.query, self.key, self.value, self.scale, step), kv


def build(case: Case, device: torch.device) -> Batch:
    """Random tensors in random pages; query, key and value with the strides that transformers' layers give them."""
    rng = random.Random(case.seed)
    generator = torch.Generator().manual_seed(case.seed)
    size = case.block_size
    counts = [-(-context // size) + 1 for _, context in case.rows]  # One page reserved for later, as the engine does.
    pages = list(range(sum(counts) + 2))
    rng.shuffle(pages)
    sequences: list[Sequence] = []
    start = 0
    for (length, context), count in zip(case.rows, counts, strict=True):
        blocks = [pages.pop() for _ in range(count)]
        if len(sequences) == 1 and case.shared:
            blocks[: case.shared] = sequences[0].blocks[: case.shared]
        sequences.append(Sequence(start, length, context, tuple(blocks)))
        start += length
    shape = (sum(counts) + 2, size, case.kv_heads, case.head_dim)
    keys, values = (torch.full(shape, float("nan"), dtype=case.dtype) for _ in range(2))
    for sequence in sequences:
        old = _slots(sequence, size)[: sequence.context - sequence.length]
        for pages_of in (keys, values):
            pages_of.flatten(0, 1)[old] = _random((len(old), case.kv_heads, case.head_dim), case, generator)
    slots = torch.cat([_slots(s, size)[s.context - s.length :] for s in sequences])
    query, key, value = (
        _random((heads, case.tokens, case.head_dim), case, generator).to(device).transpose(0, 1)
        for heads in (case.heads, case.kv_heads, case.kv_heads)
    )
    kv = KVCache((keys.to(device),), (values.to(device),), size)
    value = value.contiguous()
    return Batch(tuple(sequences), slots.to(device), kv, query, key, value, 1.3 * case.head_dim**-0.5)


def dense(batch: Batch) -> torch.Tensor:
    """Float64 ``[tokens, heads, head_dim]``: softmax(q k scale) v over each sequence's gathered context, no tricks."""
    size = batch.kv.block_size
    keys, values = (pages[0].flatten(0, 1).double() for pages in (batch.kv.keys, batch.kv.values))
    keys, values = keys.clone(), values.clone()
    keys[batch.slots], values[batch.slots] = batch.key.double(), batch.value.double()
    out = torch.empty(batch.query.shape, dtype=torch.float64, device=batch.query.device)
    group = batch.query.shape[1] // batch.key.shape[1]
    for s in batch.sequences:
        at = _slots(s, size).to(keys.device)
        k, v = (t[at].repeat_interleave(group, dim=1) for t in (keys, values))
        q = batch.query[s.start : s.start + s.length].double()
        scores = torch.einsum("qhd,khd->hqk", q, k) * batch.scale
        hidden = torch.ones(s.length, s.context, dtype=torch.bool, device=q.device).triu(s.context - s.length + 1)
        out[s.start : s.start + s.length] = torch.einsum(
            "hqk,khd->qhd", scores.masked_fill(hidden, float("-inf")).softmax(-1), v
        )
    return out


def error(got: torch.Tensor, expected: torch.Tensor) -> float:
    """Norm of the difference over the norm of what was expected; NaN where any element is."""
    return float((got.double() - expected.double()).norm() / expected.double().norm())


def check(case: Case, backend: AttentionBackend, device: torch.device) -> float:
    """Runs a case and gives its error.

    Raises:
        AssertionError: the output is further from either judge than the dtype allows, or the pages aren't what they
            were with exactly the new K and V in their slots.
    """
    batch = build(case, device)
    out, kv = batch.run(backend)
    limit = TOLERANCE[case.dtype]
    found = error(out, dense(batch))
    if not found <= limit:
        raise AssertionError(f"{case.name}: {found:.2e} from dense float64 attention, allowed is {limit:.0e}")
    judged = error(out, batch.run(TorchBackend(case.dtype), fill=0.0)[0])
    if not judged <= 2 * limit:
        raise AssertionError(f"{case.name}: {judged:.2e} from the torch backend, allowed is {2 * limit:.0e}")
    for name, got, before, new in (
        ("K", kv.keys[0], batch.kv.keys[0], batch.key),
        ("V", kv.values[0], batch.kv.values[0], batch.value),
    ):
        expected = before.clone()
        expected.flatten(0, 1)[batch.slots] = new
        if not torch.equal(got.nan_to_num(7.0), expected.nan_to_num(7.0)):
            raise AssertionError(f"{case.name}: the {name} pages are not what they should be")
    return found


def _slots(sequence: Sequence, block_size: int) -> torch.Tensor:
    index = torch.arange(sequence.context)
    return torch.tensor(sequence.blocks)[index // block_size] * block_size + index % block_size


def _random(shape: tuple[int, ...], case: Case, generator: torch.Generator) -> torch.Tensor:
    return torch.randn(shape, generator=generator).to(case.dtype)
