"""How many KV pages there are: from configuration, or from what a GPU has left after its largest step was run once."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch

from vlm_engine.errors import ConfigError
from vlm_engine.prompt import PreparedPrompt, PriorityClass
from vlm_engine.request import Request
from vlm_engine.runner import GIB, ModelRunner, ModelShape
from vlm_engine.sampling_params import SamplingParams
from vlm_engine.scheduler import Chunk

if TYPE_CHECKING:
    from vlm_engine.config import EngineConfig
    from vlm_engine.encoder_cache import EncoderCache
    from vlm_engine.loader import Checkpoint

CUDA_SHARE = 0.9
"""Share of the free CUDA memory that may be used; the rest is for the allocator's fragments and for others."""

Inputs = Mapping[str, torch.Tensor]


def count_blocks(checkpoint: Checkpoint, config: EngineConfig, cache: EncoderCache, largest: Inputs | None) -> int:
    """Pages that fit.

    Args:
        checkpoint: loaded, on its device.
        config: ``kv_cache_memory`` rules when given.
        cache: the encoder cache; its capacity is set aside on CUDA.
        largest: processor outputs of the largest picture that requests may bring; None for text models.

    Raises:
        ConfigError: not even one page fits; with the numbers.
    """
    block_bytes = ModelShape.of(checkpoint.family.text_config).bytes_per_token(checkpoint.dtype) * config.block_size
    memory = config.kv_cache_memory
    if memory is None:
        on_cuda = checkpoint.device.type == "cuda"
        memory = _free_after_largest_step(checkpoint, config, cache, largest) if on_cuda else GIB
    if memory < block_bytes:
        raise ConfigError(
            f"kv_cache_memory is {memory} bytes, one block of {config.block_size} tokens takes {block_bytes}"
        )
    return memory // block_bytes


def run_largest_step(
    checkpoint: Checkpoint, config: EngineConfig, cache: EncoderCache, largest: Inputs | None
) -> ModelRunner:
    """Encodes the largest picture and prefills a whole budget of tokens, with just the pages that this takes."""
    tokens = config.max_num_batched_tokens
    blocks = math.ceil(tokens / config.block_size)
    runner = ModelRunner(checkpoint, config, cache, blocks)
    if largest is not None:
        runner.encode(largest)
    run_alone(checkpoint, runner, 0, tokens)
    return runner


def run_alone(checkpoint: Checkpoint, runner: ModelRunner, prefix: int, new: int) -> None:
    """One step of a single made-up request, in the first pages, and waits for it. Only while no request runs.

    Its pages don't follow one another, as those of a request may not either: what is measured is the longer time.
    """
    tokens = prefix + new
    ids = [0] * tokens
    positions, delta = checkpoint.family.positions(ids, ())
    request = Request(
        key="profile",
        request_id="profile",
        index=0,
        token_ids=ids,
        num_prompt=tokens,
        params=SamplingParams(temperature=0.0),
        priority_class=PriorityClass.BACKGROUND,
        arrival=0,
        max_total=tokens + 1,
        block_size=runner.block_size,
        prompt=PreparedPrompt(tuple(ids), (), positions, delta),
        blocks=list(reversed(range(math.ceil(tokens / runner.block_size)))),
    )
    runner.forward([Chunk(request, prefix, new, True)])
    if checkpoint.device.type == "cuda":
        torch.cuda.synchronize(checkpoint.device)


def _free_after_largest_step(
    checkpoint: Checkpoint, config: EngineConfig, cache: EncoderCache, largest: Inputs | None
) -> int:
    device = checkpoint.device
    torch.cuda.synchronize(device)
    torch.cuda.empty_cache()
    free = torch.cuda.mem_get_info(device)[0]
    before = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    with torch.inference_mode():
        run_largest_step(checkpoint, config, cache, largest)
    torch.cuda.synchronize(device)
    activations = torch.cuda.max_memory_allocated(device) - before
    torch.cuda.empty_cache()
    return int(free * CUDA_SHARE) - activations - cache.capacity
