"""Reports from other engines (their numbers in the names), each as a small input with the right behaviour."""

from __future__ import annotations

import pytest

from tests.golden.harness import Harness, Job, picture, user
from tests.vlm_engine.fake import FEATURE_BYTES, FakeEngine, FakeJob
from vlm_engine import InvalidRequestError, SamplingParams
from vlm_engine.prompt import PriorityClass


def job(name, length, max_tokens=4, images=(), **options):
    prompt = [sum(map(ord, name)) * 100_000 + i for i in range(length)]
    for first, count, _ in images:
        prompt[first : first + count] = [49190] * count
    return FakeJob(name, prompt, max_tokens, images=list(images), **options)


def test_a1_two_images_larger_than_one_steps_budget_progress_every_step():
    engine = FakeEngine(400, encoder_bytes=2300 * FEATURE_BYTES, max_num_batched_tokens=2048)
    one = job("two", 2300, images=[(10, 1100, b"a"), (1150, 1100, b"b")])
    engine.add(one)
    engine.run(limit=20)
    assert one.tokens() == one.expected()


def test_a2_three_requests_of_two_images_in_a_cache_of_two():
    engine = FakeEngine(400, encoder_bytes=2 * 64 * FEATURE_BYTES, max_num_batched_tokens=256)
    jobs = [job(f"r{i}", 200, images=[(10, 64, b"%da" % i), (100, 64, b"%db" % i)]) for i in range(3)]
    for one in jobs:
        engine.add(one)
    engine.run(limit=60)
    assert [one.tokens() for one in jobs] == [one.expected() for one in jobs]


def test_a3_an_image_larger_than_the_encoder_cache_is_refused_with_limit_and_size():
    engine = FakeEngine(400, encoder_bytes=100 * FEATURE_BYTES)
    with pytest.raises(InvalidRequestError, match=r"take 808 bytes, the encoder cache holds 800"):
        engine.add(job("big", 200, images=[(10, 101, b"big")]))


def test_a4_a_prompt_of_one_block_too_many_is_refused():
    engine = FakeEngine(4, block_size=16)
    with pytest.raises(InvalidRequestError, match=r"take up to 65 tokens, the KV cache holds 64"):
        engine.add(job("long", 61))
    fits = job("fits", 60)
    engine.add(fits)
    engine.run()
    assert fits.tokens() == fits.expected()


def test_a10_only_the_last_of_two_and_a_half_chunks_samples():
    engine = FakeEngine(100, max_num_batched_tokens=40, max_num_seqs=4)
    one = job("r", 100, max_tokens=1)
    engine.add(one)
    samples = []
    while engine.core.has_work:
        engine.step()
        samples += [(c.length, c.samples) for c in engine.core.last_plan.chunks]
    assert samples == [(40, False), (40, False), (20, True)]


def test_a11_decodes_never_starve_under_a_stream_of_new_prompts():
    engine = FakeEngine(20_000, max_num_batched_tokens=256, max_num_seqs=200, max_queued_requests=1000)
    decodes = [job(f"chat{i}", 8, max_tokens=60) for i in range(4)]
    for one in decodes:
        engine.add(one)
    engine.step()
    for step in range(50):
        engine.add(job(f"flood{step}", 2000, max_tokens=1))
        before = [len(one.tokens()) for one in decodes]
        engine.step()
        assert [len(one.tokens()) for one in decodes] == [count + 1 for count in before]


def test_a12_eight_long_prompts_share_one_bound_between_two_decode_steps():
    engine = FakeEngine(4000, max_num_batched_tokens=260, max_num_seqs=16)
    engine.add(job("chat", 8, max_tokens=100))
    engine.step()
    for i in range(8):
        engine.add(job(f"long{i}", 4000, max_tokens=1, priority_class=PriorityClass.BACKGROUND))
    for _ in range(20):
        engine.step()
        assert engine.core.last_plan.num_tokens <= 260


def test_prefill_always_advances_even_when_decodes_take_almost_the_whole_budget():
    engine = FakeEngine(1000, max_num_batched_tokens=8, max_num_seqs=8)
    for i in range(7):
        engine.add(job(f"chat{i}", 1, max_tokens=200))
    for _ in range(3):
        engine.step()
    late = job("late", 20, max_tokens=1)
    engine.add(late)
    for _ in range(25):
        engine.step()
    assert late.tokens() == late.expected()


@pytest.mark.parametrize("kind", list(PriorityClass))
def test_a_chat_does_not_wait_until_a_long_prefill_is_through(kind):
    engine = FakeEngine(2000, max_num_batched_tokens=256, max_num_seqs=16)
    engine.add(job("long", 10_000, priority_class=kind))
    for _ in range(3):
        engine.step()
    chat = job("chat", 20)
    engine.add(chat)
    engine.step()
    assert len(chat.tokens()) == 1


def test_prompts_of_one_class_share_a_step_in_quanta():
    engine = FakeEngine(2000, max_num_batched_tokens=256, max_num_seqs=16)
    for i in range(3):
        engine.add(job(f"r{i}", 1000))
    engine.step()
    assert sorted(chunk.length for chunk in engine.core.last_plan.chunks) == [64, 64, 128]


def test_background_requests_age_and_are_served_under_a_flood_of_chats():
    engine = FakeEngine(4000, max_num_batched_tokens=64, max_num_seqs=4, max_queued_requests=10_000)
    camera = job("camera", 64, max_tokens=2, priority_class=PriorityClass.BACKGROUND)
    engine.add(camera)
    for step in range(400):
        for i in range(2):
            engine.add(job(f"chat{step}-{i}", 64, max_tokens=1))
        engine.step()
        if camera.finished:
            break
    assert camera.tokens() == camera.expected()
    assert step < 150


def test_a16_a17_abort_in_every_state_frees_everything_at_once():
    engine = FakeEngine(40, encoder_bytes=64 * FEATURE_BYTES, max_num_batched_tokens=32, max_num_seqs=2)
    jobs = {
        "decoding": job("decoding", 8, max_tokens=50),
        "prefilling": job("prefilling", 160, images=[(100, 30, b"p")]),
        "queued": job("queued", 30),
        "siblings": job("siblings", 60, n=3),
    }
    for one in jobs.values():
        engine.add(one)
    for _ in range(3):
        engine.step()
    for name in ("queued", "prefilling", "siblings", "decoding"):
        engine.core.abort(name)
        engine.core.check_integrity()
        assert set(jobs[name].finished.values()) == {"abort"}
        assert len(jobs[name].finished) == jobs[name].n
    assert not engine.core.has_work
    assert engine.core.pool.num_free == 40
    assert engine.cache.free == engine.cache.capacity


def test_b2_a_second_image_of_another_size_is_right(checkpoint):
    harness = Harness(checkpoint("qwen3-vl"))
    core = harness.core(max_num_seqs=4)
    for seed, size in ((1, (256, 256)), (2, (64, 64))):
        messages = user("See:", picture(seed, *size), "what?")
        alone, together = harness.greedy(messages, 6, name=f"a{seed}"), harness.greedy(messages, 6, name=f"b{seed}")
        harness.run(core, together)
        harness.run(harness.core(), alone)
        assert together.tokens() == alone.tokens()


def test_b7_the_same_picture_at_another_offset_in_the_block_is_another_block():
    engine = FakeEngine(64, block_size=16)
    first, second = (job("x", 40, images=[(at, 6, b"same")]) for at in (2, 4))
    second.prompt = list(first.prompt)  # the same token ids, only the picture stands elsewhere
    for one in (first, second):
        one.prompt[0:16] = [49190] * 16
        one.name = f"r{one.images[0][0]}"
        engine.add(one)
        engine.run()
    assert second.outputs[-1].num_cached_tokens == 0


def test_b12_preempted_between_encode_and_use_encodes_again_or_keeps_the_features():
    """The chat's third page is the camera's, whose picture is encoded but whose prefill has not come to it yet."""
    engine = FakeEngine(14, encoder_bytes=10 * FEATURE_BYTES, max_num_batched_tokens=4, max_num_seqs=4, block_size=8)
    jobs = [job("chat", 8, max_tokens=50), job("camera", 82, max_tokens=4, images=[(70, 10, b"i")])]
    jobs[1].priority_class = PriorityClass.BACKGROUND
    for one in jobs:
        engine.add(one)
    while not engine.core.last_plan.preemptions:
        engine.step()
    (camera,) = engine.core.last_plan.preemptions
    assert engine.runner.encoded == [b"i"]
    assert camera.request_id == "camera"
    assert engine.cache.free == engine.cache.capacity
    engine.run()
    assert [one.tokens() for one in jobs] == [one.expected() for one in jobs]


def test_b13_five_hundred_pictures_leave_memory_flat():
    engine = FakeEngine(64, encoder_bytes=20 * 16 * FEATURE_BYTES)
    sizes = []
    for i in range(500):
        engine.add(job(f"r{i}", 40, max_tokens=1, images=[(4, 16, b"picture %d" % i)]))
        engine.run()
        sizes.append(len(engine.cache._entries))
    assert max(sizes) == 20
    assert not engine.core._sequences
    assert len(engine.core.pool._cached) <= 64


def test_b14_the_same_request_twice_says_the_same_and_counts_cached_tokens(checkpoint):
    harness = Harness(checkpoint("smolvlm"))
    core = harness.core()
    jobs = [harness.greedy(user(picture(5, 64, 64), "Colour?"), 6, name=name) for name in ("first", "second")]
    for one in jobs:
        harness.run(core, one)
    assert jobs[0].tokens() == jobs[1].tokens()
    assert jobs[0].finish.num_cached_tokens == 0
    assert jobs[1].finish.num_cached_tokens > 0


def test_c4_an_image_larger_than_a_chunk(checkpoint):
    harness = Harness(checkpoint("qwen2.5-vl"))
    messages = user("A large one:", picture(8, 448, 448), "what?")
    cut, whole = harness.greedy(messages, 6, name="cut"), harness.greedy(messages, 6, name="whole")
    assert cut.prompt.images[0].num_tokens == 256
    harness.run(harness.core(max_num_batched_tokens=50, max_num_seqs=4), cut)
    harness.run(harness.core(), whole)
    assert cut.tokens() == whole.tokens()


def test_c6_text_then_image_then_text_on_one_engine(checkpoint):
    harness = Harness(checkpoint("qwen3-vl"))
    core = harness.core()
    scenes = [user("only text"), user(picture(3, 64, 64), "seen"), user("only text again")]
    for i, scene in enumerate(scenes):
        used, fresh = harness.greedy(scene, 6, name=f"u{i}"), harness.greedy(scene, 6, name=f"f{i}")
        harness.run(core, used)
        harness.run(harness.core(), fresh)
        assert used.tokens() == fresh.tokens()


def test_e5_prompt_tokens_are_constant_while_the_prompt_takes_two_and_a_half_chunks(checkpoint):
    harness = Harness(checkpoint("text"))
    prompt = harness.intake.assemble((tuple(range(100, 200)),), ())
    one = Job(prompt, SamplingParams(temperature=0, max_tokens=5, ignore_eos=True), "r")
    harness.run(harness.core(max_num_batched_tokens=40, max_num_seqs=4), one)
    assert [out.num_prompt_tokens for out in one.outputs] == [100] * 5
    assert [out.num_output_tokens for out in one.outputs] == [1, 2, 3, 4, 5]
