"""Paged attention in Triton kernels, for CUDA: a packed batch of decodes and prefill chunks in three launches a layer.

``prepare`` cuts the step into work items on the host, where all lengths are known, and sends block tables and items to
the device in one copy from pinned memory; ``attend`` writes K and V into their pages (one launch), attends small and
large query tiles (one launch each, a kind without work is left out) and joins split contexts (one launch where there
are any). Nothing here waits for the device.

The torch backend is its judge: the tests compare the two in Triton's interpreter, ``benchmarks/gpu_check.sh`` on a GPU.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import e, log2

import torch
from torch import Tensor

from vlm_engine.attention import triton_kernels as kernels
from vlm_engine.attention.base import KVCache, Sequence, StepMetadata
from vlm_engine.attention.triton_work import WAVES, Launch, Tile, Tuning, cut, pad_head, tuning_for
from vlm_engine.errors import ConfigError

LOG2_E = log2(e)
WRITE_TOKENS, WRITE_WARPS = 8, 4
"""Tokens and warps per program of the cache write."""
JOIN_SPLITS, JOIN_WARPS = 16, 4
"""Partial results that the join takes in at once, and its warps."""
MIN_CAPABILITY = (8, 0)
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
BLOCK_SIZES = (8, 16, 32, 64, 128, 256)
MIN_HEAD_DIM, MAX_HEAD_DIM = 8, 128
MAX_GROUP = 16


@dataclass(frozen=True, slots=True)
class AttentionShape:
    """What the kernels are compiled for."""

    heads: int
    kv_heads: int
    head_dim: int
    block_size: int
    dtype: torch.dtype

    @property
    def group(self) -> int:
        """Query heads per KV head."""
        return self.heads // self.kv_heads

    def check(self) -> None:
        """Raises :class:`ConfigError` with the knob, the value and the limit for what the kernels don't cover."""
        if self.block_size not in BLOCK_SIZES:
            raise _refusal("block_size", self.block_size, ", ".join(map(str, BLOCK_SIZES)))
        if self.dtype not in DTYPES:
            raise _refusal("dtype", self.dtype, "float32, bfloat16, float16")
        if not MIN_HEAD_DIM <= self.head_dim <= MAX_HEAD_DIM or self.head_dim % 8:
            raise _refusal(
                "the model's head_dim", self.head_dim, f"multiples of 8 from {MIN_HEAD_DIM} to {MAX_HEAD_DIM}"
            )
        if self.heads % self.kv_heads or self.group > MAX_GROUP:
            ratio = f"{self.heads} query heads over {self.kv_heads} KV heads"
            raise _refusal("the model's head grouping", ratio, f"whole groups of at most {MAX_GROUP}")


@dataclass(frozen=True, slots=True)
class PreparedLaunch:
    """A :class:`vlm_engine.attention.triton_work.Launch` on the device: int32 ``[items, 8]`` and ``[joins, 4]``."""

    tile: Tile
    items: Tensor
    joins: Tensor
    num_items: int
    num_joins: int
    join_rows: int


@dataclass(frozen=True, slots=True)
class Prepared:
    """``tables``: int32, the block tables of all sequences one after another."""

    tables: Tensor
    launches: tuple[PreparedLaunch, ...]


class TritonBackend:
    """See the module's text.

    Args:
        shape: of the model's attention.
        device: a CUDA device (the CPU only in Triton's interpreter, for tests). On CUDA the kernels are compiled here,
            before any request waits for them.
        tuning: None = made for the device.

    Raises:
        ConfigError: the device or the shape isn't covered.
    """

    name = "triton"
    heads_first = False

    def __init__(self, shape: AttentionShape, device: torch.device, tuning: Tuning | None = None) -> None:
        shape.check()
        _check_device(device)
        self._shape = shape
        self._device = device
        self._head_pad = pad_head(shape.head_dim)
        self._tuning = tuning or _device_tuning(shape, device)
        rows = max(self._tuning.small.rows, self._tuning.large.rows)
        # cut() never makes more partial results than this: a range is at least half as long as it aimed at.
        most = 2 * max(1, WAVES * self._tuning.processors // shape.kv_heads) * shape.kv_heads * rows
        self._partial_out = torch.empty(most * self._head_pad, dtype=torch.float32, device=device)
        self._partial_lse = torch.empty(most, dtype=torch.float32, device=device)
        if device.type == "cuda":
            self.warm_up()

    def prepare(
        self, sequences: tuple[Sequence, ...], block_size: int, num_heads: int, kv_heads: int, device: torch.device
    ) -> Prepared:
        """See :class:`vlm_engine.attention.base.AttentionBackend`; the numbers are those of the shape."""
        asked, made_for = (block_size, num_heads, kv_heads), self._shape
        if asked != (made_for.block_size, made_for.heads, made_for.kv_heads):
            raise ValueError(f"prepared for (block_size, heads, kv_heads) {asked}, made for {made_for}")
        packed = array("i")
        starts: list[int] = []
        for sequence in sequences:
            starts.append(len(packed))
            packed.extend(sequence.blocks[: -(-sequence.context // block_size)])
        launches = cut(sequences, starts, made_for.group, kv_heads, self._tuning)
        # Items then start at a multiple of 16 bytes: a kernel is compiled anew for a pointer that doesn't.
        packed.extend([0] * (-len(packed) % 4))
        parts = [len(packed)]
        for records in (records for launch in launches for records in (launch.items, launch.joins)):
            for record in records:
                packed.extend(record)
            parts.append(sum(map(len, records)))
        tables, *views = torch.split(self._send(packed), parts)
        pairs = zip(launches, views[0::2], views[1::2], strict=True)
        return Prepared(tables, tuple(_prepared(launch, items, joins) for launch, items, joins in pairs))

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float, step: StepMetadata) -> Tensor:
        """See :class:`vlm_engine.attention.base.AttentionBackend`."""
        prepared: Prepared = step.prepared
        keys, values = step.kv.keys[layer], step.kv.values[layer]
        query, key, value = _dense_rows(query), _dense_rows(key), _dense_rows(value)
        out = torch.empty(query.shape, dtype=query.dtype, device=query.device)
        with _current(self._device):
            self._write(key, value, keys, values, step.slots)
            for launch in prepared.launches:
                self._attend(launch, query, keys, values, out, prepared.tables, scale)
                if launch.num_joins:
                    self._join(launch, out)
        return out

    def warm_up(self) -> None:
        """Compiles every kernel by running it once: a chunk and a decode whose context is split."""
        shape, size = self._shape, self._shape.block_size
        length = self._tuning.small.rows // shape.group + 1
        context = WAVES * self._tuning.min_split + self._tuning.small.keys
        chunk_pages, pages = -(-length // size), -(-context // size)
        blocks = tuple(range(chunk_pages + pages))
        kv = KVCache.allocate(1, len(blocks), size, shape.kv_heads, shape.head_dim, shape.dtype, self._device)
        sequences = (
            Sequence(0, length, length, blocks[:chunk_pages]),
            Sequence(length, 1, context, blocks[chunk_pages:]),
        )
        slots = torch.tensor([*range(length), chunk_pages * size + context - 1]).to(self._device)
        prepared = self.prepare(sequences, size, shape.heads, shape.kv_heads, self._device)
        step = StepMetadata(kv, self, sequences, slots, prepared)
        query = torch.zeros(length + 1, shape.heads, shape.head_dim, dtype=shape.dtype, device=self._device)
        new = query[:, : shape.kv_heads]
        self.attend(0, query, new, new, 1.0, step)

    def _send(self, packed: array[int]) -> Tensor:
        host = torch.frombuffer(packed, dtype=torch.int32)
        if self._device.type != "cuda":
            return host
        return host.pin_memory().to(self._device, non_blocking=True)

    def _write(self, key: Tensor, value: Tensor, keys: Tensor, values: Tensor, slots: Tensor) -> None:
        tokens = key.shape[0]
        kernels.write_kv[(-(-tokens // WRITE_TOKENS), self._shape.kv_heads)](
            key,
            value,
            keys,
            values,
            slots,
            tokens,
            key.stride(0),
            key.stride(1),
            value.stride(0),
            value.stride(1),
            KV_HEADS=self._shape.kv_heads,
            HEAD_DIM=self._shape.head_dim,
            HEAD_PAD=self._head_pad,
            TOKENS=WRITE_TOKENS,
            num_warps=WRITE_WARPS,
        )

    def _attend(
        self,
        launch: PreparedLaunch,
        query: Tensor,
        keys: Tensor,
        values: Tensor,
        out: Tensor,
        tables: Tensor,
        scale: float,
    ) -> None:
        shape, tile = self._shape, launch.tile
        kernels.attend[(launch.num_items, shape.kv_heads)](
            query,
            keys,
            values,
            out,
            tables,
            launch.items,
            self._partial_out,
            self._partial_lse,
            scale * LOG2_E,
            query.stride(0),
            query.stride(1),
            GROUP=shape.group,
            KV_HEADS=shape.kv_heads,
            HEAD_DIM=shape.head_dim,
            HEAD_PAD=self._head_pad,
            BLOCK_SIZE=shape.block_size,
            ROWS=tile.rows,
            KEYS=tile.keys,
            num_warps=tile.warps,
            num_stages=tile.stages,
        )

    def _join(self, launch: PreparedLaunch, out: Tensor) -> None:
        shape = self._shape
        kernels.join_splits[(launch.num_joins, shape.kv_heads, launch.join_rows)](
            out,
            launch.joins,
            self._partial_out,
            self._partial_lse,
            GROUP=shape.group,
            KV_HEADS=shape.kv_heads,
            HEAD_DIM=shape.head_dim,
            HEAD_PAD=self._head_pad,
            ROWS=launch.tile.rows,
            SPLITS=JOIN_SPLITS,
            num_warps=JOIN_WARPS,
        )


def _refusal(knob: str, value: object, limit: str) -> ConfigError:
    return ConfigError(f'{knob} is {value}, the triton backend takes {limit}; attention_backend "torch" takes any')


def _check_device(device: torch.device) -> None:
    if device.type == "cuda":
        if torch.cuda.get_device_capability(device) < MIN_CAPABILITY:
            capability = ".".join(map(str, torch.cuda.get_device_capability(device)))
            raise _refusal("the device's compute capability", capability, "8.0 and later")
    elif not (device.type == "cpu" and kernels.INTERPRETED):
        raise _refusal("device", device, "CUDA devices")
    if device.type == "cuda" and torch.version.cuda is None:
        raise _refusal("device", f"{device} of a torch build without CUDA", "NVIDIA devices")


def _device_tuning(shape: AttentionShape, device: torch.device) -> Tuning:
    if device.type == "cpu":
        return tuning_for((9, 0), shape.head_dim, shape.dtype.itemsize, processors=8)
    properties = torch.cuda.get_device_properties(device)
    capability = (properties.major, properties.minor)
    return tuning_for(capability, shape.head_dim, shape.dtype.itemsize, properties.multi_processor_count)


def _prepared(launch: Launch, items: Tensor, joins: Tensor) -> PreparedLaunch:
    return PreparedLaunch(launch.tile, items, joins, len(launch.items), len(launch.joins), launch.join_rows)


def _dense_rows(tensor: Tensor) -> Tensor:
    """The kernels take any stride between tokens and heads, but a head's elements side by side."""
    return tensor if tensor.stride(2) == 1 else tensor.contiguous()


@contextmanager
def _current(device: torch.device) -> Iterator[None]:
    """Triton launches on the current CUDA device, which need not be the engine's."""
    if device.type == "cuda":
        with torch.cuda.device(device):
            yield
    else:
        yield
