"""Plain text decoders: Llama (SmolLM), Qwen2, Qwen3."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from vlm_engine.families.base import linear_positions

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from vlm_engine.encoder_cache import ImageFeatures
    from vlm_engine.prompt import ImageInput


class TextFamily:
    """A ``...ForCausalLM`` without a vision tower."""

    name = "text"
    takes_images = False
    takes_several_images = False
    counts_images = False
    feature_levels = 1
    pack_dim: int | None = None

    def __init__(self, model: PreTrainedModel) -> None:
        self.decoder = model.model
        self.embedding = model.get_input_embeddings()
        self.head = model.get_output_embeddings()
        self.text_config = model.config

    def encode(self, inputs: Mapping[str, torch.Tensor]) -> ImageFeatures:
        """Never called: pictures are refused when the prompt is prepared."""
        raise TypeError("a text model has no vision tower")

    def items(self, inputs: Mapping[str, torch.Tensor]) -> Sequence[Mapping[str, torch.Tensor]]:
        return [inputs]

    def positions(self, token_ids: Sequence[int], images: Sequence[ImageInput]) -> tuple[torch.Tensor, int]:
        return linear_positions(len(token_ids)), 0

    def decoder_inputs(
        self, positions: torch.Tensor, deepstack: Sequence[torch.Tensor], image_rows: torch.Tensor | None
    ) -> dict[str, Any]:
        return {"position_ids": positions}
