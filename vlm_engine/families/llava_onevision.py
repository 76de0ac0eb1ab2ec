"""LLaVA-OneVision: one whole view, then the tiles of the closest grid without their padding, a newline after each row.

How many tokens a picture takes depends on its original size, so ``image_sizes`` goes into the encoder. One picture of
several in a prompt is not tiled at all: the processor and the encoder have to be told (``batch_num_images``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from vlm_engine.encoder_cache import ImageFeatures
from vlm_engine.families.base import linear_positions

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from vlm_engine.prompt import ImageInput


class LlavaOnevisionFamily:
    """``LlavaOnevisionForConditionalGeneration``."""

    name = "llava_onevision"
    takes_images = True
    takes_several_images = True
    counts_images = True
    feature_levels = 1
    pack_dim: int | None = None  # pictures differ in their number of tiles

    def __init__(self, model: PreTrainedModel) -> None:
        self._model = model.model
        self.decoder = model.model.language_model
        self.embedding = model.get_input_embeddings()
        self.head = model.get_output_embeddings()
        self.text_config = model.config.text_config

    def encode(self, inputs: Mapping[str, torch.Tensor]) -> ImageFeatures:
        """``pixel_values`` float ``[1, tiles, 3, h, w]``, ``image_sizes`` int ``[1, 2]``, ``batch_num_images`` ``[1]``.

        Which vision layer is read, and whether its class token is left out, says the checkpoint's configuration.
        """
        features = self._model.get_image_features(
            inputs["pixel_values"],
            inputs["image_sizes"],
            batch_num_images=inputs["batch_num_images"],
            vision_aspect_ratio=self._model.config.vision_aspect_ratio,
            return_dict=True,
        ).pooler_output
        return ImageFeatures(torch.cat(tuple(features)))

    def items(self, inputs: Mapping[str, torch.Tensor]) -> Sequence[Mapping[str, torch.Tensor]]:
        return [inputs]

    def positions(self, token_ids: Sequence[int], images: Sequence[ImageInput]) -> tuple[torch.Tensor, int]:
        return linear_positions(len(token_ids)), 0

    def decoder_inputs(
        self, positions: torch.Tensor, deepstack: Sequence[torch.Tensor], image_rows: torch.Tensor | None
    ) -> dict[str, Any]:
        return {"position_ids": positions}
