"""Log-probabilities of a prompt's own tokens: those of the model, however the prompt is computed."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
import torch
from transformers import AutoModelForCausalLM

from vlm_engine import EngineConfig, FinishReason, SamplingParams, VLMEngine

PROMPT = tuple(torch.randint(10, 900, (150,), generator=torch.Generator().manual_seed(5)).tolist())
SCORED = SamplingParams(temperature=0.0, max_tokens=2, ignore_eos=True, prompt_logprobs=3)
CHATTING = replace(SCORED, max_tokens=60, prompt_logprobs=None)


@pytest.fixture(scope="module")
def folder(checkpoint):
    return checkpoint("text")


@pytest.fixture(scope="module")
def engine(folder):
    """Chunks of at most 64 tokens; pages for 320 tokens."""
    engine = VLMEngine(
        EngineConfig(
            model=str(folder), dtype="float32", device="cpu", num_threads=1, max_num_batched_tokens=64,
            kv_cache_memory=1 << 22,
        )
    )  # fmt: skip
    engine.start()
    yield engine
    engine.shutdown()


@pytest.fixture(scope="module")
def reference(folder) -> torch.Tensor:
    """``[149, vocabulary]``: row i is about token i + 1."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.inference_mode():
        return torch.log_softmax(model(torch.tensor([PROMPT])).logits[0, :-1], dim=-1)


async def pieces(engine, params=SCORED, prompt=PROMPT):
    prepared = await engine.prepare_tokens(prompt)
    async with await engine.submit(prepared, params) as stream:
        return [piece async for piece in stream]


def check(got, reference) -> None:
    """The first piece of output 0 holds all of it, the others nothing."""
    [first] = [piece for piece in got if piece.prompt_logprobs]
    assert first is next(piece for piece in got if piece.index == 0)
    assert len(first.prompt_logprobs) == len(PROMPT) - 1
    for row, token, position in zip(reference, PROMPT[1:], first.prompt_logprobs, strict=True):
        assert position.chosen.token_id == token
        assert position.chosen.logprob == pytest.approx(float(row[token]), abs=2e-4)
        assert abs(position.chosen.rank - 1 - int((row > row[token]).sum())) <= int(
            ((row - row[token]).abs() < 4e-4).sum()
        )
        assert [top.logprob for top in position.top] == pytest.approx(row.topk(3).values.tolist(), abs=2e-4)


async def test_they_are_the_models_own_in_chunks_of_64(engine, reference):
    check(await pieces(engine), reference)


async def test_a_prompt_that_is_cached_already_has_them_too(engine, reference):
    await pieces(engine, replace(SCORED, prompt_logprobs=None))
    got = await pieces(engine)
    check(got, reference)
    assert got[0].num_cached_tokens == 0
    assert (await pieces(engine, replace(SCORED, prompt_logprobs=None)))[0].num_cached_tokens > 0


async def test_several_outputs_share_them(engine, reference):
    check(await pieces(engine, replace(SCORED, n=3)), reference)


async def test_beside_others_that_decode(engine, reference):
    others = [asyncio.create_task(pieces(engine, CHATTING, (7, number))) for number in range(3)]
    check(await pieces(engine), reference)
    assert all([(await other)[-1].finish_reason is FinishReason.LENGTH for other in others])


async def test_output_is_the_same_with_and_without(engine):
    def tokens(got):
        return [token for piece in got for token in piece.token_ids]

    plain = await pieces(engine, replace(CHATTING, max_tokens=8))
    assert tokens(await pieces(engine, replace(SCORED, max_tokens=8))) == tokens(plain)


async def test_a_prompt_of_one_token_has_none(engine):
    got = await pieces(engine, prompt=(7,))
    assert not any(piece.prompt_logprobs for piece in got) and got[-1].finish_reason is FinishReason.LENGTH


async def test_a_preemption_in_the_middle_changes_nothing(engine, folder, reference):
    """14 pages: two chats that grow take those of the prompt that is half scored."""
    each = 16 * engine._core.runner.shape.bytes_per_token(torch.float32)
    small = VLMEngine(
        EngineConfig(
            model=str(folder), dtype="float32", device="cpu", num_threads=1, max_num_batched_tokens=5, max_num_seqs=4,
            block_size=16, max_model_len=160, kv_cache_memory=14 * each, target_itl_ms=None,
        )
    )  # fmt: skip
    small.start()
    try:
        long = replace(CHATTING, max_tokens=100)
        async with (
            await small.submit(await small.prepare_tokens((7, 8)), long) as first,
            await small.submit(await small.prepare_tokens((7, 9)), long) as second,
        ):
            await anext(first), await anext(second)
            check(await pieces(small), reference)
            assert small.metrics.value("num_preemptions") >= 1
    finally:
        small.shutdown()


async def test_what_fails_while_scoring_fails_alone(engine, reference, monkeypatch):
    def broken(chunk):
        raise RuntimeError("no scores today")

    other = asyncio.create_task(pieces(engine, CHATTING, (7, 8)))
    monkeypatch.setattr(engine._core.runner, "score", broken)
    got = await pieces(engine, replace(SCORED, n=2))
    assert {piece.finish_reason for piece in got} == {FinishReason.ERROR}
    monkeypatch.undo()
    assert (await other)[-1].finish_reason is FinishReason.LENGTH
    check(await pieces(engine), reference)
