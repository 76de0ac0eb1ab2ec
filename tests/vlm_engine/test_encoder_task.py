"""An image's encoding in slices: the same features, other work in between, nothing left behind."""

from __future__ import annotations

import gc

import pytest
import torch

from tests.golden.harness import Harness, picture, user
from vlm_engine import encoder_task

KINDS = ["smolvlm", "qwen3-vl", "qwen2.5-vl"]


@pytest.fixture(params=KINDS, scope="module")
def harness(request, checkpoint):
    return Harness(checkpoint(request.param))


def inputs_of(harness, seed=1, size=(200, 300)):
    return harness.prepare(user(picture(seed, *size))).images[0].inputs


def run(task):
    steps = 0
    while (features := task.advance()) is None:
        steps += 1
        assert torch.is_inference_mode_enabled()
    return features, steps + 1


def same(left, right, exact):
    assert len(left.deepstack) == len(right.deepstack)
    for a, b in zip((left.rows, *left.deepstack), (right.rows, *right.deepstack), strict=True):
        assert torch.equal(a, b) if exact else torch.allclose(a, b, atol=1e-5, rtol=1e-5)


def test_the_blocks_are_the_towers(harness):
    vision = harness.checkpoint.config.vision_config
    layers = vision.depth if hasattr(vision, "depth") else vision.num_hidden_layers
    assert len(harness.checkpoint.encoder.blocks) == layers
    assert all(hasattr(block, "mlp") for block in harness.checkpoint.encoder.blocks)


def test_slices_give_the_features_of_one_piece(harness):
    """Bitwise for cuts between layers; tiles one by one within 1e-5 of all together."""
    encoder, family = harness.checkpoint.encoder, harness.checkpoint.family
    inputs = inputs_of(harness)
    with torch.inference_mode():
        whole = family.encode(inputs)
        items = family.items(inputs)
        one_by_one = encoder_task.join_features([family.encode(item) for item in items])
        sliced, steps = run(encoder.start(inputs))
    assert steps <= encoder.count_slices(inputs)
    rows = encoder._count_rows(items[0])
    assert steps > len(items) * len(encoder.blocks) * (2 if rows > 256 else 1)
    same(sliced, one_by_one, exact=rows <= 256)
    same(sliced, whole, exact=rows <= 256 and len(items) == 1)


def test_cuts_inside_a_layer_give_the_features_of_one_piece(harness, monkeypatch):
    """Groups of rows so small that even a tiny picture is cut, with a last group that is not full."""
    encoder, family = harness.checkpoint.encoder, harness.checkpoint.family
    inputs = inputs_of(harness, size=(120, 200))
    monkeypatch.setattr(encoder, "_rows", 23)
    monkeypatch.setattr(encoder.blocks[0].row_cutter, "rows", 23)
    with torch.inference_mode():
        whole = encoder_task.join_features([family.encode(item) for item in family.items(inputs)])
        sliced, steps = run(encoder.start(inputs))
    assert len(family.items(inputs)) * len(encoder.blocks) * 3 < steps <= encoder.count_slices(inputs)
    same(sliced, whole, exact=False)


def test_two_pictures_interleaved_and_a_third_aborted(harness):
    encoder, family = harness.checkpoint.encoder, harness.checkpoint.family
    pictures = [inputs_of(harness, seed) for seed in (1, 2, 3)]
    with torch.inference_mode():
        tasks = [encoder.start(inputs) for inputs in pictures]
        results = {}
        while len(results) < 2:
            for number in (0, 1):
                if number not in results and (features := tasks[number].advance()) is not None:
                    results[number] = features
            if tasks[2].done == 0:
                tasks[2].advance()
                tasks[2].abort()
        for number in (0, 1):
            apart = encoder_task.join_features([family.encode(item) for item in family.items(pictures[number])])
            same(results[number], apart, exact=False)
    assert not torch.is_inference_mode_enabled()


def test_aborting_frees_hidden_states(harness):
    encoder = harness.checkpoint.encoder
    inputs = inputs_of(harness)

    def tensors():
        gc.collect()
        return sum(1 for thing in gc.get_objects() if isinstance(thing, torch.Tensor))

    with torch.inference_mode():
        run(encoder.start(inputs))
        before = tensors()
        for _ in range(5):
            task = encoder.start(inputs)
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
        features, steps = run(encoder.start(inputs))
        assert steps == encoder.count_slices(inputs) == len(family.items(inputs))
        same(features, encoder_task.join_features([family.encode(i) for i in family.items(inputs)]), exact=True)


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
        while not core._encodings:
            core.step()
        core.abort("camera")
        core.step()
        assert not core._encodings
        assert core.encoder_cache.free == core.encoder_cache.capacity
        again = harness.greedy(user(picture(6, 300, 300), "Who?"), 4, "again")
        harness.run(core, again)
    assert len(again.tokens()) == 4
