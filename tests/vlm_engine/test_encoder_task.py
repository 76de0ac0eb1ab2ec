"""An image's encoding in slices: the same features, other work in between, nothing left behind."""

from __future__ import annotations

import gc

import pytest
import torch

from tests.golden.harness import Harness, picture, user
from vlm_engine import encoder_task, row_cuts
from vlm_engine.encoder_cache import join_features

KINDS = ["smolvlm", "qwen3-vl", "qwen2.5-vl"]


@pytest.fixture(params=KINDS, scope="module")
def harness(request, checkpoint):
    return Harness(checkpoint(request.param))


def inputs_of(harness, seed=1, size=(200, 300)):
    """As the processor makes them."""
    return harness.checkpoint.encoder.scaled(bytes_of(harness, seed, size))


def bytes_of(harness, seed=1, size=(200, 300)):
    """As they come from a worker: pixels as bytes."""
    return harness.prepare(user(picture(seed, *size))).images[0].inputs


def run(encoder, inputs):
    """Item by item, as the engine does with tiles of full size. Gives features and the slices' works."""
    parts, works = [], []
    for item in encoder.items(inputs):
        task = encoder.start([item])
        features = None
        while features is None:
            works.append(task.next)
            features = task.advance()
            assert torch.is_inference_mode_enabled()
        parts += features
    return join_features(parts), works


def one_by_one(family, inputs):
    return join_features([family.encode(item) for item in family.items(inputs)])


def same(left, right, exact):
    assert len(left.deepstack) == len(right.deepstack)
    for a, b in zip((left.rows, *left.deepstack), (right.rows, *right.deepstack), strict=True):
        assert torch.equal(a, b) if exact else torch.allclose(a, b, atol=1e-5, rtol=1e-5)


def cut_finely(encoder, monkeypatch, rows):
    monkeypatch.setattr(encoder, "rows", rows)
    monkeypatch.setattr(encoder.cutter, "rows", rows)


def test_the_blocks_are_the_towers(harness):
    vision = harness.checkpoint.config.vision_config
    layers = vision.depth if hasattr(vision, "depth") else vision.num_hidden_layers
    assert len(harness.checkpoint.encoder.blocks) == layers
    assert all(hasattr(block, "mlp") for block in harness.checkpoint.encoder.blocks)


def test_pixels_that_came_as_bytes_give_the_same_features_bit_for_bit(harness):
    encoder = harness.checkpoint.encoder
    inputs = bytes_of(harness)
    assert inputs["pixel_values"].dtype == torch.uint8
    with torch.inference_mode():
        same(run(encoder, inputs)[0], run(encoder, encoder.scaled(inputs))[0], exact=True)


def test_bytes_of_an_unknown_processor_are_refused_and_not_taken_for_its_numbers(harness, monkeypatch):
    inputs = bytes_of(harness)
    monkeypatch.setattr(harness.checkpoint.encoder, "pixel_scale", None)
    with torch.inference_mode(), pytest.raises(ValueError, match="bytes"):
        run(harness.checkpoint.encoder, inputs)


def test_slices_give_the_features_of_one_piece(harness):
    """Bitwise for cuts between layers; tiles one by one within 1e-5 of all together."""
    encoder, family = harness.checkpoint.encoder, harness.checkpoint.family
    inputs = inputs_of(harness)
    with torch.inference_mode():
        whole = family.encode(inputs)
        sliced, works = run(encoder, inputs)
        items = encoder.items(inputs)
        fine = items[0].rows > encoder.rows
        assert len(works) > len(items) * len(encoder.blocks) * (2 if fine else 1)
        same(sliced, one_by_one(family, inputs), exact=not fine)
        same(sliced, whole, exact=not fine and len(items) == 1)


def test_cuts_inside_a_layer_give_the_features_of_one_piece(harness, monkeypatch):
    """Groups of rows so small that even a tiny picture is cut, with a last group that is not full."""
    encoder, family = harness.checkpoint.encoder, harness.checkpoint.family
    inputs = inputs_of(harness, size=(120, 200))
    cut_finely(encoder, monkeypatch, 23)
    with torch.inference_mode():
        sliced, works = run(encoder, inputs)
        same(sliced, one_by_one(family, inputs), exact=False)
    kinds = {work.kind for work in works}
    assert kinds >= {"begin", "project", "attend", "mlp", "finish"}
    assert all(work.rows <= 23 for work in works if work.kind in ("attend", "output", "mlp"))


def test_what_a_slice_will_compute_adds_up_to_the_layers_work(harness, monkeypatch):
    """Every layer announces each of its rows once for attention and once for the MLP (windows are cut less finely)."""
    encoder = harness.checkpoint.encoder
    cut_finely(encoder, monkeypatch, 23)
    item = encoder.items(inputs_of(harness, size=(120, 200)))[0]
    with torch.inference_mode():
        task, works = encoder.start([item]), []
        features = None
        while features is None:
            works.append(task.next)
            features = task.advance()
    layers = len(encoder.blocks)
    assert sum(work.rows for work in works if work.kind == "mlp") == layers * item.rows
    attended = [work for work in works if work.kind in ("attend", "output")]
    assert sum(work.rows for work in attended) <= layers * item.rows
    assert sum(work.pairs for work in attended) <= layers * item.rows * item.keys
    assert [work.kind for work in works].count("project") == layers - 1
    assert works[0].kind == "begin"
    assert works[-1].kind == "finish"


@pytest.mark.parametrize("rows", [None, 23])
def test_items_packed_together_give_what_each_gives_alone(harness, monkeypatch, rows):
    """Three pictures of different sizes (tiles of one size, or patches one after another) in one pass of the tower."""
    encoder, family = harness.checkpoint.encoder, harness.checkpoint.family
    if rows is not None:
        cut_finely(encoder, monkeypatch, rows)
    pictures = [inputs_of(harness, seed, size) for seed, size in ((1, (64, 96)), (2, (120, 60)), (3, (64, 64)))]
    with torch.inference_mode():
        items = [item for inputs in pictures for item in encoder.items(inputs)]
        items = [item for item in items if item.pack_key == items[0].pack_key]
        assert len(items) >= 3, "tiles of one size pack, and so do patches"
        task = encoder.start(items)
        features = None
        while features is None:
            features = task.advance()
        assert len(features) == len(items)
        for item, packed in zip(items, features, strict=True):
            same(packed, family.encode(item.inputs), exact=False)


@pytest.mark.parametrize("rows", [64, 192])
def test_groups_in_bfloat16_attend_as_eagerly_as_transformers(rows):
    """On a CPU they leave SDPA for two products: no further from float32 than transformers' eager attention is."""
    from transformers.models.siglip.modeling_siglip import eager_attention_forward

    torch.manual_seed(0)
    module = torch.nn.Module()
    module.training, module.is_causal = False, False
    query, key, value = (torch.randn(1, 4, 256, 64) for _ in range(3))
    scale = 64**-0.5
    exact, _ = eager_attention_forward(module, query[:, :, :rows], key, value, None, scaling=scale)
    short = [tensor.bfloat16() for tensor in (query[:, :, :rows], key, value)]
    eager, _ = eager_attention_forward(module, *short, None, scaling=scale)
    group = row_cuts._attend_group(module, *short, None, {"scaling": scale})
    assert group.shape == eager.shape
    assert (group.float() - exact).abs().max() <= 1.5 * (eager.float() - exact).abs().max()


def test_two_pictures_interleaved_and_a_third_aborted(harness):
    encoder, family = harness.checkpoint.encoder, harness.checkpoint.family
    items = [encoder.items(inputs_of(harness, seed))[0] for seed in (1, 2, 3)]
    with torch.inference_mode():
        tasks = [encoder.start([item]) for item in items]
        results = {}
        aborted = False
        while len(results) < 2:
            for number in (0, 1):
                if number not in results and (features := tasks[number].advance()) is not None:
                    results[number] = features[0]
            if not aborted:
                tasks[2].advance()
                tasks[2].abort()
                aborted = True
        for number in (0, 1):
            same(results[number], family.encode(items[number].inputs), exact=False)
    assert not torch.is_inference_mode_enabled()


def test_aborting_frees_hidden_states(harness):
    encoder = harness.checkpoint.encoder
    inputs = inputs_of(harness)

    def tensors():
        gc.collect()
        return sum(1 for thing in gc.get_objects() if isinstance(thing, torch.Tensor))

    with torch.inference_mode():
        run(encoder, inputs)
        items = encoder.items(inputs)[:1]
        before = tensors()
        for _ in range(5):
            task = encoder.start(items)
            task.advance()
            task.abort()
        del task
        assert tensors() <= before


def test_hooks_do_nothing_outside_a_task(harness):
    with torch.inference_mode():
        assert harness.checkpoint.family.encode(inputs_of(harness)).rows.shape[0] > 0


def test_without_greenlet_items_are_the_only_cuts(harness, monkeypatch):
    monkeypatch.setattr(encoder_task, "import_greenlet", lambda: None)
    bare = Harness(harness.path)
    encoder, family = bare.checkpoint.encoder, bare.checkpoint.family
    inputs = inputs_of(bare)
    with torch.inference_mode():
        features, works = run(encoder, inputs)
        assert [work.kind for work in works] == ["item"] * len(family.items(inputs))
        same(features, one_by_one(family, inputs), exact=True)


def test_a_chat_gets_its_token_in_every_step_while_a_picture_is_encoded(harness):
    core = harness.core(max_num_seqs=4)
    chat, camera = (
        harness.greedy(user("Count."), 60, "chat"),
        harness.greedy(user(picture(5, 300, 300), "Who?"), 4, "cam"),
    )
    harness.add(core, chat)
    with torch.inference_mode():
        core.step()
        harness.add(core, camera)
        encoding = 0
        while core.has_work:
            before = len(chat.tokens())
            core.step()
            core.check_integrity()
            if core.last_plan.encodes and before < 60:
                encoding += 1
                assert len(chat.tokens()) == before + 1
    assert encoding >= 2, "the picture was encoded in one piece"
    alone = harness.greedy(user(picture(5, 300, 300), "Who?"), 4, "alone")
    harness.run(harness.core(), alone)
    assert camera.tokens() == alone.tokens()


def test_aborting_a_request_in_the_middle_of_its_picture_ends_the_task(harness):
    core = harness.core()
    chat = harness.greedy(user("Count."), 20, "chat")
    camera = harness.greedy(user(picture(6, 300, 300), "Who?"), 4, "camera")
    harness.add(core, chat)
    with torch.inference_mode():
        core.step()
        harness.add(core, camera)
        while not core.encoder.encodings:
            core.step()
        core.abort("camera")
        core.step()
        assert not core.encoder.encodings
        assert core.encoder_cache.free == core.encoder_cache.capacity
        again = harness.greedy(user(picture(6, 300, 300), "Who?"), 4, "again")
        harness.run(core, again)
    assert len(again.tokens()) == 4
