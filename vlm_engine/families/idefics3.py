"""Idefics3 and SmolVLM: a picture is a grid of tiles plus a small whole view, each a fixed number of tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from vlm_engine.encoder_cache import ImageFeatures
from vlm_engine.families.base import linear_positions, split_tiles

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from vlm_engine.prompt import ImageInput


class Idefics3Family:
    """``Idefics3ForConditionalGeneration`` and ``SmolVLMForConditionalGeneration``."""

    name = "idefics3"
    takes_images = True
    takes_several_images = True
    counts_images = False
    feature_levels = 1
    pack_dim: int | None = 1

    def __init__(self, model: PreTrainedModel) -> None:
        self._model = model.model
        self.decoder = model.model.text_model
        self.embedding = model.get_input_embeddings()
        self.head = model.get_output_embeddings()
        self.text_config = model.config.text_config

    def encode(self, inputs: Mapping[str, torch.Tensor]) -> ImageFeatures:
        """``pixel_values`` float ``[1, tiles, 3, h, w]``, ``pixel_attention_mask`` int ``[1, tiles, h, w]``."""
        features = self._model.get_image_features(
            inputs["pixel_values"], inputs.get("pixel_attention_mask"), return_dict=True
        ).pooler_output
        return ImageFeatures(torch.cat(tuple(features)))

    def items(self, inputs: Mapping[str, torch.Tensor]) -> Sequence[Mapping[str, torch.Tensor]]:
        return split_tiles(inputs, 1)

    def positions(self, token_ids: Sequence[int], images: Sequence[ImageInput]) -> tuple[torch.Tensor, int]:
        return linear_positions(len(token_ids)), 0

    def decoder_inputs(
        self, positions: torch.Tensor, deepstack: Sequence[torch.Tensor], image_rows: torch.Tensor | None
    ) -> dict[str, Any]:
        return {"position_ids": positions}
