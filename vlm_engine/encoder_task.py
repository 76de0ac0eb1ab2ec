"""Encoding pictures as a task that is advanced by slices: packs of items (tiles, pictures), layers, rows in a layer.

No vision tower is rewritten for that. A task runs the family's ``encode`` in a greenlet; forward hooks on the tower's
blocks switch back to the engine after each block, hidden states stay on the task's stack, and the next slice goes on
from there. Each time it says what the next slice will be, so that its time can be predicted.

Rules (each broken once, somewhere): the engine thread enters ``inference_mode`` outermost and tasks neither enter nor
leave it; tasks are made, resumed and ended in that thread only; hooks act only inside a task; nothing switches inside
a compiled or captured region. Without the ``greenlet`` package packs are the only cuts.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import torch

from vlm_engine.encoder_cache import ImageFeatures, split_features
from vlm_engine.row_cuts import RowCutter, SliceWork, cut_rows

if TYPE_CHECKING:
    from vlm_engine.families import Family
    from vlm_engine.pixel_scale import PixelScale

Inputs = Mapping[str, torch.Tensor]


@dataclass(frozen=True, slots=True, eq=False)
class EncoderItem:
    """A part of a picture that is encoded by itself or packed with others.

    Attributes:
        inputs: processor outputs of this part.
        rows: its rows of hidden states in the tower (patches).
        keys: how many of them a row attends to (a tile's, or all).
        pack_key: items with equal keys may be encoded together; None = only alone.
    """

    inputs: Inputs
    rows: int
    keys: int
    pack_key: Hashable | None


class EncoderTask(Protocol):
    """The encoding of some items.

    Attributes:
        next: what the next slice will compute.
    """

    next: SliceWork

    def advance(self) -> list[ImageFeatures] | None:
        """Runs one slice; gives the features of each item with the last one."""
        ...

    def abort(self) -> None:
        """Ends the task and frees what it holds."""
        ...


class SlicedEncoder:
    """Makes items and tasks for one family's vision tower.

    Args:
        family: whose ``encode`` runs.
        model: the module that holds tower and decoder.
        patch_size: side of a patch in pixels.
        rows: rows of a group inside a layer.
        slicing: False encodes in one piece, whatever it takes (to compare with).

    Attributes:
        pixel_scale: of the processor, for pixels that come as bytes.
    """

    def __init__(
        self, family: Family, model: torch.nn.Module, patch_size: int, rows: int, slicing: bool = True
    ) -> None:
        self._family = family
        self._patch_size = patch_size
        self.rows = rows
        self.pixel_scale: PixelScale | None = None
        self.blocks = vision_blocks(model, family.decoder)
        self._greenlet = import_greenlet() if slicing else None
        if self._greenlet is not None:
            self._install_hooks(_Switch(self._greenlet))

    def _install_hooks(self, switch: _Switch) -> None:
        self.cutter = RowCutter(self.rows, switch.active, switch.hand_back)
        last = self.blocks[-1] if self.blocks else None

        def after(block: torch.nn.Module, *_: Any) -> None:
            if not switch.active():
                return
            rows = int(block.layer_rows)  # type: ignore[arg-type]
            kind = "finish" if block is last else "project" if self.cutter.cuts(rows) else "block"
            switch.hand_back(SliceWork(kind, rows, rows * switch.keys() if kind == "block" else 0))

        for block in self.blocks:
            cut_rows(block, self.cutter)
            block.register_forward_hook(after)

    def items(self, inputs: Inputs) -> list[EncoderItem]:
        """The parts of a picture, in the order of their feature rows."""
        return [self._item(item) for item in self._family.items(inputs)]

    def _item(self, inputs: Inputs) -> EncoderItem:
        pixels, dim = inputs["pixel_values"], self._family.pack_dim
        if pixels.ndim == 2:  # patches one by one (Qwen)
            rows = keys = len(pixels)
        else:
            keys = (pixels.shape[-1] // self._patch_size) * (pixels.shape[-2] // self._patch_size)
            rows = keys * pixels.shape[:-3].numel()
        key = None if dim is None else tuple(sorted((n, t.dtype, _without(t.shape, dim)) for n, t in inputs.items()))
        return EncoderItem(inputs, rows, keys, key)

    def start(self, items: Sequence[EncoderItem]) -> EncoderTask:
        """A task for items that pack, nothing run yet."""
        if self._greenlet is None:
            return _WholeTask(lambda: self._encode(items), _work_of(items))
        rows = sum(item.rows for item in items)
        kind = "begin" if rows > self.rows else "item" if not self.blocks else "block"
        first = SliceWork(kind, rows, _work_of(items).pairs if kind != "begin" else 0)
        return _GreenletTask(self._greenlet, lambda: self._encode(items), first, max(item.keys for item in items))

    def _encode(self, items: Sequence[EncoderItem]) -> list[ImageFeatures]:
        """Features of each item. A connector gives every item its share by rows."""
        dim = self._family.pack_dim
        if len(items) == 1 or dim is None:
            return [self._family.encode(self.scaled(item.inputs)) for item in items]
        packed = {name: torch.cat([item.inputs[name] for item in items], dim=dim) for name in items[0].inputs}
        return split_features(self._family.encode(self.scaled(packed)), [item.rows for item in items])

    def scaled(self, inputs: Inputs) -> Inputs:
        """With pixels as the processor makes them; ValueError for bytes of a processor that isn't known."""
        pixels = inputs["pixel_values"]
        if pixels.dtype != torch.uint8:
            return inputs
        if self.pixel_scale is None:
            raise ValueError("pixels came as bytes, and how the processor scales them isn't known")
        return {**inputs, "pixel_values": self.pixel_scale.apply(pixels)}


class _WholeTask:
    """One slice."""

    def __init__(self, encode: Callable[[], list[ImageFeatures]], work: SliceWork) -> None:
        self._encode = encode
        self.next = work

    def advance(self) -> list[ImageFeatures] | None:
        return self._encode()

    def abort(self) -> None:
        """Nothing is held."""


class _GreenletTask:
    """A slice ends where a block, or a group of rows in it, ends; what comes after the last block is a slice too."""

    def __init__(self, greenlet: Any, encode: Callable[[], list[ImageFeatures]], first: SliceWork, keys: int) -> None:
        self.next = first
        self._greenlet = greenlet.greenlet(encode)
        self._greenlet.hands_back = True
        self._greenlet.keys = keys

    def advance(self) -> list[ImageFeatures] | None:
        result = self._greenlet.switch()
        if self._greenlet.dead:
            features: list[ImageFeatures] = result
            return features
        self.next = result
        return None

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

    def keys(self) -> int:
        """Keys that a row of the running task attends to, at most."""
        return int(self._greenlet.getcurrent().keys)

    def hand_back(self, work: SliceWork) -> None:
        self._greenlet.getcurrent().parent.switch(work)


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


def _work_of(items: Sequence[EncoderItem]) -> SliceWork:
    """Items in one piece."""
    return SliceWork("item", sum(item.rows for item in items), sum(item.rows * item.keys for item in items))


def _without(shape: Sequence[int], dim: int) -> tuple[int, ...]:
    return tuple(size for place, size in enumerate(shape) if place != dim)
