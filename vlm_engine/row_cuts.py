"""Cuts inside a vision layer: attention by query rows, the MLP by groups of rows.

One layer of one SmolVLM tile takes over a hundred milliseconds on two cores: too much for somebody who reads a stream.
A row of the MLP depends on its own input alone, and a row of full attention on its own query and all keys and values,
so groups of rows can be computed one after another with control handed back in between. Results differ from the uncut
ones by what other matrix shapes round (1e-5 in float32).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from transformers import AttentionInterface
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, AttentionMaskInterface
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

NAME = "watchword_vision"


class RowCutter:
    """Says how many rows a group has, and hands control back between groups.

    Args:
        rows: of a group.
        active: whether the caller may be left now (inside a task only).
        hand_back: leaves, and returns when the next slice is due.
    """

    def __init__(self, rows: int, active: Callable[[], bool], hand_back: Callable[[], None]) -> None:
        self.rows = rows
        self._active = active
        self._hand_back = hand_back

    def by_rows(self, parts: Sequence[Callable[[], torch.Tensor]], dim: int) -> torch.Tensor:
        """Computes the parts one after another and puts them together along ``dim``."""
        done: list[torch.Tensor] = []
        for part in parts:
            if done:
                self._hand_back()
            done.append(part())
        return torch.cat(done, dim=dim)

    def cuts(self, rows: int) -> bool:
        """Whether so many rows are cut here and now."""
        return rows > self.rows and self._active()


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
    rows = query.shape[2]
    if cutter is None or not cutter.cuts(rows):
        result: tuple[torch.Tensor, None] = whole(module, query, key, value, attention_mask, **kwargs)
        return result

    def group(start: int) -> torch.Tensor:
        part = slice(start, start + cutter.rows)
        mask = attention_mask
        if mask is not None and mask.shape[-2] == rows:
            mask = mask[..., part, :]
        out: torch.Tensor = whole(module, query[:, :, part], key, value, mask, **kwargs)[0]
        return out

    starts = range(0, rows, cutter.rows)
    return cutter.by_rows([lambda start=start: group(start) for start in starts], dim=1), None  # type: ignore[misc]


def cut_rows(block: torch.nn.Module, cutter: RowCutter) -> None:
    """Lets a block's attention and ``mlp`` be computed by groups of rows."""
    for module in block.modules():
        module.row_cutter = cutter  # type: ignore[assignment]
    _cut_mlp(block, cutter)


def _cut_mlp(block: torch.nn.Module, cutter: RowCutter) -> None:
    """``mlp`` takes and gives ``[..., rows, hidden]``."""
    mlp = getattr(block, "mlp", None)
    if mlp is None:
        return
    whole = mlp.forward

    def forward(hidden: torch.Tensor) -> torch.Tensor:
        if not cutter.cuts(hidden.shape[-2]):
            result: torch.Tensor = whole(hidden)
            return result
        groups: tuple[torch.Tensor, ...] = torch.split(hidden, cutter.rows, dim=-2)
        return cutter.by_rows([lambda group=group: whole(group) for group in groups], dim=-2)  # type: ignore[misc]

    mlp.forward = forward
