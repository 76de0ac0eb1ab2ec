"""Greedy output is transformers.generate's, however the work was cut, cached, preempted or batched: vision families."""

from __future__ import annotations

import pytest
import torch

from tests.golden.harness import assert_same, picture, user
from tests.golden.world import SCENES, SMALL_TILES, TOKENS, VISION_KINDS, world_of
from vlm_engine.encoder_cache import ImageFeatures

FINELY_CUT = {"image before text", "text only"}


@pytest.fixture(params=VISION_KINDS, scope="module")
def world(request, checkpoint):
    return world_of(request.param, checkpoint(request.param))


@pytest.mark.parametrize("chunk", [7, 16, 64, 2048])
@pytest.mark.parametrize("scene", SCENES)
def test_any_chunk_size_gives_the_reference_tokens(world, scene, chunk):
    """C1, C2, C4: prompts and pictures larger than a chunk, cut anywhere, positions going on."""
    if world.kind == "smolvlm" and chunk < 64 and scene not in FINELY_CUT:
        return  # 1,500 tokens in 200 steps; smolvlm2 is the same code with smaller tiles.
    job = world.job(scene)
    core = world.harness.core(max_num_batched_tokens=chunk, max_num_seqs=min(chunk, 64))
    world.harness.run(core, job)
    assert_same(job.tokens(), world.expected(scene))


def test_one_token_at_a_time_gives_the_reference_tokens(world):
    options = SMALL_TILES.get(world.kind, {})
    messages = user(picture(3, 64, 64), "Who?")
    job = world.harness.greedy(messages, TOKENS, **options)
    core = world.harness.core(max_num_batched_tokens=1, max_num_seqs=1)
    world.harness.run(core, job)
    assert_same(job.tokens(), world.reference.generate(messages, TOKENS, **options))


@pytest.mark.parametrize("caching", [True, False])
def test_prefix_cache_cold_warm_and_off(world, caching):
    core = world.harness.core(enable_prefix_caching=caching, max_num_batched_tokens=64, max_num_seqs=4)
    for run in range(2):
        job = world.job("images between text", f"run{run}")
        world.harness.run(core, job)
        assert_same(job.tokens(), world.expected("images between text"))
        # B14: the same request twice hits the cache, and says the same.
        assert (job.finish.num_cached_tokens > 0) == (caching and run == 1)


def test_c14_preempted_in_prefill_and_in_decode(world):
    """Two requests in a cache with room for one and a half: the newer is preempted, and nothing is emitted twice."""
    scenes = ["images between text", "image before text"]
    jobs = [world.job(scene, scene, max_tokens=40) for scene in scenes]
    shape = world.harness.core().runner.shape
    per_block = shape.bytes_per_token(world.harness.checkpoint.dtype) * 16
    needed = [-(-(len(j.prompt.token_ids) + 40) // 16) for j in jobs]
    core = world.harness.core(kv_cache_memory=per_block * (sum(needed) - 2), max_num_batched_tokens=64, max_num_seqs=4)
    world.harness.run(core, *jobs)
    assert core.metrics.value("num_preemptions") >= 1
    for job, scene in zip(jobs, scenes, strict=True):
        assert_same(job.tokens(), world.expected(scene, 40))


def test_c7_with_seven_batch_mates(world):
    jobs = [world.job(scene, scene) for scene in SCENES]
    jobs += [world.job(scene, f"{scene} again") for scene in ("text only", "image after text")]
    core = world.harness.core(max_num_batched_tokens=48, max_num_seqs=8)
    world.harness.run(core, *jobs)
    for job in jobs:
        assert_same(job.tokens(), world.expected(job.request_id.removesuffix(" again")))


def test_n_outputs_share_the_prompt_and_are_all_the_reference(world):
    job = world.job("image before text", n=3)
    core = world.harness.core(max_num_batched_tokens=64, max_num_seqs=8)
    world.harness.run(core, job)
    for index in range(3):
        assert_same(job.tokens(index), world.expected("image before text"))
    followers = [o for o in job.outputs if o.index > 0]
    assert all(o.num_cached_tokens >= len(job.prompt.token_ids) // 16 * 16 - 16 for o in followers)


def test_b1_a_different_picture_is_not_a_cache_hit(world):
    """And the two answers differ, or these tests would not notice features that are lost or mixed up."""
    core = world.harness.core(max_num_seqs=4, max_num_batched_tokens=64)
    answers = []
    for seed in (1, 2):
        messages = user("Look at this:", picture(seed, 120, 90), "Colour?")
        job = world.harness.greedy(messages, TOKENS, name=f"r{seed}")
        world.harness.run(core, job)
        first_feature = job.prompt.images[0].token_indices[0]
        assert job.finish.num_cached_tokens <= first_feature
        answers.append(job.tokens())
    assert_same(answers[1], world.reference.generate(messages, TOKENS))
    if world.kind != "nano":  # its tower has eight words for a picture, and finds two of noise alike
        assert answers[0] != answers[1]


def test_b10_the_same_picture_twice_is_encoded_once(world):
    job = world.job("same image twice")
    core = world.harness.core(max_num_batched_tokens=64, max_num_seqs=4)
    world.harness.run(core, job)
    assert core.metrics.value("encoder_items") == 1


def test_literal_image_tokens_in_user_text_stay_text(world):
    token = world.harness.checkpoint.processor.image_token
    job = world.harness.greedy(user(f"What does {token} mean?", picture(1, 64, 64)), 2)
    special = world.harness.checkpoint.processor.image_token_id
    assert sum(1 for t in job.prompt.token_ids if t == special) == job.prompt.images[0].num_tokens
    assert token in world.harness.checkpoint.tokenizer.decode(job.prompt.token_ids)


@pytest.mark.parametrize("mistake", ["features one row off", "positions one off after the prompt", "rows for columns"])
def test_the_scenes_would_notice(world, mistake, monkeypatch):
    """What these tests are worth: a small mistake put into the family on purpose changes a scene's answer."""
    family = world.harness.checkpoint.family
    encode, positions = family.encode, family.positions
    if mistake == "features one row off":
        monkeypatch.setattr(family, "encode", lambda inputs: _rolled(encode(inputs)))
    elif mistake == "positions one off after the prompt":
        monkeypatch.setattr(family, "positions", lambda ids, images: (positions(ids, images)[0], 1))
    elif world.kind.startswith("qwen"):
        monkeypatch.setattr(family, "positions", lambda ids, images: _transposed(*positions(ids, images)))
    else:
        return  # one axis of positions only.
    differ = []
    for scene in ("image before text", "images between text", "images side by side"):
        job = world.harness.greedy(world.messages(scene), TOKENS)
        world.harness.run(world.harness.core(max_num_batched_tokens=512), job, check=False)
        differ.append(job.tokens() != world.expected(scene)[0])
    assert any(differ)


def _rolled(features: ImageFeatures) -> ImageFeatures:
    return ImageFeatures(features.rows.roll(1, 0), tuple(level.roll(1, 0) for level in features.deepstack))


def _transposed(positions: torch.Tensor, delta: int) -> tuple[torch.Tensor, int]:
    return positions[[0, 2, 1]], delta
