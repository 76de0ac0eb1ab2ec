"""What a teacher adds to the labels: how it sees a picture at every place, and how sure it is of a person there.

A network that learns from scratch on some thousand pictures finds people, but takes much else for people, too: labels
say little about what nobody is. A teacher of the same architecture says something about every pixel. Hints: Romero et
al., FitNets (arXiv 1412.6550); soft labels: Hinton et al. (arXiv 1503.02531).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from vlm_engine.loader import cpu_has_bfloat16

LAYERS = (2, 4, 6, 8, 10, 13, 16, 19, 22)
"""Blocks of yolo26.yaml whose outputs are compared: backbone to P5, then what the detection head is given."""
HINTS_WEIGHT, SURENESS_WEIGHT, PLACES_WEIGHT = 1.0, 0.5, 0.5
PERSON = 0
LEAST_SURE = 0.3
"""Where the teacher is less sure of a person, its box isn't copied."""


def quick() -> Any:
    """Computes in bfloat16 where the processor can."""
    return torch.autocast("cpu", torch.bfloat16, enabled=cpu_has_bfloat16())


def walk(
    network: Any, images: torch.Tensor, shown: dict[int, torch.Tensor] | None = None, by_itself: bool = False
) -> tuple[dict[int, torch.Tensor], dict[str, torch.Tensor]]:
    """Outputs of LAYERS, and the head's without suppression: ``{"scores": [n, classes, places], "boxes": ...}``.

    Args:
        images: float ``[n, 3, h, w]``, 0 to 1.
        shown: outputs of LAYERS of another network: every stage goes on from these, not from the network's own.
        by_itself: no gradient goes from a stage to those before it.
    """
    seen: dict[int, torch.Tensor] = {}
    sources: dict[int, torch.Tensor] = {} if shown is None else shown
    x = images
    for number, layer in enumerate(network.model[:-1]):
        x = layer(x if layer.f == -1 else [x if source == -1 else sources[source] for source in layer.f])
        if number in LAYERS:
            seen[number] = x
            if shown is None:
                sources[number] = x.detach() if by_itself else x
            x = sources[number]
    head = network.model[-1]
    return seen, head.forward_head([sources[source] for source in head.f], **head.one2one)


@contextmanager
def outputs_of(network: nn.Module) -> Iterator[dict[int, torch.Tensor]]:
    """Fills the dictionary with the outputs of LAYERS while the network runs. Its hooks are gone afterwards: networks
    with hooks can't be saved."""
    seen: dict[int, torch.Tensor] = {}
    layers: Any = network.model

    def keep(number: int) -> Any:
        def hook(module: nn.Module, given: Any, out: torch.Tensor) -> None:
            seen[number] = out

        return hook

    handles = [layers[number].register_forward_hook(keep(number)) for number in LAYERS]
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()


class Tutor:
    """A teacher network of the same architecture, whatever its classes; class 0 is the person."""

    def __init__(self, weights: Path) -> None:
        from ultralytics import YOLO
        from ultralytics.nn.modules.conv import Conv
        from ultralytics.utils.torch_utils import fuse_conv_and_bn

        network: Any = YOLO(str(weights)).model
        self._network = network.float().eval().requires_grad_(False)
        for module in network.modules():
            if isinstance(module, Conv):  # its normalisation is a part of the weights: fewer steps, the same answer
                module.conv = fuse_conv_and_bn(module.conv, module.bn)
                module.forward = module.forward_fuse
                del module.bn
        self._network.to(memory_format=torch.channels_last)

    @torch.no_grad()
    def look(self, images: torch.Tensor) -> tuple[dict[int, torch.Tensor], dict[str, torch.Tensor]]:
        """As :func:`walk`, in single precision."""
        with quick():
            seen, told = walk(self._network, images)
        return {number: out.float() for number, out in seen.items()}, {
            name: told[name].float() for name in ("scores", "boxes")
        }

    def loss(self, images: torch.Tensor, seen: dict[int, torch.Tensor], told: dict[str, torch.Tensor]) -> torch.Tensor:
        """How far the learner is from it, a mean over pictures.

        Args:
            seen: the learner's outputs of LAYERS.
            told: its head without suppression, ``{"scores": [n, 1, places], "boxes": [n, 4, places]}``.
        """
        shown, right = self.look(images)
        hints = torch.stack([hint_loss(seen[number].float(), shown[number]) for number in LAYERS]).sum()
        return HINTS_WEIGHT * hints + told_loss(told, right)


def told_loss(told: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> torch.Tensor:
    """How far a head's scores and boxes are from the teacher's, at every place where it is at all sure. Arguments as
    of :meth:`Tutor.loss` and as :meth:`Tutor.look` gives."""
    sure = right["scores"][:, PERSON].sigmoid()
    most = sure.sum().clamp(min=1.0)
    sureness = F.binary_cross_entropy_with_logits(told["scores"][:, 0].float(), sure, reduction="sum") / most
    weight = torch.where(sure >= LEAST_SURE, sure, torch.zeros(()))
    apart = (told["boxes"].float() - right["boxes"]).abs().mean(1)
    places = (apart * weight).sum() / weight.sum().clamp(min=1.0)
    return SURENESS_WEIGHT * sureness + PLACES_WEIGHT * places


def hint_loss(ours: torch.Tensor, theirs: torch.Tensor) -> torch.Tensor:
    """Mean squared difference, each channel measured by how much the teacher's varies: about 1 for a learner that knows
    the channels' means only. Both ``[n, c, h, w]``."""
    spread = theirs.var((0, 2, 3), keepdim=True) + 1e-3
    return ((ours - theirs) ** 2 / spread).clamp(max=25.0).mean()
