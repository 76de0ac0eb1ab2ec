"""What the Triton backend refuses, and where it says so."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from vlm_engine.errors import ConfigError

pytest.importorskip("triton", reason="Triton is for Linux only")

from vlm_engine.attention.torch_backend import TorchBackend
from vlm_engine.attention.triton_backend import AttentionShape, TritonBackend
from vlm_engine.runner import ModelShape, make_backend

CPU = torch.device("cpu")
SHAPE = AttentionShape(heads=16, kv_heads=8, head_dim=128, block_size=16, dtype=torch.bfloat16)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"block_size": 24}, ["block_size", "24", "16, 32, 64"]),
        ({"block_size": 4}, ["block_size", "4", "8, 16"]),
        ({"block_size": 512}, ["block_size", "512", "256"]),
        ({"dtype": torch.float64}, ["dtype", "float64", "bfloat16"]),
        ({"head_dim": 256}, ["head_dim", "256", "128"]),
        ({"head_dim": 100}, ["head_dim", "100", "multiples of 8"]),
        ({"kv_heads": 3}, ["16 query heads over 3 KV heads", "whole groups"]),
        ({"heads": 71, "kv_heads": 1}, ["71 query heads over 1 KV heads", "at most 16"]),
    ],
)
def test_a_shape_that_is_not_covered_is_refused_with_knob_value_and_limit(change, words):
    with pytest.raises(ConfigError) as refusal:
        replace(SHAPE, **change).check()
    assert all(word in str(refusal.value) for word in [*words, 'attention_backend "torch"'])


@pytest.mark.parametrize("change", [{"block_size": b} for b in (16, 32, 64)] + [{"head_dim": d} for d in (64, 80, 96)])
def test_a_shape_that_is_covered_passes(change):
    replace(SHAPE, **change).check()


def test_a_cpu_is_refused_when_the_engine_starts():
    shape = ModelShape(layers=2, heads=16, kv_heads=8, head_dim=128)
    with pytest.raises(ConfigError, match="device is cpu, the triton backend takes CUDA devices"):
        make_backend("triton", shape, 16, torch.float32, CPU)


def test_a_cpu_gets_the_torch_backend_by_itself():
    shape = ModelShape(layers=2, heads=16, kv_heads=8, head_dim=128)
    assert isinstance(make_backend("auto", shape, 16, torch.float32, CPU), TorchBackend)


def test_the_constructor_checks_the_shape_before_the_device():
    with pytest.raises(ConfigError, match="block_size is 24"):
        TritonBackend(replace(SHAPE, block_size=24), CPU)
