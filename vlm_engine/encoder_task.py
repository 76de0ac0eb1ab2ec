"""Encoding a picture as a task that the scheduler advances by slices: by items (tiles), layers, and rows in a layer.

No vision tower is rewritten for that. A task runs the family's ``encode`` in a greenlet; forward hooks on the tower's
blocks switch back to the engine after each block, hidden states stay on the task's stack, and the next slice goes on
from there.

Rules (each broken once, somewhere): the engine thread enters ``inference_mode`` outermost and tasks neither enter nor
leave it; tasks are made, resumed and ended in that thread only; hooks act only inside a task; nothing switches inside
a compiled or captured region. Without the ``greenlet`` package a picture's items are the only cuts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import torch

from vlm_engine.encoder_cache import ImageFeatures
from vlm_engine.row_cuts import RowCutter, cut_rows

if TYPE_CHECKING:
    from vlm_engine.families import Family

Inputs = Mapping[str, torch.Tensor]


class EncoderTask(Protocol):
    """A picture's encoding, some slices done.

    Attributes:
        slices: how many slices there are in all.
        done: how many are done.
    """

    slices: int
    done: int

    def advance(self) -> ImageFeatures | None:
        """Runs one slice; gives the features with the last one."""
        ...

    def abort(self) -> None:
        """Ends the task and frees what it holds."""
        ...


class SlicedEncoder:
    """Makes tasks for one family's vision tower.

    Args:
        family: whose ``encode`` runs.
        model: the module that holds tower and decoder.
        patch_size: side of a patch in pixels.
        rows: rows of a group inside a layer.
    """

    def __init__(self, family: Family, model: torch.nn.Module, patch_size: int, rows: int) -> None:
        self._family = family
        self._patch_size = patch_size
        self._rows = rows
        self.blocks = vision_blocks(model, family.decoder)
        self._greenlet = import_greenlet()
        if self._greenlet is not None:
            switch = _Switch(self._greenlet)
            cutter = RowCutter(rows, switch.active, switch.hand_back)
            for block in self.blocks:
                cut_rows(block, cutter)
                block.register_forward_hook(lambda *args: switch.hand_back() if switch.active() else None)

    def count_slices(self, inputs: Inputs) -> int:
        """Slices of a picture's task, at most (window attention may have fewer rows in one piece)."""
        items = self._family.items(inputs)
        if self._greenlet is None:
            return len(items)
        groups = -(-self._count_rows(items[0]) // self._rows)
        return len(items) * max(1, len(self.blocks)) * (2 * groups - 1) + 1

    def _count_rows(self, item: Inputs) -> int:
        """Rows of an item's hidden states: patches, listed one by one (Qwen) or counted from the picture's sides."""
        pixels = item["pixel_values"]
        if pixels.ndim == 2:
            return pixels.shape[0]
        return (pixels.shape[-1] // self._patch_size) * (pixels.shape[-2] // self._patch_size)

    def start(self, inputs: Inputs) -> EncoderTask:
        """A task for one picture's processor outputs, nothing run yet."""
        items = self._family.items(inputs)
        if self._greenlet is None:
            return _ItemTask(self._family, items)
        return _GreenletTask(self._greenlet, self._family, items, self.count_slices(inputs))


class _ItemTask:
    """One slice an item."""

    def __init__(self, family: Family, items: Sequence[Inputs]) -> None:
        self._family = family
        self._items = list(items)
        self._parts: list[ImageFeatures] = []
        self.slices = len(items)
        self.done = 0

    def advance(self) -> ImageFeatures | None:
        self._parts.append(self._family.encode(self._items[self.done]))
        self.done += 1
        return join_features(self._parts) if self.done == self.slices else None

    def abort(self) -> None:
        self._items.clear()
        self._parts.clear()


class _GreenletTask:
    """A slice ends where a block, or a group of rows in it, ends; what comes after the last block is a slice too."""

    def __init__(self, greenlet: Any, family: Family, items: Sequence[Inputs], slices: int) -> None:
        self.slices = slices
        self.done = 0
        self._greenlet = greenlet.greenlet(lambda: join_features([family.encode(item) for item in items]))
        self._greenlet.hands_back = True

    def advance(self) -> ImageFeatures | None:
        result = self._greenlet.switch()
        self.done = min(self.done + 1, self.slices)
        if not self._greenlet.dead:
            return None
        self.done = self.slices
        features: ImageFeatures = result
        return features

    def abort(self) -> None:
        if self._greenlet and not self._greenlet.dead:
            self._greenlet.throw()  # GreenletExit: the tower's frames unwind


def import_greenlet() -> Any | None:
    """The package, None where it isn't installed: pictures are encoded there too, in coarser slices."""
    try:
        import greenlet
    except ImportError:
        return None
    return greenlet


class _Switch:
    """From a task to the engine."""

    def __init__(self, greenlet: Any) -> None:
        self._greenlet = greenlet

    def active(self) -> bool:
        """Whether the code that asks runs inside a task."""
        return getattr(self._greenlet.getcurrent(), "hands_back", False)

    def hand_back(self) -> None:
        self._greenlet.getcurrent().parent.switch()


def vision_blocks(model: torch.nn.Module, decoder: torch.nn.Module) -> tuple[torch.nn.Module, ...]:
    """The blocks of the vision tower: of all lists of modules outside the decoder that attend, the one with the most
    weights. (Qwen3-VL has a list of mergers beside them.)"""
    inside = {id(module) for module in decoder.modules()}
    lists: list[torch.nn.ModuleList] = [
        m for m in model.modules() if isinstance(m, torch.nn.ModuleList) and id(m) not in inside
    ]
    lists = [blocks for blocks in lists if any("att" in name for name, _ in blocks.named_modules())]
    if not lists:
        return ()
    largest: torch.nn.ModuleList = max(lists, key=_count_weights)
    return tuple(largest)


def _count_weights(module: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def join_features(parts: Sequence[ImageFeatures]) -> ImageFeatures:
    """The features of a picture from those of its items, in their order."""
    if len(parts) == 1:
        return parts[0]
    levels = zip(*(part.deepstack for part in parts), strict=True)
    return ImageFeatures(torch.cat([part.rows for part in parts]), tuple(torch.cat(level) for level in levels))
