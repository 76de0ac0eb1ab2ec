"""Cuts inside a vision layer: attention by query rows, the MLP by groups of rows.

One layer of one SmolVLM tile takes 56 ms on two cores: too much for somebody who reads a stream. A row of the MLP
depends on its own input alone, and a row of full attention on its own query and all keys and values, so groups of rows
can be computed one after another with control handed back in between. Results differ from the uncut ones by what other
matrix shapes round (1e-5 in float32).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from transformers import AttentionInterface
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, AttentionMaskInterface
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

NAME = "watchword_vision"


@dataclass(frozen=True, slots=True)
class SliceWork:
    """What a slice computes, as far as its time depends on it.

    Attributes:
        kind: "begin" (patch embedding and the first layer up to its attention), "project" (a layer up to its
            attention), "attend" (a group of queries), "output" (the last group, the output projection and what follows
            before the MLP), "mlp" (a group of rows), "block" (a whole layer), "finish" (what comes after the last
            layer), "item" (an item in one piece).
        rows: rows of hidden states that it computes.
        pairs: (query, key) pairs that it attends.
    """

    kind: str
    rows: int
    pairs: int = 0


class RowCutter:
    """Says how many rows a group has, and hands control back between groups.

    Args:
        rows: of a group.
        active: whether the caller may be left now (inside a task only).
        hand_back: leaves, told what the next slice will be, and returns when that is due.
    """

    def __init__(self, rows: int, active: Callable[[], bool], hand_back: Callable[[SliceWork], None]) -> None:
        self.rows = rows
        self._active = active
        self._hand_back = hand_back
        self._done = 0  # rows attended since control was last handed back

    def cuts(self, rows: int) -> bool:
        """Whether a layer of so many rows is cut here and now."""
        return rows > self.rows and self._active()

    def before(self, work: SliceWork) -> None:
        """Hands back unless what was done since the last time and this fit into one group (small windows)."""
        if self._done + work.rows > self.rows:
            self._done = 0
            self._hand_back(work)
        self._done += work.rows

    def begin_layer(self, rows: int) -> None:
        """A layer of so many rows begins; its projections come before its first group."""
        self._done = rows


def register_attention() -> str:
    """Registers SDPA by groups of query rows, for modules that have a ``row_cutter``; gives its name."""
    AttentionInterface.register(NAME, _attend)
    AttentionMaskInterface.register(NAME, ALL_MASK_ATTENTION_FUNCTIONS["sdpa"])
    return NAME


def _attend(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Query ``[b, heads, rows, d]`` in, ``[b, rows, heads, d]`` out, as AttentionInterface asks."""
    whole = ALL_ATTENTION_FUNCTIONS["sdpa"]
    cutter: RowCutter | None = getattr(module, "row_cutter", None)
    layer_rows: int = getattr(module, "layer_rows", 0)
    if cutter is None or not cutter.cuts(layer_rows):
        result: tuple[torch.Tensor, None] = whole(module, query, key, value, attention_mask, **kwargs)
        return result
    batch, _, rows, _ = query.shape
    done: list[torch.Tensor] = []
    for item in range(batch):
        one = slice(item, item + 1)
        for start in range(0, rows, cutter.rows):
            part = slice(start, min(start + cutter.rows, rows))
            # A call that holds all of the layer's rows knows its last group; windows come in calls of their own.
            last = batch * rows == layer_rows and item == batch - 1 and part.stop == rows
            size = part.stop - start
            cutter.before(SliceWork("output" if last else "attend", size, size * key.shape[2]))
            mask = attention_mask if attention_mask is None or attention_mask.shape[0] == 1 else attention_mask[one]
            if mask is not None and mask.shape[-2] == rows:
                mask = mask[..., part, :]
            done.append(_attend_group(module, query[one, :, part], key[one], value[one], mask, kwargs))
    return torch.cat(done, dim=1).reshape(batch, rows, *done[0].shape[2:]), None


def _attend_group(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    kwargs: dict[str, Any],
) -> torch.Tensor:
    """One group of queries, ``[1, rows, heads, d]`` out.

    In bfloat16 on a CPU two products with a softmax between are faster than SDPA's kernel (256 queries, 1,024 keys, 12
    heads of 64 on two cores: 3.7 and 6.0 ms). Scores are rounded to bfloat16 there, as in transformers' eager attention
    in that type; float32 and other devices keep SDPA.
    """
    eager = mask is None and query.device.type == "cpu" and query.dtype is torch.bfloat16
    if not eager or query.shape[1] != key.shape[1]:
        out: torch.Tensor = ALL_ATTENTION_FUNCTIONS["sdpa"](module, query, key, value, mask, **kwargs)[0]
        return out
    scaling: float | None = kwargs.get("scaling")
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    scores = torch.baddbmm(query.new_empty(()), query[0], key[0].transpose(1, 2), beta=0.0, alpha=scale)
    return torch.matmul(scores.softmax(dim=-1), value[0]).transpose(0, 1)[None]


def cut_rows(block: torch.nn.Module, cutter: RowCutter) -> None:
    """Lets a block's attention and ``mlp`` be computed by groups of rows.

    Inside, ``row_cutter`` is known to every module, and ``layer_rows`` is how many rows the layer has at present.
    """
    inside = list(block.modules())
    for module in inside:
        module.row_cutter = cutter  # type: ignore[assignment]

    def begin(_: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        hidden = args[0] if args else kwargs["hidden_states"]
        rows = math.prod(hidden.shape[:-1])
        for module in inside:
            module.layer_rows = rows  # type: ignore[assignment]
        cutter.begin_layer(rows)

    block.register_forward_pre_hook(begin, with_kwargs=True)
    _cut_mlp(block, cutter)


def _cut_mlp(block: torch.nn.Module, cutter: RowCutter) -> None:
    """``mlp`` takes and gives ``[..., hidden]``."""
    mlp = getattr(block, "mlp", None)
    if mlp is None:
        return
    whole = mlp.forward

    def forward(hidden: torch.Tensor) -> torch.Tensor:
        flat = hidden.reshape(-1, hidden.shape[-1])
        if not cutter.cuts(len(flat)):
            result: torch.Tensor = whole(hidden)
            return result
        done: list[torch.Tensor] = []
        for group in torch.split(flat, cutter.rows):
            cutter.before(SliceWork("mlp", len(group)))
            done.append(whole(group))
        return torch.cat(done).reshape(hidden.shape)

    mlp.forward = forward
