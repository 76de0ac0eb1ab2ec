"""What the paged engine would compute wrongly is refused by name, with the reason, before any weights are read."""

from __future__ import annotations

from pathlib import Path

import pytest
from transformers import (
    Gemma2Config,
    Gemma3Config,
    LlamaConfig,
    LlavaOnevisionConfig,
    MistralConfig,
    PaliGemmaConfig,
    PreTrainedConfig,
    Qwen2Config,
    Qwen2VLConfig,
    Qwen3Config,
)
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from vlm_engine import EngineConfig, ModelLoadError
from vlm_engine.families import SUPPORTED, family_of
from vlm_engine.families.refusals import UNSAFE
from vlm_engine.loader import load

TINY = dict(hidden_size=32, intermediate_size=64, num_hidden_layers=4, num_attention_heads=2, num_key_value_heads=1)
VISION = dict(hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2, image_size=56)
LONGROPE = dict(rope_type="longrope", short_factor=[1.0] * 8, long_factor=[2.0] * 8, factor=4.0)
LONGROPE |= dict(original_max_position_embeddings=512, rope_theta=1e4)

REFUSED: dict[str, tuple[PreTrainedConfig, str]] = {
    "gemma3": (
        Gemma3Config(text_config=TINY | dict(head_dim=16), vision_config=VISION | dict(patch_size=14)),
        "'gemma3' is not supported: its picture tokens attend to each other both ways",
    ),
    "paligemma": (
        PaliGemmaConfig(text_config=TINY | dict(model_type="gemma"), vision_config=VISION | dict(patch_size=14)),
        "'paligemma' is not supported: its picture tokens attend to each other both ways",
    ),
    "mistral": (MistralConfig(**TINY, sliding_window=16), "'mistral' is not supported: .* within a sliding window"),
    "gemma2": (Gemma2Config(**TINY, head_dim=16), "'gemma2' is not supported: its attention scores are capped"),
    "qwen2 with windows": (
        Qwen2Config(**TINY, use_sliding_window=True, sliding_window=16, max_window_layers=2),
        "this qwen2 has layers of kind sliding_attention, not supported: only full causal attention is",
    ),
    "qwen3 with windows": (
        Qwen3Config(**TINY, use_sliding_window=True, sliding_window=16, max_window_layers=0),
        "this qwen3 has layers of kind sliding_attention",
    ),
    "qwen2-vl with windows": (
        Qwen2VLConfig(text_config=TINY | dict(use_sliding_window=True, sliding_window=16, max_window_layers=2)),
        "this qwen2_vl has layers of kind sliding_attention",
    ),
    "a window without layer kinds": (
        LlamaConfig(**TINY, sliding_window=16),
        "this llama attends within a sliding window of 16 tokens",
    ),
    "llama with longrope": (
        LlamaConfig(**TINY, max_position_embeddings=2048, rope_parameters=LONGROPE),
        "this llama has rotary frequencies that depend on the longest request of a batch",
    ),
    "a known family over a decoder that caps its scores": (
        LlavaOnevisionConfig(text_config=Gemma2Config(**TINY, head_dim=16), vision_config=VISION),
        "the decoder of this llava_onevision is of type 'gemma2', not supported: its attention scores are capped",
    ),
    "a known family over a decoder with windows": (
        LlavaOnevisionConfig(text_config=MistralConfig(**TINY), vision_config=VISION),
        "the decoder of this llava_onevision is of type 'mistral', not supported: .* within a sliding window",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_by_name_before_weights_are_read(name, tmp_path):
    """The folder holds nothing but the configuration: whoever looked for weights would say so instead."""
    config, message = REFUSED[name]
    config.save_pretrained(tmp_path)
    with pytest.raises(ModelLoadError, match=message):
        load(EngineConfig(model=str(tmp_path), device="cpu"))


@pytest.mark.parametrize("kind", [kind for kind in UNSAFE if kind in CONFIG_MAPPING])
def test_every_named_refusal_is_a_type_of_transformers_and_says_why(kind):
    with pytest.raises(ModelLoadError, match=f"'{kind}' is not supported: {UNSAFE[kind]}"):
        family_of(CONFIG_MAPPING[kind]())


def test_refusals_are_not_supported_types_and_are_spelt_as_transformers_does():
    assert not UNSAFE.keys() & SUPPORTED.keys()
    unknown = UNSAFE.keys() - CONFIG_MAPPING.keys()
    assert len(unknown) < len(UNSAFE) / 4, f"an old transformers, or misspelt: {unknown}"


def test_an_unknown_type_is_refused_with_what_is_supported(tmp_path):
    CONFIG_MAPPING["gpt2"](n_layer=1, n_embd=8, n_head=1).save_pretrained(tmp_path)
    with pytest.raises(ModelLoadError, match=r"'gpt2' is not supported: supported are .*qwen3_vl, smolvlm"):
        load(EngineConfig(model=str(tmp_path), device="cpu"))


@pytest.mark.parametrize("kind", SUPPORTED)
def test_supported_types_pass_with_their_default_configuration(kind):
    assert family_of(CONFIG_MAPPING[kind]()) is SUPPORTED[kind]


@pytest.mark.parametrize("rope", ["default", "linear", "dynamic", "yarn", "llama3"])
def test_rotary_scaling_that_does_not_depend_on_batch_mates_passes(rope):
    numbers = dict(rope_type=rope, factor=2.0, rope_theta=1e4, original_max_position_embeddings=1024)
    numbers |= dict(low_freq_factor=1.0, high_freq_factor=4.0)
    family_of(LlamaConfig(**TINY, rope_parameters=numbers, max_position_embeddings=2048))


def test_the_documentation_names_every_type():
    page = (Path(__file__).resolve().parents[2] / "docs" / "models.md").read_text()
    supported, refused = page.split("## Refused")
    assert {kind for kind in SUPPORTED if f"`{kind}`" not in supported} == set()
    assert {kind for kind in UNSAFE if f"`{kind}`" not in refused} == set()
