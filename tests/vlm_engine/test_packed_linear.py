"""Linear layers packed for oneDNN: the same numbers, nothing else touched, and no packing where torch can't."""

from __future__ import annotations

from itertools import chain

import pytest
import torch

from vlm_engine import packed_linear
from vlm_engine.packed_linear import PackedLinear, pack_head, pack_linears

usable = pytest.mark.skipif(not packed_linear._usable(), reason="torch has no oneDNN bfloat16 linear here")


def layers(dtype=torch.bfloat16):
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Linear(96, 200, bias=True, dtype=dtype),
        torch.nn.SiLU(),
        torch.nn.ModuleDict({"inner": torch.nn.Linear(200, 64, bias=False, dtype=dtype)})["inner"],
        torch.nn.Linear(64, 8, dtype=dtype),
    )


@usable
@pytest.mark.parametrize("shape", [(1, 96), (5, 96), (1, 7, 96), (2, 300, 96)])
def test_packed_layers_give_what_plain_ones_give(shape):
    module = layers()
    inputs = torch.randn(shape).bfloat16()
    with torch.inference_mode():
        before = module(inputs)
        assert pack_linears(module) == 2
        after = module(inputs)
    assert after.shape == before.shape
    assert torch.allclose(after.float(), before.float(), rtol=2e-2, atol=2e-2)
    assert isinstance(module[0], PackedLinear)
    assert isinstance(module[2], PackedLinear)
    assert type(module[3]) is torch.nn.Linear, "a layer of 8 outputs is not worth it"


class Attention(torch.nn.Module):
    """Three layers of one input, as a decoder calls them."""

    def __init__(self, bias):
        super().__init__()
        torch.manual_seed(1)
        for name, outputs in (("q_proj", 192), ("k_proj", 64), ("v_proj", 64)):
            setattr(self, name, torch.nn.Linear(96, outputs, bias=bias, dtype=torch.bfloat16))

    def forward(self, inputs):
        return [layer(inputs).view(*inputs.shape[:-1], -1, 32) for layer in (self.q_proj, self.k_proj, self.v_proj)]


@usable
@pytest.mark.parametrize("bias", [True, False])
def test_layers_of_one_input_are_one_product(bias, monkeypatch):
    module = Attention(bias)
    first, second = torch.randn(1, 5, 96).bfloat16(), torch.randn(1, 7, 96).bfloat16()
    with torch.inference_mode():
        before = [module(first), module(second)]
        assert pack_linears(module) == 3
        calls = []
        apply = packed_linear._apply
        monkeypatch.setattr(packed_linear, "_apply", lambda *args: calls.append(1) or apply(*args))
        after = [module(first), module(second)]
        assert len(calls) == 2
        only_values = module.v_proj(first)
    for old, new in zip(chain(*before), chain(*after), strict=True):
        assert torch.allclose(old.float(), new.float(), rtol=2e-2, atol=2e-2)
    assert torch.equal(only_values.view(1, 5, 2, 32), after[0][2]), "any of them can be called by itself"
    assert module.q_proj._siblings._outputs is None, "nothing is kept"


@usable
def test_a_head_tied_to_the_embedding_leaves_the_embedding_alone():
    embedding = torch.nn.Embedding(500, 64, dtype=torch.bfloat16)
    head = torch.nn.Linear(64, 500, bias=False, dtype=torch.bfloat16)
    head.weight = embedding.weight
    packed = pack_head(head)
    hidden = torch.randn(3, 64).bfloat16()
    assert torch.equal(packed(hidden), head(hidden))
    assert embedding(torch.tensor([499])).shape == (1, 64)


def test_float32_layers_stay_as_they_are():
    module = layers(torch.float32)
    assert pack_linears(module) == 0


def test_without_the_operators_nothing_is_packed(monkeypatch):
    def missing(*args):
        raise AttributeError("'_OpNamespace' 'mkldnn' object has no attribute '_linear_pointwise'")

    monkeypatch.setattr(packed_linear, "_apply", missing)
    module = layers()
    assert pack_linears(module) == 0
    assert pack_head(module[0]) is module[0]
