"""Linear layers of a decoder with their weights laid out once as oneDNN wants them.

On a CPU, ``torch.nn.functional.linear`` in bfloat16 lays the weight out anew in every call; for the few rows of a
decode step that costs more than the product (measured on two AVX-512 cores, 576 x 1536: 0.17 ms plain, 0.07 ms packed
at 4 rows; the head of 49,280 rows 4.9 and 1.5 ms). The results are the same bits. Inductor's weight freezing does the
same by the same operators, which are torch's own but not documented: they are tried before they are used.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch.nn.functional import linear

logger = logging.getLogger(__name__)

ROWS_HINT = 8
"""Rows for which oneDNN chooses the layout; others work with it too."""
SMALLEST = 64
"""Layers with fewer inputs or outputs aren't worth it."""


SIBLINGS = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))
"""Layers that a decoder layer calls one after another with the same input: one product gives them all."""


class Change(Protocol):
    """A change of low rank of layers with one input.

    Attributes:
        down: ``[ranks, in_features]``; its product is computed with the layers' own.
    """

    down: torch.Tensor

    def add(self, outputs: torch.Tensor, low: torch.Tensor) -> torch.Tensor:
        """``outputs`` ``[..., out_features of all]`` and what the change makes of ``low`` ``[..., ranks]``."""


class ChangedLinear(torch.nn.Module, ABC):
    """A linear layer with a change of low rank beside it.

    Attributes:
        inner: the layer.
    """

    inner: torch.nn.Linear

    @staticmethod
    @abstractmethod
    def join(layers: Sequence[Any]) -> Change:
        """The changes of such layers, which have the same input, as one."""


class PackedLinear(torch.nn.Module):
    """``y = x W^T + b`` for ``x`` ``[..., in_features]`` bfloat16 on a CPU, of any number of rows.

    Args:
        layer: whose weight is packed. Its own copy is let go unless something else (a tied embedding) holds it.
    """

    def __init__(self, layer: torch.nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = layer.in_features, layer.out_features
        self.bias = layer.bias
        self._packed = _pack(layer.weight)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return _apply(inputs, self._packed, self.bias)


class PackedSiblings:
    """Layers of one input in one product. The first to be called computes it, the others take their columns.

    Args:
        change: that of the layers, if they have one.
    """

    def __init__(self, layers: Sequence[torch.nn.Linear], change: Change | None = None) -> None:
        weights: list[torch.Tensor] = [layer.weight for layer in layers]
        biases: list[torch.Tensor] = [layer.bias for layer in layers if layer.bias is not None]
        if change is not None:
            weights.append(change.down)
            biases += [layers[0].weight.new_zeros(len(change.down))] if biases else []
        self._packed = _pack(torch.cat(weights))
        self._bias = torch.cat(biases) if biases else None
        self._change, self._width = change, sum(layer.out_features for layer in layers)
        self._inputs: torch.Tensor | None = None
        self._outputs: torch.Tensor | None = None

    def columns(self, inputs: torch.Tensor, start: int, stop: int, last: bool) -> torch.Tensor:
        """``[..., stop - start]``; a view."""
        outputs = self._outputs if inputs is self._inputs else None
        if outputs is None:
            outputs = _apply(inputs, self._packed, self._bias)
            if self._change is not None:
                outputs = self._change.add(outputs[..., : self._width], outputs[..., self._width :])
        # What was computed is let go with the last of the layers, so that nothing big outlives its step.
        self._inputs, self._outputs = (None, None) if last else (inputs, outputs)
        return outputs[..., start:stop]


class PackedSibling(torch.nn.Module):
    """One of :class:`PackedSiblings`; stands where the plain layer stood."""

    def __init__(self, siblings: PackedSiblings, layer: torch.nn.Linear, start: int, last: bool) -> None:
        super().__init__()
        self.in_features, self.out_features = layer.in_features, layer.out_features
        self._siblings, self._start, self._last = siblings, start, last

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self._siblings.columns(inputs, self._start, self._start + self.out_features, self._last)


def pack_linears(module: torch.nn.Module) -> int:
    """Replaces the plain linear layers inside a module; gives how many. None where torch can't, or it isn't exact."""
    if not _usable():
        return 0
    count = 0
    for parent in list(module.modules()):
        if isinstance(parent, ChangedLinear):
            continue  # Was packed with its change, or isn't worth it.
        count += sum(_pack_siblings(parent, names) for names in SIBLINGS)
        for name, child in parent.named_children():
            if isinstance(child, ChangedLinear):
                count += _pack_siblings(parent, (name,))
            elif type(child) is torch.nn.Linear and _worth_it(child):
                setattr(parent, name, PackedLinear(child))
                count += 1
    return count


def _pack_siblings(parent: torch.nn.Module, names: Sequence[str]) -> int:
    """Replaces them if all are plain, or have a change each, are worth it and of one input size, and all or none have a
    bias."""
    children = [getattr(parent, name, None) for name in names]
    changed = [child for child in children if isinstance(child, ChangedLinear)]
    layers = [child.inner if isinstance(child, ChangedLinear) else child for child in children]
    plain: list[torch.nn.Linear] = [x for x in layers if type(x) is torch.nn.Linear and _worth_it(x)]
    alike = {(layer.in_features, layer.bias is None) for layer in plain}
    if len(plain) < len(names) or len(alike) != 1 or len(changed) not in (0, len(names)):
        return 0
    siblings, start = PackedSiblings(plain, changed[0].join(changed) if changed else None), 0
    for name, layer in zip(names, plain, strict=True):
        setattr(parent, name, PackedSibling(siblings, layer, start, last=layer is plain[-1]))
        start += layer.out_features
    return len(plain)


def pack_head(head: torch.nn.Module) -> torch.nn.Module:
    """The same for a module that is a linear layer itself."""
    return PackedLinear(head) if type(head) is torch.nn.Linear and _worth_it(head) and _usable() else head


def _worth_it(layer: torch.nn.Linear) -> bool:
    weight = layer.weight
    on_cpu = weight.device.type == "cpu" and weight.dtype is torch.bfloat16
    return on_cpu and min(layer.in_features, layer.out_features) >= SMALLEST


def _usable() -> bool:
    """Whether the operators are there and give what the plain layer gives."""
    try:
        if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
            return False
        layer = torch.nn.Linear(SMALLEST, 2 * SMALLEST, dtype=torch.bfloat16)
        inputs = torch.randn(3, SMALLEST).bfloat16()
        same = torch.allclose(_apply(inputs, _pack(layer.weight), layer.bias), linear(inputs, layer.weight, layer.bias))
    except (AttributeError, RuntimeError, NotImplementedError) as error:
        logger.info("linear layers stay unpacked: %s", str(error).partition("\n")[0])
        return False
    return bool(same)


def _pack(weight: torch.Tensor) -> torch.Tensor:
    packed: torch.Tensor = torch.ops.mkldnn._reorder_linear_weight(weight.detach(), ROWS_HINT)
    return packed


def _apply(inputs: torch.Tensor, packed: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    out: torch.Tensor = torch.ops.mkldnn._linear_pointwise(inputs, packed, bias, "none", [], "")
    return out
