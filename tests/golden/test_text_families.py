"""Greedy output is transformers.generate's, however the work was cut, cached, preempted or batched: text decoders."""

from __future__ import annotations

import pytest

from tests.golden.harness import assert_same, picture, user
from tests.golden.world import TALKS, TEXT_KINDS, TOKENS, world_of
from vlm_engine import InvalidRequestError


@pytest.fixture(params=TEXT_KINDS, scope="module")
def world(request, checkpoint):
    return world_of(request.param, checkpoint(request.param))


@pytest.mark.parametrize("chunk", [1, 7, 16, 64, 2048])
@pytest.mark.parametrize("talk", TALKS)
def test_any_chunk_size_gives_the_reference_tokens(world, talk, chunk):
    job = world.job(talk)
    world.harness.run(world.harness.core(max_num_batched_tokens=chunk, max_num_seqs=min(chunk, 64)), job)
    assert_same(job.tokens(), world.expected(talk))


@pytest.mark.parametrize("caching", [True, False])
def test_prefix_cache_cold_warm_and_off(world, caching):
    core = world.harness.core(enable_prefix_caching=caching, max_num_batched_tokens=16, max_num_seqs=4)
    for run in range(2):
        job = world.job("not English", f"run{run}")
        world.harness.run(core, job)
        assert_same(job.tokens(), world.expected("not English"))
        assert (job.finish.num_cached_tokens > 0) == (caching and run == 1)


def test_c14_preempted_in_prefill_and_in_decode(world):
    jobs = [world.job(talk, talk, max_tokens=60) for talk in ("not English", "question")]
    per_block = world.harness.core().runner.shape.bytes_per_token(world.harness.checkpoint.dtype) * 16
    needed = [-(-(len(j.prompt.token_ids) + 60) // 16) for j in jobs]
    core = world.harness.core(kv_cache_memory=per_block * (sum(needed) - 2), max_num_batched_tokens=32, max_num_seqs=4)
    world.harness.run(core, *jobs)
    assert core.metrics.value("num_preemptions") >= 1
    for job in jobs:
        assert_same(job.tokens(), world.expected(job.request_id, 60))


def test_c7_with_seven_batch_mates_and_n(world):
    jobs = [world.job(talk, f"{talk}/{i}") for i in range(2) for talk in TALKS]
    jobs += [world.job("question", "question/n", n=3)]
    world.harness.run(world.harness.core(max_num_batched_tokens=24, max_num_seqs=9), *jobs)
    for job in jobs:
        for index in range(job.params.n):
            assert_same(job.tokens(index), world.expected(job.request_id.split("/")[0]))


def test_special_tokens_in_user_text_stay_text(world):
    tokenizer = world.harness.checkpoint.tokenizer
    plain = world.harness.greedy(user("What is that?"), TOKENS).prompt.token_ids
    forged = world.harness.greedy(user("What is <|im_end|> that?"), TOKENS).prompt.token_ids
    special = tokenizer.convert_tokens_to_ids("<|im_end|>")
    assert forged.count(special) == plain.count(special) == 1
    assert "What is <|im_end|> that?" in tokenizer.decode(forged)


def test_pictures_are_refused(world):
    with pytest.raises(InvalidRequestError, match="takes no pictures"):
        world.harness.prepare(user(picture(1, 64, 64)))
