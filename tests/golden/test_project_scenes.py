"""The scenes that started this project, and what they must look like here."""

from __future__ import annotations

import random

import torch

from tests.golden.harness import Harness, Job, Reference, assert_same, picture, user
from vlm_engine import EngineConfig, SamplingParams, VLMEngine
from vlm_engine.outputs import FinishReason
from vlm_engine.step_time import StepTimeModel

PAGES, SENTENCES = 50, 25
WORDS = """
    the camera saw a man with red bag near gate seven while two people walked past and nobody stopped for long until
    rain came over yard lights went on door was closed again by woman in blue coat who waited there since noon
"""


def test_a_thousand_tokens_at_256_are_256_256_256_232(checkpoint):
    harness = Harness(checkpoint("text"))
    base = harness.greedy(user("x"), 4).prompt.token_ids
    whole = harness.intake.assemble(((base * 1000)[:1000],), ())
    params = SamplingParams(temperature=0.0, max_tokens=4, ignore_eos=True)
    cut, one = Job(whole, params, "cut"), Job(whole, params, "one")
    core = harness.core(max_num_batched_tokens=256)
    harness.run(core, cut)
    assert [r.prefill_tokens for r in core.steps.records()[:4]] == [256, 256, 256, 232]
    harness.run(harness.core(), one)
    assert cut.tokens() == one.tokens()


def test_a_picture_of_4096_tokens_prefills_while_eight_chats_decode(checkpoint):
    """No step without every chat's token, and everybody's output is generate's."""
    path = checkpoint("qwen3-vl")
    harness, reference = Harness(path), Reference(path, "sdpa")
    core = harness.core(max_num_batched_tokens=512, max_num_seqs=16, kv_cache_memory=1 << 26)
    # A step of decodes is said to take 50 ms: so long a step may also spend on the picture's five hundred slices.
    core.step_time = StepTimeModel((1, 512), (0.05, 0.06), 0.0, 0.0)
    talks = [user(f"Chat number {i}: say something about gate {i}.") for i in range(8)]
    chats = [harness.greedy(talk, 500, f"chat{i}") for i, talk in enumerate(talks)]
    question = user(picture(1, 2048, 2048), "What is in it?")
    large = harness.greedy(question, 6, "picture")
    assert large.prompt.images[0].num_tokens == 4096

    for chat in chats:
        harness.add(core, chat)
    with torch.inference_mode():
        while not all(chat.outputs for chat in chats):
            core.step()
        harness.add(core, large)
        steps = 0
        while not (large.outputs and large.finish.finish_reason):
            before = [len(chat.tokens()) for chat in chats]
            core.step()
            core.check_integrity()
            assert [len(chat.tokens()) for chat in chats] == [count + 1 for count in before]
            steps += 1
    assert steps >= 4096 // 512 + 6
    assert_same(large.tokens(), reference.generate(question, 6))
    for chat, talk in zip(chats, talks, strict=True):
        assert_same(chat.tokens(), reference.generate(talk, len(chat.tokens())))


async def test_fifty_pages_stream_their_answer_and_the_second_question_hits_the_cache(checkpoint):
    path = checkpoint("text")
    rng = random.Random(0)
    pages = "\n\n".join(
        f"Page {page + 1}\n" + " ".join(" ".join(rng.choices(WORDS.split(), k=15)) + "." for _ in range(SENTENCES))
        for page in range(PAGES)
    )
    engine = VLMEngine(EngineConfig(model=str(path), dtype="float32", device="cpu", kv_cache_memory=1 << 25))
    engine.start()
    try:
        answers = []
        for question in ("Who waited at the gate?", "When did the rain come?"):
            messages = user(f"{pages}\n\n{question}")
            params = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)
            pieces = [output async for output in engine.generate(messages, params)]
            answers.append((messages, pieces))
    finally:
        engine.shutdown()
    (first_messages, first), (second_messages, second) = answers
    length = first[0].num_prompt_tokens
    assert length >= 20_000
    assert [len(piece.token_ids) for piece in first] == [1] * 12, "streamed token by token"
    assert [piece.finish_reason for piece in first[:-1]] == [None] * 11
    assert first[-1].finish_reason is FinishReason.LENGTH
    assert first[0].num_cached_tokens == 0
    assert second[0].num_cached_tokens > length - 64, "all pages but the last, which holds the question"

    reference = Reference(path, "sdpa")
    for messages, pieces in ((first_messages, first), (second_messages, second)):
        assert_same([token for piece in pieces for token in piece.token_ids], reference.generate(messages, 12))
