"""Reads what the whole model says: ``python -m training.describer.listen --set SET --out FILE``.

The engine itself runs ``nano``: sentences and JSON objects of held-out photographs, and questions without a picture
answered by it and by SmolLM2 alone. To be read by people; what can be counted is counted.
"""

from __future__ import annotations

import argparse
import asyncio
import io
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from pipeline.config.engine import DEFAULT_PROMPT, DEFAULT_SYSTEM_PROMPT
from pipeline.config.output_schema import DEFAULT_OUTPUT_SCHEMA
from pipeline.models.nano import CHAT_TEMPLATE, base_model, nano_tokenizer
from pipeline.models.ready import make_ready
from pipeline.prompts import STRUCTURE
from training.describer.words import Writer
from vlm_engine import EngineConfig, SamplingParams, VLMEngine
from vlm_engine.families.nano_concepts import CONCEPTS, UNKNOWN
from vlm_engine.structured import StructuredOutput

ASKED = (
    "What is the capital of France?",
    "What is the capital of Spain?",
    "How many hours are in a day?",
    "What is the largest animal on Earth?",
    "What do cows drink?",
    "What is the colour of grass?",
    "Who wrote Hamlet?",
    "What is three plus four?",
    "What is the chemical formula of water?",
    "Name a programming language.",
    "What is the opposite of hot?",
)


def png(image: np.ndarray[Any, Any]) -> bytes:
    """``image``: uint8 ``[h, w, 3]``, RGB."""
    out = io.BytesIO()
    Image.fromarray(image).save(out, "PNG")
    return out.getvalue()


def messages(image: bytes | None, question: str, system: str | None) -> list[dict[str, Any]]:
    """A conversation as the describer has it."""
    content: Any = question
    if image is not None:
        content = [{"type": "image", "image": image}, {"type": "text", "text": question}]
    return [*([{"role": "system", "content": system}] if system else []), {"role": "user", "content": content}]


async def answer(engine: VLMEngine, conversation: list[dict[str, Any]], params: SamplingParams) -> str:
    """The whole text."""
    return "".join([piece.text async for piece in engine.generate(conversation, params)])  # type: ignore[arg-type]


def truth(concepts: np.ndarray[Any, Any]) -> dict[str, str]:
    """What is known of a photograph, by concept."""
    return {
        name: values[int(index)]
        for (name, values), index in zip(CONCEPTS.items(), concepts, strict=True)
        if index != UNKNOWN
    }


async def listen(engine: VLMEngine, folder: Path, sentences: int, objects: int) -> dict[str, Any]:
    """Sentences, JSON objects, answers."""
    held = np.load(folder / "held_out.npz")
    images, concepts = held["images"], held["concepts"]
    order = np.linspace(0, len(images) - 1, max(sentences, objects)).astype(int)
    plain = SamplingParams(temperature=0.0, max_tokens=60)
    outline = json.dumps(DEFAULT_OUTPUT_SCHEMA, ensure_ascii=False, separators=(",", ":"))
    system = f"{DEFAULT_SYSTEM_PROMPT}\n\n{STRUCTURE}\n{outline}"
    schema = StructuredOutput("json_schema", json.dumps(DEFAULT_OUTPUT_SCHEMA), one_line=True)
    bound = SamplingParams(temperature=0.0, max_tokens=300, structured=schema)
    rows: list[dict[str, Any]] = [
        {"photo": str(held["numbers"][index]), "truth": truth(concepts[index])} for index in order
    ]

    async def add(row: dict[str, Any], index: int, key: str, system: str, params: SamplingParams) -> None:
        row[key] = await answer(engine, messages(png(images[index]), DEFAULT_PROMPT, system), params)

    async with asyncio.TaskGroup() as tasks:  # all at once: the engine makes batches of them
        for number, (row, index) in enumerate(zip(rows, order, strict=True)):
            if number < sentences:
                tasks.create_task(add(row, index, "sentence", DEFAULT_SYSTEM_PROMPT, plain))
            if number < objects:
                tasks.create_task(add(row, index, "json", system, bound))
    valid = sum(fits(row["json"]) for row in rows if "json" in row)
    return {"valid_json": f"{valid} of {min(objects, len(order))}", "said": rows}


async def chat(engine: VLMEngine) -> dict[str, str]:
    """Answers to questions without a picture."""
    plain = SamplingParams(temperature=0.0, max_tokens=60)
    return {question: await answer(engine, messages(None, question, None), plain) for question in ASKED}


def fits(text: str) -> bool:
    """Whether it is JSON by the schema."""
    import jsonschema

    try:
        jsonschema.validate(json.loads(text), DEFAULT_OUTPUT_SCHEMA)
    except (ValueError, jsonschema.ValidationError):
        return False
    return True


def alone() -> dict[str, str]:
    """SmolLM2's own answers, by transformers, in single precision."""
    import torch

    tokenizer = nano_tokenizer()
    tokenizer.chat_template = CHAT_TEMPLATE
    model = base_model(tokenizer, torch.bfloat16).float()  # the weights are kept in 16 bits
    writer, answers = Writer(tokenizer, model.config.image_tokens, model.config.image_token_id), {}
    for question in ASKED:
        prompt = writer.chat(question)
        out = model.generate(torch.tensor([prompt]), max_new_tokens=60, do_sample=False, eos_token_id=2, pad_token_id=2)
        answers[question] = tokenizer.decode(out[0, len(prompt) :], skip_special_tokens=True)
    return answers


@contextmanager
def started(dtype: str) -> Iterator[VLMEngine]:
    """The engine with ``nano``."""
    model = make_ready("nano", lambda text, done: None)
    engine = VLMEngine(EngineConfig(model=model, dtype=dtype, kv_cache_memory=1 << 28))
    engine.start()
    try:
        yield engine
    finally:
        engine.shutdown()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--set", dest="folder", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--sentences", type=int, default=100)
    parser.add_argument("--objects", type=int, default=50)
    options = parser.parse_args()
    with started("auto") as engine:
        result = asyncio.run(listen(engine, options.folder, options.sentences, options.objects))
    # In 16 bits near ties fall as the order of sums has it, which is another one in the engine.
    with started("float32") as engine:
        result["chats"] = asyncio.run(chat(engine))
    result["smollm2_alone"] = alone()
    same = sum(result["chats"][question] == result["smollm2_alone"][question] for question in ASKED)
    result["same_answers"] = f"{same} of {len(ASKED)}"
    options.out.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n")
    print(json.dumps(result, indent=1, ensure_ascii=False))


if __name__ == "__main__":
    main()
