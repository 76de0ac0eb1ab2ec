"""Where pictures stand: first of all tokens, last of all, one right after another; of which sizes; what is encoded."""

from __future__ import annotations

import asyncio

import pytest

from tests.golden.harness import Job, assert_same, picture, user
from tests.golden.world import SMALL_TILES, TOKENS, VISION_KINDS, world_of
from vlm_engine import EngineConfig, SamplingParams, VLMEngine
from vlm_engine.chat import ChatRenderer

GREEDY = SamplingParams(temperature=0.0, max_tokens=TOKENS, ignore_eos=True)
AROUND = {"qwen": "<|vision_start|>{}<|vision_end|>"}
"""Without the tokens around a picture, get_rope_index would take two adjacent ones for one (template and paper have
them); the other families need none."""

INPUTS = {
    "smolvlm": {"pixel_values"},
    "smolvlm2": {"pixel_values"},
    "qwen2-vl": {"pixel_values", "image_grid_thw"},
    "qwen2.5-vl": {"pixel_values", "image_grid_thw"},
    "qwen3-vl": {"pixel_values", "image_grid_thw"},
    "llava-onevision": {"pixel_values", "image_sizes", "batch_num_images"},
    "internvl": {"pixel_values"},
    "nano": {"pixel_values"},
}


@pytest.fixture(params=VISION_KINDS, scope="module")
def world(request, checkpoint):
    return world_of(request.param, checkpoint(request.param))


@pytest.mark.parametrize("chunk", [16, 2048])
@pytest.mark.parametrize("text", ["{0}{0} which?", "Which of these? {0}{0}", "{0}", "{0} and then {0}{0}"])
def test_pictures_at_the_very_edges_of_a_prompt(world, text, chunk):
    """No chat template: the first or last token of the prompt belongs to a picture; two stand side by side."""
    placeholder = world.harness.checkpoint.processor.image_token
    around = next((a for kind, a in AROUND.items() if world.kind.startswith(kind)), "{}")
    text = text.format(around.format(placeholder))
    images = [picture(20 + i, 40 + 8 * i, 40) for i in range(text.count(placeholder))]
    if world.kind == "smolvlm" and (chunk == 16 or len(images) > 1):
        return  # 832 tokens a picture; smolvlm2 is the same code with smaller tiles.
    job = Job(world.harness.prepare_text(text, images), GREEDY, "r")
    world.harness.run(world.harness.core(max_num_batched_tokens=chunk, max_num_seqs=4), job)
    expected = world.reference.complete(text, images, TOKENS)
    assert list(job.prompt.token_ids) == world.reference.prompt_ids
    assert_same(job.tokens(), expected)


def test_a_picture_in_an_earlier_turn(world):
    messages = [
        *user(picture(1, 64, 64), "Who is this?"),
        {"role": "assistant", "content": [{"type": "text", "text": "A man with a red bag."}]},
        *user("And here?", picture(2, 64, 80)),
    ]
    job = world.harness.greedy(messages, TOKENS, **SMALL_TILES.get(world.kind, {}))
    world.harness.run(world.harness.core(max_num_batched_tokens=64, max_num_seqs=4), job)
    expected = world.reference.generate(messages, TOKENS, **SMALL_TILES.get(world.kind, {}))
    assert list(job.prompt.token_ids) == world.reference.prompt_ids
    assert_same(job.tokens(), expected)


@pytest.mark.parametrize("size", [(300, 220), (60, 400), (56, 56), (397, 33), (30, 20)])
def test_llava_onevision_unpads_by_the_original_size(checkpoint, size):
    """From one tile to 24 of them scaled down (anyres_max_9), wide and tall with odd remainders."""
    world = world_of("llava-onevision", checkpoint("llava-onevision"))
    messages = user(picture(7, *size), "Size?")
    job = world.harness.greedy(messages, TOKENS)
    world.harness.run(world.harness.core(max_num_batched_tokens=48, max_num_seqs=4), job)
    expected = world.reference.generate(messages, TOKENS)
    assert list(job.prompt.token_ids) == world.reference.prompt_ids
    assert_same(job.tokens(), expected)


@pytest.mark.parametrize("size", [(300, 220), (60, 400), (56, 56), (700, 50)])
def test_internvl_tiles_by_aspect_ratio(checkpoint, size):
    """1 tile without a whole view, and up to 12 with one."""
    world = world_of("internvl", checkpoint("internvl"))
    messages = user(picture(7, *size), "Size?")
    job = world.harness.greedy(messages, TOKENS)
    world.harness.run(world.harness.core(max_num_batched_tokens=48, max_num_seqs=4), job)
    expected = world.reference.generate(messages, TOKENS)
    assert list(job.prompt.token_ids) == world.reference.prompt_ids
    assert_same(job.tokens(), expected)


def test_a_picture_alone_is_not_a_picture_among_others(checkpoint):
    """LLaVA-OneVision tiles only a picture that is alone in its prompt; the two must not share features."""
    world = world_of("llava-onevision", checkpoint("llava-onevision"))
    alone = world.harness.prepare(user(picture(1, 120, 90), "x")).images[0]
    first, second = world.harness.prepare(user(picture(1, 120, 90), picture(2, 50, 60), "x")).images
    assert alone.num_tokens > 17
    assert first.num_tokens == second.num_tokens == 17  # the whole view and a newline.
    assert first.content_hash != alone.content_hash
    assert first.inputs["pixel_values"].shape[1] == 1


def test_only_what_the_encoder_reads_is_kept(world):
    """Per picture: no text arrays, no padding masks of ones, and one picture's share of each."""
    prompt = world.harness.prepare(user(picture(1, 120, 90), picture(2, 50, 60), "x"))
    for image in prompt.images:
        assert set(image.inputs) == INPUTS[world.kind]
        checkpoint = world.harness.checkpoint
        features = checkpoint.family.encode(checkpoint.encoder.scaled(image.inputs))
        assert len(features.rows) == image.num_tokens
        assert all(len(level) == image.num_tokens for level in features.deepstack)
        assert len(features.deepstack) == checkpoint.family.feature_levels - 1


def test_defaults_of_the_checkpoint_do_not_leak_into_explicit_parameters(checkpoint, monkeypatch):
    """Qwen2.5-VL ships repetition_penalty 1.05; 0.2 in its place turns a text over. Only who asks for it gets it."""
    world = world_of("qwen2.5-vl", checkpoint("qwen2.5-vl"))
    assert world.reference.model.generation_config.repetition_penalty == 1.05
    assert world.harness.intake.default_params.repetition_penalty == 1.05
    monkeypatch.setattr(world.harness.checkpoint.generation, "repetition_penalty", 0.2)
    prompt = world.harness.prepare(world.messages("image before text"))
    tokens = {}
    for penalty in (1.0, world.harness.intake.default_params.repetition_penalty):
        params = SamplingParams(temperature=0.0, max_tokens=TOKENS, ignore_eos=True, repetition_penalty=penalty)
        job = Job(prompt, params, f"r{penalty}")
        world.harness.run(world.harness.core(), job)
        tokens[penalty] = job.tokens()
        messages = world.messages("image before text")
        assert_same(job.tokens(), world.reference.generate(messages, TOKENS, repetition_penalty=penalty))
    assert tokens[1.0] != tokens[0.2]


def test_a_template_that_puts_pictures_first(checkpoint):
    """LLaVA-OneVision's own template does, whatever their order in a message; text and pictures must still match."""
    world = world_of("llava-onevision", checkpoint("llava-onevision"))
    loaded, reference = world.harness.checkpoint, world.reference
    template = (
        "{% for m in messages %}<|im_start|>{{ m['role'] }} "
        "{% for part in m['content'] | selectattr('type', 'equalto', 'image') %}<image>{% endfor %}"
        "{% for part in m['content'] | selectattr('type', 'equalto', 'text') %}{{ '\n' + part['text'] }}{% endfor %}"
        "<|im_end|>{% endfor %}{{ '<|im_start|>assistant\n' }}"
    )
    chat = ChatRenderer(loaded.tokenizer, template, loaded.processor.image_token)
    rendered = chat.render(user("Left:", picture(1, 50, 60), "right:", picture(2, 90, 60)))
    pictures = [picture(1, 50, 60), picture(2, 90, 60)]
    text = "<|im_start|>user <image><image>\nLeft:\nright:<|im_end|><|im_start|>assistant\n"
    expected = reference.complete(text, pictures, TOKENS)
    prompt = world.harness.prepare_text(text, list(rendered.images))
    assert [len(piece) for piece in rendered.pieces] == [
        len(loaded.tokenizer.encode(piece, add_special_tokens=False)) for piece in text.split("<image>")
    ]
    job = Job(prompt, GREEDY, "r")
    world.harness.run(world.harness.core(max_num_batched_tokens=32, max_num_seqs=4), job)
    assert list(prompt.token_ids) == reference.prompt_ids
    assert_same(job.tokens(), expected)


async def test_through_the_real_workers_and_the_engine_thread(checkpoint):
    """The other tests run the workers' code in their own process; here it must reach them that pictures are several."""
    world = world_of("llava-onevision", checkpoint("llava-onevision"))
    path = str(checkpoint("llava-onevision"))
    engine = VLMEngine(EngineConfig(model=path, dtype="float32", device="cpu", kv_cache_memory=1 << 24))
    await asyncio.to_thread(engine.start)
    try:
        for scene in ("image before text", "images between text"):
            pieces = [piece async for piece in engine.generate(world.messages(scene), GREEDY)]
            assert_same([token for piece in pieces for token in piece.token_ids], world.expected(scene))
    finally:
        await asyncio.to_thread(engine.shutdown)
