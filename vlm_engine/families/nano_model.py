"""The small describer as transformers loads it: a tower that tells concepts, a connector that says them, SmolLM2.

The connector is a concept bottleneck: a picture becomes a sentence in the decoder's own space of words, "upper body: a
{colour} {kind}, ...", whose gaps are filled by the words that the tower's concepts stand for, each as sure as the tower
is.

Concept bottlenecks: Koh et al. 2020 (arXiv 2007.04612); soft prompts: Lester et al. 2021 (arXiv 2104.08691).
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import nn
from transformers import (
    AutoConfig,
    AutoModelForImageTextToText,
    AutoProcessor,
    GenerationMixin,
    LlamaConfig,
    PretrainedConfig,
    PreTrainedModel,
)

from vlm_engine.families.nano_concepts import CONCEPTS
from vlm_engine.families.nano_looking import LookingText, looked_at
from vlm_engine.families.nano_processing import NanoProcessor
from vlm_engine.families.nano_tower import NanoTower

MODEL_TYPE = "watchword_nano"


class NanoVisionConfig(PretrainedConfig):  # type: ignore[misc]
    """The tower's; nothing in it varies."""

    model_type = "watchword_nano_vision"
    patch_size = 16
    attends = False


class NanoConfig(PretrainedConfig):  # type: ignore[misc]
    """``config.json`` of the family.

    Args:
        text_config: the decoder's, a Llama.
        image_token_id: the placeholder that stands ``image_tokens`` times for a picture.
        image_tokens: how many tokens a picture is.
        slots: concept -> which of these tokens it fills.
        change_rank: of the change that tokens from a picture on feel, 0 for none
            (:mod:`vlm_engine.families.nano_looking`).
    """

    model_type = MODEL_TYPE
    sub_configs: ClassVar[dict[str, type[PretrainedConfig]]] = {
        "text_config": LlamaConfig,
        "vision_config": NanoVisionConfig,
    }

    def __init__(
        self,
        text_config: dict[str, Any] | LlamaConfig | None = None,
        vision_config: dict[str, Any] | NanoVisionConfig | None = None,
        image_token_id: int = 0,
        image_tokens: int = 48,
        slots: dict[str, int] | None = None,
        change_rank: int = 0,
        **options: Any,
    ) -> None:
        self.text_config = text_config if isinstance(text_config, LlamaConfig) else LlamaConfig(**(text_config or {}))
        self.vision_config = (
            vision_config if isinstance(vision_config, NanoVisionConfig) else NanoVisionConfig(**(vision_config or {}))
        )
        self.image_token_id = image_token_id
        self.image_tokens = image_tokens
        self.slots = dict(slots or {name: 1 + index for index, name in enumerate(CONCEPTS)})
        self.change_rank = change_rank
        options.setdefault("tie_word_embeddings", True)
        super().__init__(**options)
        # transformers writes the first weight's, which is the tower's and stays float32 whatever the decoder has.
        if self.text_config.dtype is not None:
            self.dtype = self.text_config.dtype


class NanoConnector(nn.Module):
    """Concepts -> ``[n, image_tokens, hidden]`` in the decoder's space of words.

    The frame holds the sentence's fixed words; each concept adds its values' words, weighted by how sure the tower is.
    ``unclear`` is said of a concept whose likeliest value is less likely than ``floor``.
    """

    def __init__(self, config: NanoConfig) -> None:
        super().__init__()
        hidden = config.text_config.hidden_size
        self.frame = nn.Parameter(0.02 * torch.randn(config.image_tokens, hidden))
        self.values = nn.ParameterDict(
            {name: nn.Parameter(0.02 * torch.randn(len(values), hidden)) for name, values in CONCEPTS.items()}
        )
        self.unclear = nn.Parameter(0.02 * torch.randn(len(CONCEPTS), hidden))
        self.sharpness: torch.Tensor
        self.floor: torch.Tensor
        self.register_buffer("sharpness", torch.full((len(CONCEPTS),), 2.0))
        self.register_buffer("floor", torch.full((len(CONCEPTS),), 0.4))
        self._slots = [config.slots[name] for name in CONCEPTS]

    def forward(self, logits: dict[str, torch.Tensor]) -> torch.Tensor:
        """``logits``: concept -> float ``[n, values]``."""
        count = len(next(iter(logits.values())))
        rows = self.frame.expand(count, -1, -1).clone()
        for index, name in enumerate(CONCEPTS):
            likely = logits[name].float().softmax(-1)
            sharp = (logits[name].float() * self.sharpness[index]).softmax(-1).to(rows.dtype)
            sure = (likely.amax(-1, keepdim=True) >= self.floor[index]).to(rows.dtype)
            said = sure * (sharp @ self.values[name]) + (1 - sure) * self.unclear[index]
            rows[:, self._slots[index]] = rows[:, self._slots[index]] + said
        return rows


class NanoPreTrainedModel(PreTrainedModel):  # type: ignore[misc]
    """Shared part of transformers' bookkeeping."""

    config_class = NanoConfig
    base_model_prefix = "model"
    main_input_name = "input_ids"
    _no_split_modules: ClassVar[list[str]] = ["LlamaDecoderLayer"]
    _supports_sdpa = True
    _supports_attention_backend = True
    # Five milliseconds of convolutions on a CPU in either type, and colours are told apart by small differences.
    _keep_in_fp32_modules_strict: ClassVar[list[str]] = ["vision"]

    def _init_weights(self, module: nn.Module) -> None:
        """Convolutions and linear maps as torch makes them; the decoder's as Llama's."""
        if isinstance(module, nn.Embedding):
            module.weight.data.normal_(0.0, 0.02)


class NanoModel(NanoPreTrainedModel):
    """Tower, connector and decoder."""

    def __init__(self, config: NanoConfig) -> None:
        super().__init__(config)
        self.vision = NanoTower()
        self.connector = NanoConnector(config)
        self.text_model = LookingText(config.text_config, config.change_rank)
        self.post_init()

    def get_input_embeddings(self) -> nn.Module:
        embeddings: nn.Module = self.text_model.embed_tokens
        return embeddings

    def set_input_embeddings(self, value: nn.Module) -> None:
        self.text_model.embed_tokens = value

    def image_features(self, pixel_values: torch.Tensor) -> torch.Tensor:
        """``[n, image_tokens, hidden]`` of pictures, float ``[n, 3, h, w]`` from -1 to 1."""
        weight = self.vision.parts.weight
        seen = self.vision(pixel_values.to(weight.dtype))
        rows: torch.Tensor = self.connector(seen.logits)
        return rows

    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        pixel_values: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        looking: torch.Tensor | None = None,
        **options: Any,
    ) -> Any:
        """As a text model, with the pictures' rows in the placeholders' place.

        Args:
            input_ids: int64 ``[b, tokens]``.
            pixel_values: float ``[pictures, 3, h, w]``, in the order of their placeholders.
            looking: bool ``[b, tokens]``, where a picture is at the token's place or before it; may be left out where
                ``input_ids`` are whole prompts.
        """
        if looking is None and input_ids is not None:
            looking = looked_at(input_ids, self.config.image_token_id)
        if inputs_embeds is None:
            inputs_embeds = self.text_model.embed_tokens(input_ids)
        places = None if pixel_values is None or input_ids is None else input_ids == self.config.image_token_id
        if pixel_values is not None and places is not None and bool(places.any()):
            rows = self.image_features(pixel_values).to(inputs_embeds.dtype).flatten(0, 1)
            inputs_embeds = inputs_embeds.clone()
            inputs_embeds[places] = rows
        return self.text_model(inputs_embeds=inputs_embeds, looking=looking, **options)


class NanoForConditionalGeneration(NanoPreTrainedModel, GenerationMixin):  # type: ignore[misc]
    """With the head that writes."""

    _tied_weights_keys: ClassVar[dict[str, str]] = {"lm_head.weight": "model.text_model.embed_tokens.weight"}

    def __init__(self, config: NanoConfig) -> None:
        super().__init__(config)
        self.model = NanoModel(config)
        self.lm_head = nn.Linear(config.text_config.hidden_size, config.text_config.vocab_size, bias=False)
        self.post_init()

    def get_input_embeddings(self) -> nn.Module:
        return self.model.get_input_embeddings()

    def set_input_embeddings(self, value: nn.Module) -> None:
        self.model.set_input_embeddings(value)

    def get_output_embeddings(self) -> nn.Module:
        return self.lm_head

    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        logits_to_keep: int = 0,
        **options: Any,
    ) -> Any:
        """See :class:`NanoModel`; gives ``logits``."""
        from transformers.modeling_outputs import CausalLMOutputWithPast

        out = self.model(input_ids, attention_mask=attention_mask, **options)
        hidden = out.last_hidden_state[:, -logits_to_keep:] if logits_to_keep else out.last_hidden_state
        # transformers 5.24 calls it cache, those before past_key_values.
        kept = {name: out[name] for name in out.keys() & {"cache", "past_key_values"}}
        return CausalLMOutputWithPast(logits=self.lm_head(hidden), **kept)

    def prepare_inputs_for_generation(
        self, input_ids: torch.Tensor, pixel_values: torch.Tensor | None = None, **kwargs: Any
    ) -> dict[str, Any]:
        """With the pictures, which the model looks at where their placeholders are.

        ``input_ids``: of the whole sequence; what is in the cache already is cut off here.
        """
        inputs: dict[str, Any] = super().prepare_inputs_for_generation(input_ids, **kwargs)
        looking = looked_at(input_ids, self.config.image_token_id)
        inputs["looking"] = looking[:, -inputs["input_ids"].shape[1] :]
        return inputs if pixel_values is None else {**inputs, "pixel_values": pixel_values}


AutoConfig.register(MODEL_TYPE, NanoConfig)
AutoModelForImageTextToText.register(NanoConfig, NanoForConditionalGeneration)
AutoProcessor.register(NanoConfig, NanoProcessor)
