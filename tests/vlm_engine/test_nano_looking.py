"""The small describer's decoder: what a picture changes, and that nothing else is changed."""

from __future__ import annotations

import json

import pytest
import torch
from torch.nn.functional import linear
from transformers import AutoConfig, LlamaConfig, LlamaModel

from vlm_engine import packed_linear
from vlm_engine.families.nano import LOOKS, NanoFamily
from vlm_engine.families.nano_looking import Looking, LookingLinear, LookingText, looked_at
from vlm_engine.families.nano_model import NanoConfig, NanoForConditionalGeneration
from vlm_engine.packed_linear import pack_linears
from vlm_engine.prompt import ImageInput

IMAGE, PICTURE = 5, 10


def text_config() -> LlamaConfig:
    return LlamaConfig(
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=96,
    )


@pytest.fixture
def pair():
    """A plain Llama, and one with the same weights and a change that is felt."""
    torch.manual_seed(0)
    plain, looking = LlamaModel(text_config()).eval(), LookingText(text_config(), 3).eval()
    looking.take(plain.state_dict())
    for change in looking.changes().values():
        torch.nn.init.normal_(change.up, 0.0, 0.3)
    return plain, looking


def run(model, ids, **options):
    with torch.inference_mode():
        return model(input_ids=ids, use_cache=False, **options).last_hidden_state


def test_without_a_picture_it_is_the_decoder_bit_for_bit(pair):
    plain, looking = pair
    ids = torch.arange(12)[None]
    assert torch.equal(run(looking, ids), run(plain, ids))
    assert torch.equal(run(looking, ids, looking=looked_at(ids, 90)), run(plain, ids))


def test_from_the_picture_on_it_is_another_and_before_it_the_same(pair):
    plain, looking = pair
    ids = torch.tensor([[1, 2, 3, IMAGE, IMAGE, 7, 8], [1, 2, 3, 9, 9, 7, 8]])
    mask = looked_at(ids, IMAGE)
    assert mask.tolist() == [[False] * 3 + [True] * 4, [False] * 7]
    before, after = run(plain, ids), run(looking, ids, looking=mask)
    torch.testing.assert_close(after[0, :3], before[0, :3])
    torch.testing.assert_close(after[1], before[1])  # another request of the same step
    assert all(not torch.allclose(after[0, place], before[0, place], atol=1e-3) for place in range(3, 7))
    assert looking.looking.mask is None, "nothing is left for the next step"


def test_a_forward_that_fails_leaves_no_mask(pair):
    _, looking = pair
    with pytest.raises(IndexError):
        run(looking, torch.tensor([[1, 1000]]), looking=torch.ones(1, 2, dtype=torch.bool))
    assert looking.looking.mask is None


def test_weights_of_another_decoder_are_refused(pair):
    _, looking = pair
    state = LlamaModel(text_config()).state_dict()
    state.pop("norm.weight")
    with pytest.raises(ValueError, match=r"norm\.weight"):
        looking.take(state)


def test_generation_and_the_whole_sequence_at_once_agree():
    torch.manual_seed(2)
    config = NanoConfig(text_config=text_config(), change_rank=3, image_token_id=IMAGE, image_tokens=PICTURE)
    model = NanoForConditionalGeneration(config).eval()
    for change in model.model.text_model.changes().values():
        torch.nn.init.normal_(change.up, 0.0, 0.3)
    ids = torch.tensor([[1, 7, *[IMAGE] * PICTURE, 8, 9]])
    pixels = torch.rand(1, 3, 192, 96) * 2 - 1
    with torch.inference_mode():
        out = model.generate(
            ids,
            pixel_values=pixels,
            max_new_tokens=6,
            do_sample=False,
            output_logits=True,
            return_dict_in_generate=True,
        )
        whole = model(out.sequences[:, :-1], pixel_values=pixels).logits[:, ids.shape[1] - 1 :]
    torch.testing.assert_close(torch.stack(out.logits, 1), whole, rtol=1e-4, atol=1e-4)


def test_positions_carry_the_mark_through_a_step_of_many_requests():
    torch.manual_seed(3)
    config = NanoConfig(text_config=text_config(), change_rank=3, image_token_id=IMAGE, image_tokens=PICTURE)
    family = NanoFamily(NanoForConditionalGeneration(config))
    chat, none = family.positions([1, 2, 3], ())
    ids = [1, 2, *[IMAGE] * 3, 9]
    seen, mark = family.positions(ids, [ImageInput(b"k", 2, (2, 3, 4), {})])
    inputs = family.decoder_inputs(torch.cat((chat, seen, torch.tensor([[6 + mark, 3 + none]])), dim=1), (), None)
    assert inputs["position_ids"].tolist() == [[0, 1, 2, 0, 1, 2, 3, 4, 5, 6, 3]]
    assert inputs["looking"].tolist() == [[False] * 3 + [False] * 2 + [True] * 4 + [True, False]]
    assert (none, mark) == (0, LOOKS)


def test_the_decoder_says_in_which_type_it_runs_and_the_tower_stays_precise(tmp_path):
    """transformers writes the type of the tower's weights into the configuration, and everything would run in that."""
    torch.manual_seed(4)
    model = NanoForConditionalGeneration(NanoConfig(text_config=text_config(), image_token_id=IMAGE))
    model.model.text_model.to(torch.bfloat16)
    model.config.dtype = model.config.text_config.dtype = torch.bfloat16
    model.save_pretrained(tmp_path)
    config = AutoConfig.from_pretrained(tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["dtype"] == "float32"
    assert config.dtype == torch.bfloat16
    loaded = NanoForConditionalGeneration.from_pretrained(tmp_path, dtype=config.dtype)
    assert {value.dtype for value in loaded.model.text_model.parameters()} == {torch.bfloat16}
    assert {value.dtype for value in loaded.model.vision.parameters()} == {torch.float32}


@pytest.fixture
def packed_as_plain(monkeypatch):
    """Layers are packed whatever the processor; the product itself is plain. Gives its calls."""
    calls = []
    monkeypatch.setattr(packed_linear, "_usable", lambda: True)
    monkeypatch.setattr(packed_linear, "_worth_it", lambda layer: True)
    monkeypatch.setattr(packed_linear, "_pack", lambda weight: weight)
    monkeypatch.setattr(packed_linear, "_apply", lambda x, weight, bias: calls.append(1) or linear(x, weight, bias))
    return calls


def test_layers_with_a_bias_keep_it_beside_their_change(packed_as_plain):
    torch.manual_seed(5)
    looking = Looking()
    plain = torch.nn.ModuleDict({n: torch.nn.Linear(64, 32) for n in ("q_proj", "k_proj", "v_proj", "o_proj")})
    module = torch.nn.ModuleDict({name: LookingLinear(layer, 3, looking) for name, layer in plain.items()})
    for change in module.values():
        torch.nn.init.normal_(change.up)
    inputs, looking.mask = torch.randn(1, 5, 64), torch.tensor([0, 0, 1, 1, 0])[None, :, None]
    with torch.inference_mode():
        before = {name: layer(inputs) for name, layer in module.items()}
        assert pack_linears(module) == 4
        for name, layer in module.items():
            out = layer(inputs)
            torch.testing.assert_close(out, before[name])
            torch.testing.assert_close(out[0, :2], plain[name](inputs)[0, :2])
    assert len(packed_as_plain) == 2, "q, k and v; o"


def test_its_layers_of_one_input_are_one_product(pair, packed_as_plain):
    plain, looking = pair
    ids = torch.arange(9)[None]
    mask = ids > 3
    before = run(looking, ids, looking=mask)
    assert pack_linears(looking) == 14
    torch.testing.assert_close(run(looking, ids, looking=mask), before)
    assert len(packed_as_plain) == 2 * 4, "q, k and v; o; gate and up; down; each with its change"
    torch.testing.assert_close(run(looking, ids), run(plain, ids))
