"""InternVL3 (the ``-hf`` checkpoints): tiles of the closest grid plus a whole view, each shuffled to fewer tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from vlm_engine.encoder_cache import ImageFeatures
from vlm_engine.families.base import linear_positions, split_tiles

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from vlm_engine.prompt import ImageInput


class InternVLFamily:
    """``InternVLForConditionalGeneration``."""

    name = "internvl"
    takes_images = True
    takes_several_images = True
    counts_images = False
    feature_levels = 1
    pack_dim: int | None = 0

    def __init__(self, model: PreTrainedModel) -> None:
        self._model = model.model
        self.decoder = model.model.language_model
        self.embedding = model.get_input_embeddings()
        self.head = model.get_output_embeddings()
        self.text_config = model.config.text_config

    def encode(self, inputs: Mapping[str, torch.Tensor]) -> ImageFeatures:
        """``pixel_values`` float ``[tiles, 3, h, w]``; the processor already took the pictures' tile counts away."""
        features = self._model.get_image_features(inputs["pixel_values"], return_dict=True).pooler_output
        return ImageFeatures(features.flatten(0, 1))

    def items(self, inputs: Mapping[str, torch.Tensor]) -> Sequence[Mapping[str, torch.Tensor]]:
        return split_tiles(inputs, 0)

    def positions(self, token_ids: Sequence[int], images: Sequence[ImageInput]) -> tuple[torch.Tensor, int]:
        return linear_positions(len(token_ids)), 0

    def decoder_inputs(
        self, positions: torch.Tensor, deepstack: Sequence[torch.Tensor], image_rows: torch.Tensor | None
    ) -> dict[str, Any]:
        return {"position_ids": positions}
