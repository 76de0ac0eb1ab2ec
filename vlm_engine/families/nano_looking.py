"""A change of the decoder that only the tokens from a picture on feel, so that chats without one are the decoder's own.

The change is of low rank (LoRA, Hu et al., arXiv 2106.09685) and stays beside the weights: merged, it could not be told
whom it is for. A token feels it when a picture stands at its place or before it. That is known from left to right, so
what is computed of a prefix is the same whatever follows, and pages of the KV cache may be shared as ever.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn
from transformers import LlamaConfig, LlamaModel

from vlm_engine.packed_linear import ChangedLinear

TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
"""The decoder's linear maps that have a change."""


class Looking:
    """Which tokens of the forward that runs now feel the change.

    Attributes:
        mask: ``[..., tokens, 1]`` of zeros and ones in the weights' type; None: no token does.
    """

    def __init__(self) -> None:
        self.mask: torch.Tensor | None = None


class LookingLinear(ChangedLinear):
    """``y = W x``, and ``y + up down x`` for tokens that feel the change; ``up`` begins with zeros.

    Args:
        rank: of the change; ``down`` ``[rank, in_features]``, ``up`` ``[out_features, rank]``.
        looking: shared by all of a decoder.
    """

    def __init__(self, inner: nn.Linear, rank: int, looking: Looking) -> None:
        super().__init__()
        self.inner = inner
        self.down = nn.Parameter(torch.randn(rank, inner.in_features) / inner.in_features**0.5)
        self.up = nn.Parameter(torch.zeros(inner.out_features, rank))
        self._looking = looking

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """``x``: ``[..., tokens, in_features]``."""
        out: torch.Tensor = self.inner(x)
        mask = self._looking.mask
        if mask is None:
            return out
        change = (x.to(self.down.dtype) @ self.down.T) * mask.to(self.down.dtype)
        return out + (change @ self.up.T).to(out.dtype)

    @staticmethod
    def join(layers: Sequence[LookingLinear]) -> JoinedChange:
        return JoinedChange(layers)


class JoinedChange:
    """The changes of layers with one input, as one.

    Each product costs about 25 microseconds however small it is (oneDNN, bfloat16, two cores), and a decoder of 30
    layers had 420 of them: ``down`` rides along with the layers' own product, and the ``up`` of all, side by side, is
    one of MKL's in float32, which takes half as long for a decode step's rows. Measured (SmolLM2-135M's shape, one
    token, the network alone): 33 ms without a change, 50 with it layer by layer, 34 as it is here.

    Attributes:
        down: ``[ranks of all, in_features]``.
    """

    def __init__(self, layers: Sequence[LookingLinear]) -> None:
        self.down = torch.cat([layer.down.detach().to(layer.inner.weight.dtype) for layer in layers])
        ups = [layer.up.detach().float().T for layer in layers]
        self._up: torch.Tensor = torch.block_diag(*ups)  # type: ignore[no-untyped-call]
        self._looking = layers[0]._looking

    def add(self, outputs: torch.Tensor, low: torch.Tensor) -> torch.Tensor:
        """``low``: ``down x``; see :class:`vlm_engine.packed_linear.Change`."""
        mask = self._looking.mask
        if mask is None:
            return outputs
        change: torch.Tensor = (low * mask.to(low.dtype)).float() @ self._up
        return outputs + change.to(outputs.dtype)


class LookingText(LlamaModel):  # type: ignore[misc]
    """A Llama whose layers have such changes.

    Args:
        rank: 0 for none.
    """

    def __init__(self, config: LlamaConfig, rank: int) -> None:
        super().__init__(config)
        self.looking = Looking()
        if not rank:
            return
        for module in list(self.modules()):
            for name, child in list(module.named_children()):
                if name in TARGETS and isinstance(child, nn.Linear):
                    setattr(module, name, LookingLinear(child, rank, self.looking))

    def forward(self, *args: Any, looking: torch.Tensor | None = None, **options: Any) -> Any:
        """As Llama's. ``looking``: bool ``[b, tokens]``, the tokens that feel the change; None: none does."""
        if looking is not None and bool(looking.any()):
            self.looking.mask = looking[..., None]
        try:
            return super().forward(*args, **options)
        finally:
            self.looking.mask = None

    def changes(self) -> dict[str, LookingLinear]:
        """By the linear map's name."""
        return {name: module for name, module in self.named_modules() if isinstance(module, LookingLinear)}

    def take(self, state: Mapping[str, torch.Tensor]) -> None:
        """Loads a plain Llama's weights; the changes stay as they are."""
        changed = self.changes()
        names = {f"{name}.weight": f"{name}.inner.weight" for name in changed}
        missing, unknown = self.load_state_dict({names.get(name, name): value for name, value in state.items()}, False)
        own = {f"{name}.{part}" for name in changed for part in ("down", "up")}
        if unknown or set(missing) - own:
            raise ValueError(f"not a Llama's weights: {sorted({*unknown, *missing} - own)[:3]} don't fit")


def looked_at(ids: torch.Tensor, image_token_id: int) -> torch.Tensor:
    """bool ``[b, tokens]``: where in ``ids``, whole prompts, a picture is at the place or before it."""
    return (ids == image_token_id).cumsum(-1) > 0
