"""Qwen2-VL, Qwen2.5-VL and Qwen3-VL: native resolution, three-dimensional rotary positions, deepstack (3)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from vlm_engine.encoder_cache import ImageFeatures

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from vlm_engine.prompt import ImageInput


class QwenVLFamily:
    """``Qwen2VL-``, ``Qwen2_5_VL-`` and ``Qwen3VLForConditionalGeneration``."""

    name = "qwen_vl"
    takes_images = True
    takes_several_images = True
    counts_images = False
    pack_dim: int | None = 0

    def __init__(self, model: PreTrainedModel) -> None:
        self._model = model.model
        self.decoder = model.model.language_model
        self.embedding = model.get_input_embeddings()
        self.head = model.get_output_embeddings()
        self.text_config = model.config.text_config
        self.feature_levels = 1 + len(getattr(model.config.vision_config, "deepstack_visual_indexes", ()))

    def encode(self, inputs: Mapping[str, torch.Tensor]) -> ImageFeatures:
        """``pixel_values`` float ``[patches, 3 * t * p * p]``, ``image_grid_thw`` int ``[1, 3]``."""
        output = self._model.get_image_features(inputs["pixel_values"], inputs["image_grid_thw"], return_dict=True)
        levels = getattr(output, "deepstack_features", None) or ()
        return ImageFeatures(torch.cat(tuple(output.pooler_output)), tuple(torch.cat(tuple(part)) for part in levels))

    def items(self, inputs: Mapping[str, torch.Tensor]) -> Sequence[Mapping[str, torch.Tensor]]:
        return [inputs]

    def positions(self, token_ids: Sequence[int], images: Sequence[ImageInput]) -> tuple[torch.Tensor, int]:
        """int64 ``[3, tokens]``: temporal, height, width (M-RoPE, arXiv 2409.12191)."""
        ids = torch.tensor([token_ids])
        types = torch.zeros_like(ids, dtype=torch.int)
        for image in images:
            types[0, list(image.token_indices)] = 1
        grids = torch.cat([image.inputs["image_grid_thw"].cpu() for image in images]) if images else None
        positions, delta = self._model.get_rope_index(ids, mm_token_type_ids=types, image_grid_thw=grids)
        return positions[:, 0], int(delta.item())

    def decoder_inputs(
        self, positions: torch.Tensor, deepstack: Sequence[torch.Tensor], image_rows: torch.Tensor | None
    ) -> dict[str, Any]:
        inputs: dict[str, Any] = {"position_ids": positions[:, None]}
        if deepstack and image_rows is not None:
            mask = torch.zeros(1, positions.shape[1], dtype=torch.bool, device=positions.device)
            mask[0, image_rows] = True
            inputs |= {"visual_pos_masks": mask, "deepstack_visual_embeds": list(deepstack)}
        return inputs
