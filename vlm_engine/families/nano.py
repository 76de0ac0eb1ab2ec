"""Watchword's own small describer: see :mod:`vlm_engine.families.nano_model`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from vlm_engine.encoder_cache import ImageFeatures
from vlm_engine.families.base import linear_positions
from vlm_engine.families.nano_model import MODEL_TYPE

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from vlm_engine.prompt import ImageInput

LOOKS = 1 << 40
"""Added to the positions of tokens from a picture on, which tells them in a step of many requests."""


class NanoFamily:
    """``NanoForConditionalGeneration``."""

    name = MODEL_TYPE
    takes_images = True
    takes_several_images = True
    counts_images = False
    feature_levels = 1
    pack_dim: int | None = 0

    def __init__(self, model: PreTrainedModel) -> None:
        self._model = model.model
        self.decoder = model.model.text_model
        self.embedding = model.get_input_embeddings()
        self.head = model.get_output_embeddings()
        self.text_config = model.config.text_config

    def encode(self, inputs: Mapping[str, torch.Tensor]) -> ImageFeatures:
        """``pixel_values`` float ``[pictures, 3, h, w]``."""
        return ImageFeatures(self._model.image_features(inputs["pixel_values"]).flatten(0, 1))

    def items(self, inputs: Mapping[str, torch.Tensor]) -> Sequence[Mapping[str, torch.Tensor]]:
        return [inputs]

    def positions(self, token_ids: Sequence[int], images: Sequence[ImageInput]) -> tuple[torch.Tensor, int]:
        """Linear, and marked by LOOKS from the first picture on."""
        positions = linear_positions(len(token_ids))
        if not images:
            return positions, 0
        first = min(image.token_indices[0] for image in images)
        return positions + LOOKS * (positions >= first), LOOKS

    def decoder_inputs(
        self, positions: torch.Tensor, deepstack: Sequence[torch.Tensor], image_rows: torch.Tensor | None
    ) -> dict[str, Any]:
        return {"position_ids": positions % LOOKS, "looking": positions >= LOOKS}
