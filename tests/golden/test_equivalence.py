"""Greedy output is transformers.generate's, however the work was cut, cached, preempted or batched."""

from __future__ import annotations

from functools import lru_cache

import pytest

from tests.golden.harness import Harness, Job, Reference, assert_same, picture, user
from vlm_engine import InvalidRequestError, SamplingParams

KINDS = ["smolvlm", "qwen3-vl", "qwen2.5-vl"]
TOKENS = 12


class World:
    """One checkpoint, its harness, its reference, and reference answers computed once."""

    def __init__(self, path) -> None:
        self.harness = Harness(path)
        self.reference = Reference(path)
        self._answers = {}

    def expected(self, name, messages):
        if name not in self._answers:
            self._answers[name] = self.reference.generate(messages, TOKENS)
        return self._answers[name]


@lru_cache(maxsize=1)
def _world(path):
    return World(path)


@pytest.fixture(params=KINDS, scope="module")
def world(request, checkpoint):
    return _world(checkpoint(request.param))


SCENES = {
    "image before text": lambda: user(picture(1, 120, 90), "Describe the person."),
    "image after text": lambda: user("What is shown here, please?", picture(1, 120, 90)),
    "images between text": lambda: user("First:", picture(1, 120, 90), "second:", picture(2, 64, 150), "compare them."),
    "same image twice": lambda: user(picture(1, 120, 90), "and again", picture(1, 120, 90), "same?"),
    "text only": lambda: user("Tell me about cameras and the people that walk by them all day long."),
}


@pytest.mark.parametrize("chunk", [7, 16, 64, 2048])
@pytest.mark.parametrize("scene", SCENES)
def test_any_chunk_size_gives_the_reference_tokens(world, scene, chunk):
    messages = SCENES[scene]()
    job = world.harness.greedy(messages, TOKENS)
    core = world.harness.core(max_num_batched_tokens=chunk, max_num_seqs=min(chunk, 64))
    world.harness.run(core, job)
    expected = world.expected(scene, messages)
    assert len(job.prompt.token_ids) == world.reference.prompt_length
    assert_same(job.tokens(), expected)


def test_one_token_at_a_time_gives_the_reference_tokens(world):
    messages = user(picture(3, 64, 64), "Who?")
    job = world.harness.greedy(messages, TOKENS, **_small(world))
    core = world.harness.core(max_num_batched_tokens=1, max_num_seqs=1)
    world.harness.run(core, job)
    assert_same(job.tokens(), world.reference.generate(messages, TOKENS, **_small(world)))


@pytest.mark.parametrize("caching", [True, False])
def test_prefix_cache_cold_warm_and_off(world, caching):
    messages = SCENES["images between text"]()
    core = world.harness.core(enable_prefix_caching=caching, max_num_batched_tokens=64, max_num_seqs=4)
    for run in range(2):
        job = world.harness.greedy(messages, TOKENS, name=f"run{run}")
        world.harness.run(core, job)
        assert_same(job.tokens(), world.expected("images between text", messages))
        # B14: the same request twice hits the cache, and says the same.
        assert (job.finish.num_cached_tokens > 0) == (caching and run == 1)


def test_c14_preempted_in_prefill_and_in_decode(world):
    """Two requests in a cache with room for one and a half: the newer is preempted, and nothing is emitted twice."""
    messages = SCENES["images between text"]()
    jobs = [
        world.harness.greedy(messages if i == 0 else user("Count to ten.", picture(9, 90, 90)), 40, f"r{i}")
        for i in (0, 1)
    ]
    shape = world.harness.core().runner.shape
    per_block = shape.bytes_per_token(world.harness.checkpoint.dtype) * 16
    needed = [-(-(len(j.prompt.token_ids) + 40) // 16) for j in jobs]
    core = world.harness.core(kv_cache_memory=per_block * (sum(needed) - 2), max_num_batched_tokens=64, max_num_seqs=4)
    world.harness.run(core, *jobs)
    assert core.metrics.value("num_preemptions") >= 1
    for job, prompt in zip(jobs, (messages, user("Count to ten.", picture(9, 90, 90))), strict=True):
        assert_same(job.tokens(), world.reference.generate(prompt, 40))


def test_c7_with_seven_batch_mates(world):
    scenes = list(SCENES.values()) + [lambda i=i: user(f"Number {i}", picture(10 + i, 70 + i, 60)) for i in range(3)]
    jobs = [world.harness.greedy(scene(), TOKENS, name=f"r{i}") for i, scene in enumerate(scenes)]
    core = world.harness.core(max_num_batched_tokens=48, max_num_seqs=8)
    world.harness.run(core, *jobs)
    for job, scene in zip(jobs, scenes, strict=True):
        assert_same(job.tokens(), world.reference.generate(scene(), TOKENS))


def test_n_outputs_share_the_prompt_and_are_all_the_reference(world):
    messages = SCENES["image before text"]()
    job = world.harness.greedy(messages, TOKENS)
    job.params = SamplingParams(temperature=0.0, max_tokens=TOKENS, ignore_eos=True, n=3)
    core = world.harness.core(max_num_batched_tokens=64, max_num_seqs=8)
    world.harness.run(core, job)
    for index in range(3):
        assert_same(job.tokens(index), world.expected("image before text", messages))
    followers = [o for o in job.outputs if o.index > 0]
    assert all(o.num_cached_tokens >= len(job.prompt.token_ids) // 16 * 16 - 16 for o in followers)


def test_b1_a_different_picture_is_not_a_cache_hit(world):
    core = world.harness.core(max_num_seqs=4, max_num_batched_tokens=64)
    answers = []
    for seed in (1, 2):
        job = world.harness.greedy(user("Look at this:", picture(seed, 120, 90), "Colour?"), TOKENS, name=f"r{seed}")
        world.harness.run(core, job)
        first_feature = job.prompt.images[0].token_indices[0]
        assert job.finish.num_cached_tokens <= first_feature
        answers.append(job.tokens())
    assert_same(answers[1], world.reference.generate(user("Look at this:", picture(2, 120, 90), "Colour?"), TOKENS))


def test_b10_the_same_picture_twice_is_encoded_once(world):
    job = world.harness.greedy(SCENES["same image twice"](), TOKENS)
    core = world.harness.core(max_num_batched_tokens=64, max_num_seqs=4)
    world.harness.run(core, job)
    assert core.metrics.value("encoder_items") == 1


def test_literal_image_tokens_in_user_text_stay_text(world):
    token = world.harness.checkpoint.processor.image_token
    job = world.harness.greedy(user(f"What does {token} mean?", picture(1, 64, 64)), 2)
    special = world.harness.checkpoint.processor.image_token_id
    assert sum(1 for t in job.prompt.token_ids if t == special) == job.prompt.images[0].num_tokens
    assert token in world.harness.checkpoint.tokenizer.decode(job.prompt.token_ids)


def test_text_family_matches_and_refuses_pictures(checkpoint):
    world = World(checkpoint("text"))
    messages = SCENES["text only"]()
    for chunk in (1, 7, 2048):
        job = world.harness.greedy(messages, TOKENS, name=f"r{chunk}")
        world.harness.run(world.harness.core(max_num_batched_tokens=chunk, max_num_seqs=1), job)
        assert_same(job.tokens(), world.expected("text", messages))
    with pytest.raises(InvalidRequestError, match="takes no pictures"):
        world.harness.prepare(user(picture(1, 64, 64)))


def test_a_thousand_tokens_at_256_are_256_256_256_232(checkpoint):
    """One of the two scenes that started the project."""
    harness = Harness(checkpoint("text"))
    base = harness.greedy(user("x"), 4).prompt.token_ids
    prompt_ids = (base * 1000)[:1000]
    whole = harness.front._assemble((prompt_ids,), ())
    params = SamplingParams(temperature=0.0, max_tokens=4, ignore_eos=True)
    cut, one = Job(whole, params, "cut"), Job(whole, params, "one")
    core = harness.core(max_num_batched_tokens=256)
    harness.run(core, cut)
    assert [r.prefill_tokens for r in core.steps.records()[:4]] == [256, 256, 256, 232]
    harness.run(harness.core(), one)
    assert cut.tokens() == one.tokens()


def _small(world):
    return {"do_image_splitting": False} if world.harness.checkpoint.family.name == "idefics3" else {}
