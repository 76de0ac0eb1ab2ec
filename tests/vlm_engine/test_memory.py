"""KV pages are counted from configuration, or after the largest step was really run."""

from __future__ import annotations

import pytest
import torch

from tests.golden.harness import Harness, picture, user
from vlm_engine import ConfigError, EngineConfig
from vlm_engine.encoder_cache import EncoderCache
from vlm_engine.memory import count_blocks, run_largest_step


@pytest.fixture(scope="module")
def harness(checkpoint):
    return Harness(checkpoint("qwen3-vl"))


def test_kv_cache_memory_rules(harness):
    cache = EncoderCache(1 << 20)
    # 4 layers, K and V, 2 KV heads of 16 numbers of 4 bytes: 1,024 bytes a token.
    config = EngineConfig(model="x", kv_cache_memory=10 * 1024 * 32 + 5, block_size=32)
    assert count_blocks(harness.checkpoint, config, cache, None) == 10


def test_less_than_one_block_is_refused_with_the_numbers(harness):
    config = EngineConfig(model="x", kv_cache_memory=1000, block_size=16)
    with pytest.raises(ConfigError, match="kv_cache_memory is 1000 bytes, one block of 16 tokens takes 16384"):
        count_blocks(harness.checkpoint, config, EncoderCache(1), None)


def test_the_largest_step_runs_with_just_its_own_pages(harness):
    config = EngineConfig(model="x", max_num_batched_tokens=100, max_num_seqs=4, block_size=16)
    inputs = harness.prepare(user(picture(1, 128, 128))).images[0].inputs
    with torch.inference_mode():
        runner = run_largest_step(harness.checkpoint, config, EncoderCache(1 << 20), inputs)
    assert runner.num_blocks == 7
