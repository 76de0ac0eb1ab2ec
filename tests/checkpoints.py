"""Tiny random checkpoints of the real architectures with the real processors, made on the spot.

Configurations, tokenizers and processors come from ``../shared/data/vlm``; tests that need them skip when it is absent.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

SHARED = Path(__file__).resolve().parents[1].parent / "shared" / "data"
SOURCES = {"smolvlm": "smolvlm-256m", "qwen3-vl": "qwen3-vl-2b", "qwen2.5-vl": "qwen2.5-vl-3b"}


def build(kind: str, out: Path) -> Path:
    """Writes a checkpoint of about 10 million random parameters (seed 0, float32) to ``out``.

    Args:
        kind: "smolvlm", "qwen3-vl", "qwen2.5-vl" or "text" (a Llama decoder with SmolVLM's tokenizer).
        out: the folder.
    """
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    if kind == "text":
        return _build_text(out)
    import torch
    from transformers import AutoConfig, AutoModelForImageTextToText

    source = SHARED / "vlm" / SOURCES[kind]
    config = AutoConfig.from_pretrained(source)
    _SHRINK[kind](config.text_config, config.vision_config)
    torch.manual_seed(0)
    model = AutoModelForImageTextToText.from_config(config, dtype=torch.float32)
    _sharpen(model)
    model.save_pretrained(out)
    _copy_processor(source, out)
    return out


def _build_text(out: Path) -> Path:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    source = SHARED / "vlm" / SOURCES["smolvlm"]
    config = LlamaConfig(
        vocab_size=49280,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=32768,
        bos_token_id=1,
        eos_token_id=2,
        tie_word_embeddings=True,
    )
    torch.manual_seed(0)
    model = LlamaForCausalLM(config)
    _sharpen(model)
    model.save_pretrained(out)
    _copy_processor(source, out, leave={"preprocessor_config.json", "processor_config.json", "chat_template.json"})
    template = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    template += "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    (out / "chat_template.jinja").write_text(template)
    return out


def _sharpen(model):
    """Larger weights in the layers. As initialised, a tiny model repeats its last token whatever it saw: a golden test
    over such outputs would notice hardly any mistake."""
    import torch

    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim >= 2 and any(part in name for part in (".layers.", ".blocks.", "connector", "merger")):
                parameter.mul_(6.0)


def _copy_processor(source: Path, out: Path, leave: frozenset[str] | set[str] = frozenset()) -> None:
    for file in source.iterdir():
        if file.name not in {"config.json", "README.md"} | leave:
            shutil.copyfile(file, out / file.name)


def _shrink_smolvlm(text, vision):
    text.update(dict(hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4))
    text.update(dict(num_key_value_heads=2, head_dim=16))
    vision.update(dict(hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4))


def _shrink_qwen3(text, vision):
    text.update(dict(hidden_size=64, intermediate_size=128, num_hidden_layers=4, num_attention_heads=4))
    text.update(dict(num_key_value_heads=2, head_dim=16))
    _rope(text)["mrope_section"] = [4, 2, 2]
    vision.update(dict(depth=4, hidden_size=64, intermediate_size=128, num_heads=4, out_hidden_size=64))
    vision.update(dict(deepstack_visual_indexes=[0, 1, 2]))


def _shrink_qwen25(text, vision):
    text.update(dict(hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4))
    text.update(dict(num_key_value_heads=2, max_window_layers=2, layer_types=text.layer_types[:2]))
    _rope(text)["mrope_section"] = [2, 3, 3]
    vision.update(dict(depth=2, hidden_size=64, intermediate_size=128, num_heads=4, out_hidden_size=64))
    vision.update(dict(fullatt_block_indexes=[1]))


def _rope(text):
    return text.rope_parameters if getattr(text, "rope_parameters", None) else text.rope_scaling


_SHRINK = {"smolvlm": _shrink_smolvlm, "qwen3-vl": _shrink_qwen3, "qwen2.5-vl": _shrink_qwen25}
