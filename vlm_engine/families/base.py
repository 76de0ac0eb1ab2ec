"""What the engine asks of a model family."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import torch

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel

    from vlm_engine.encoder_cache import ImageFeatures
    from vlm_engine.prompt import ImageInput


class Family(Protocol):
    """Adapter over one loaded model.

    Attributes:
        name: of the family, for messages and docs.
        decoder: the text decoder; called with ``inputs_embeds``, ``position_ids`` and ``step``.
        embedding: token ids -> embeddings.
        head: hidden states -> logits.
        text_config: configuration of the decoder.
        takes_images: whether there is a vision tower.
        takes_several_images: whether a prompt may hold more than one picture.
        counts_images: whether the processor makes something else of a picture when a prompt holds several.
        feature_levels: how many ``[tokens, hidden]`` tensors a picture's features hold.
        pack_dim: dimension along which items of equal form are put together to be encoded at once; None = never.
    """

    name: str
    decoder: torch.nn.Module
    embedding: torch.nn.Module
    head: torch.nn.Module
    text_config: PretrainedConfig
    takes_images: bool
    takes_several_images: bool
    counts_images: bool
    feature_levels: int
    pack_dim: int | None

    def __init__(self, model: PreTrainedModel) -> None: ...

    def encode(self, inputs: Mapping[str, torch.Tensor]) -> ImageFeatures:
        """Runs the vision tower and the connector on one picture's processor outputs."""
        ...

    def items(self, inputs: Mapping[str, torch.Tensor]) -> Sequence[Mapping[str, torch.Tensor]]:
        """Parts of a picture that can be encoded one by one, their features following each other; often just one."""
        ...

    def positions(self, token_ids: Sequence[int], images: Sequence[ImageInput]) -> tuple[torch.Tensor, int]:
        """Rotary positions of a prompt: int64 ``[p, tokens]``, and what to add to an index after the prompt."""
        ...

    def decoder_inputs(
        self, positions: torch.Tensor, deepstack: Sequence[torch.Tensor], image_rows: torch.Tensor | None
    ) -> dict[str, Any]:
        """Keyword arguments of the decoder for a packed batch.

        Args:
            positions: int64 ``[p, tokens]``.
            deepstack: per level ``[image rows, hidden]``, in the order of ``image_rows``.
            image_rows: int64 rows of the batch that hold image features, ascending; None without any.
        """
        ...


def linear_positions(count: int) -> torch.Tensor:
    """int64 ``[1, count]``: 0, 1, 2, ..."""
    return torch.arange(count)[None]


def split_tiles(inputs: Mapping[str, torch.Tensor], dim: int) -> list[dict[str, torch.Tensor]]:
    """One item for each tile, where every tensor has the tiles along ``dim``."""
    count = inputs["pixel_values"].shape[dim]
    return [{name: tensor.narrow(dim, i, 1) for name, tensor in inputs.items()} for i in range(count)]
