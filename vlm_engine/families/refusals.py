"""What the paged engine would compute wrongly and is therefore refused: by name, and by the decoder's configuration."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vlm_engine.errors import ModelLoadError

if TYPE_CHECKING:
    from transformers import PretrainedConfig

BOTH_WAYS = "its picture tokens attend to each other both ways, and a prefill chunk may end inside a picture"
WINDOW = "its layers attend within a sliding window, which the paged attention doesn't apply"
SOME_WINDOW = "checkpoints of it attend within a sliding window, which the paged attention doesn't apply"
CHUNKED = "its layers attend within chunks, which the paged attention doesn't apply"
STATE = "its layers carry a running state, which KV pages, prefix cache and preemption don't keep"
CROSS = "it attends across to an encoder's states, which KV pages don't hold"
LONGEST = "its rotary frequencies depend on the longest request of a batch, so that batch mates would change an answer"
SOFTCAP = "its attention scores are capped, which the paged attention doesn't apply"
SINKS = "its attention has sinks beside a sliding window, which the paged attention doesn't apply"
BIAS = "its positions are a bias on the attention scores, which the paged attention doesn't apply"

UNSAFE: dict[str, str] = {
    "gemma3": BOTH_WAYS,
    "gemma4": BOTH_WAYS,
    "molmo2": BOTH_WAYS,
    "paligemma": BOTH_WAYS,
    "aya_vision": WINDOW,
    "cohere2": WINDOW,
    "cohere2_vision": WINDOW,
    "exaone4": WINDOW,
    "gemma3_text": WINDOW,
    "gemma3n": WINDOW,
    "gemma3n_text": WINDOW,
    "gemma4_text": WINDOW,
    "idefics2": SOME_WINDOW,
    "ministral": WINDOW,
    "mistral": SOME_WINDOW,
    "olmo3": WINDOW,
    "llama4": CHUNKED,
    "llama4_text": CHUNKED,
    "bamba": STATE,
    "falcon_h1": STATE,
    "falcon_mamba": STATE,
    "granitemoehybrid": STATE,
    "jamba": STATE,
    "lfm2": STATE,
    "lfm2_vl": STATE,
    "mamba": STATE,
    "mamba2": STATE,
    "minimax": STATE,
    "nemotron_h": STATE,
    "qwen3_5": STATE,
    "qwen3_next": STATE,
    "recurrent_gemma": STATE,
    "zamba2": STATE,
    "florence2": CROSS,
    "mllama": CROSS,
    "t5": CROSS,
    "phi3": LONGEST,
    "phi4_multimodal": LONGEST,
    "gemma2": SOFTCAP,
    "gpt_oss": SINKS,
    "bloom": BIAS,
    "mpt": BIAS,
}
"""Model types and why they are refused; they are named so that the message says more than "not supported"."""

DECODERS = frozenset({"llama", "qwen2", "qwen3", "qwen2_vl_text", "qwen2_5_vl_text", "qwen3_vl_text"})
"""Decoders whose attention is known to be full, causal, and by keys and values alone."""


def refuse_unsupported(config: PretrainedConfig) -> None:
    """Looks at the decoder's configuration, before any weights are read.

    Raises:
        ModelLoadError: the paged attention would compute it wrongly; names what and why.
    """
    text = config.get_text_config()
    kind = text.model_type
    if kind not in DECODERS:
        reason = UNSAFE.get(kind, f"tested are {', '.join(sorted(DECODERS))}")
        raise ModelLoadError(f"the decoder of this {config.model_type} is of type {kind!r}, not supported: {reason}")
    layers = set(getattr(text, "layer_types", None) or ())
    window = getattr(text, "sliding_window", None)
    if layers - {"full_attention"}:
        problem = f"has layers of kind {', '.join(sorted(layers - {'full_attention'}))}"
    elif window is not None and not layers:
        problem = f"attends within a sliding window of {window} tokens"
    elif getattr(text, "use_bidirectional_attention", False) or getattr(text, "is_causal", True) is False:
        problem = "attends both ways"
    elif getattr(text, "attn_logit_softcapping", None) is not None:
        problem = "caps its attention scores"
    elif "longrope" in rope_types(text):
        problem = "has rotary frequencies that depend on the longest request of a batch (longrope)"
    else:
        return
    raise ModelLoadError(f"this {config.model_type} {problem}, not supported: only full causal attention is")


def rope_types(text: PretrainedConfig) -> set[str]:
    """Kinds of rotary scaling in a decoder's configuration.

    "dynamic" scales only past ``max_position_embeddings``, which no request of the engine ever is; so it is harmless.
    """
    parameters = getattr(text, "rope_parameters", None) or getattr(text, "rope_scaling", None) or {}
    nested = [value for value in parameters.values() if isinstance(value, dict)]
    return {str(each.get("rope_type", each.get("type", "default"))) for each in (nested or [parameters])}
