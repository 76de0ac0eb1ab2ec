"""The engine with its thread and its worker processes: submit, stream, abort, refuse, fail alone."""

from __future__ import annotations

import asyncio
import io
import os
import signal

import pytest
import torch

from tests.golden.harness import picture, user
from vlm_engine import (
    EngineConfig,
    EngineDeadError,
    EngineState,
    FinishReason,
    InvalidRequestError,
    ModelLoadError,
    OverloadedError,
    PriorityClass,
    RequestFailedError,
    SamplingParams,
    VLMEngine,
)

GREEDY = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True)


@pytest.fixture(scope="module")
def engine(checkpoint):
    engine = VLMEngine(
        EngineConfig(
            model=str(checkpoint("smolvlm")),
            dtype="float32",
            device="cpu",
            kv_cache_memory=1 << 24,
            max_num_batched_tokens=64,
            max_num_seqs=8,
            max_queued_requests=12,
        )
    )
    engine.start()
    yield engine
    engine.shutdown()


@pytest.fixture(autouse=True)
def nothing_leaks(request):
    """A18: after every test no request, page or feature is held."""
    yield
    if "engine" in request.fixturenames:
        asyncio.run(idle(request.getfixturevalue("engine")))


async def idle(engine):
    core = engine._core
    async with asyncio.timeout(20):
        while core.has_work or engine._thread.inbox:
            await asyncio.sleep(0.005)
    core.check_integrity()
    assert core.pool.num_free == core.pool.num_blocks
    assert core.encoder_cache.free == core.encoder_cache.capacity


async def collect(engine, messages, params=GREEDY, **options):
    return [out async for out in engine.generate(messages, params, **options)]


def text(outputs):
    return "".join(out.text for out in outputs)


def jpeg(image):
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    return buffer.getvalue()


async def test_pictures_as_bytes_and_as_objects_say_the_same(engine):
    image = picture(1, 80, 60)
    first = await collect(engine, user(image, "What is it?"))
    second = await collect(engine, user(jpeg(image), "What is it?"))
    assert text(first) == text(second) != ""
    assert second[-1].num_cached_tokens > 0
    assert first[-1].finish_reason is FinishReason.LENGTH


async def test_many_at_once_say_what_they_say_alone(engine):
    """A19 in small: more requests than places, each with its own picture; C7: nobody sees another's picture."""
    scenes = [user(picture(i, 60 + i, 50), f"Scene {i}?") for i in range(10)]
    together = await asyncio.gather(*(collect(engine, scene) for scene in scenes))
    alone = [await collect(engine, scene) for scene in scenes]
    assert [text(a) for a in together] == [text(b) for b in alone]


async def test_stop_string_ends_the_output_unseen(engine):
    whole = text(await collect(engine, user("Tell me a story."), SamplingParams(temperature=0, max_tokens=30)))
    stop = whole[len(whole) // 2 : len(whole) // 2 + 4]
    outputs = await collect(
        engine, user("Tell me a story."), SamplingParams(temperature=0, max_tokens=30, stop=(stop,))
    )
    assert text(outputs) == whole[: whole.index(stop)]
    assert (outputs[-1].finish_reason, outputs[-1].stop_reason) == (FinishReason.STOP, stop)


async def test_n_outputs_with_a_seed_are_different_and_repeatable(engine):
    params = SamplingParams(temperature=1.0, max_tokens=8, n=3, seed=5, ignore_eos=True)

    async def texts():
        outputs = await collect(engine, user("Say anything."), params)
        return [text([o for o in outputs if o.index == i]) for i in range(3)]

    first, second = await texts(), await texts()
    assert first == second
    assert len(set(first)) == 3


async def test_logprobs_come_with_every_token(engine):
    outputs = await collect(
        engine, user("Hi"), SamplingParams(temperature=0, max_tokens=4, logprobs=3, ignore_eos=True)
    )
    for out in outputs:
        (position,) = out.logprobs
        assert position.chosen.token_id == out.token_ids[0] == position.top[0].token_id
        assert len(position.top) == 3


async def test_a16_leaving_while_it_generates_aborts_it(engine):
    aborted = engine.metrics.value("request_finished", finished_reason="abort", **{"class": "interactive"})
    stream = engine.generate(user("Go on and on."), SamplingParams(temperature=0, max_tokens=4000, ignore_eos=True))
    async for _ in stream:
        break
    await stream.aclose()
    await idle(engine)
    after = engine.metrics.value("request_finished", finished_reason="abort", **{"class": "interactive"})
    assert after == aborted + 1


async def test_a17_aborting_while_queued_and_in_prefill(engine):
    long = SamplingParams(temperature=0, max_tokens=200, ignore_eos=True)
    prompt = await engine.prepare(user(" ".join(f"word{i}" for i in range(1500))))
    streams = [await engine.submit(prompt, long, request_id=f"q{i}") for i in range(12)]
    # Twelve prompts of thousands of tokens at 64 a step: the first is in prefill for long, the last ones are queued.
    for i in range(12):
        engine.abort(f"q{i}")
    ends = [[out async for out in stream][-1].finish_reason for stream in streams]
    assert ends == [FinishReason.ABORT] * 12


async def test_a14_a_burst_beyond_the_queue_is_refused_with_a_time(engine):
    prompt = await engine.prepare(user("Hello"))
    streams, refused = [], 0
    for i in range(60):
        try:
            streams.append(
                await engine.submit(prompt, SamplingParams(temperature=0, max_tokens=50), request_id=f"b{i}")
            )
        except OverloadedError as error:
            refused += 1
            assert error.retry_after > 0
    assert refused > 0
    assert len(streams) >= 12
    for stream in streams:
        reasons = [out.finish_reason async for out in stream]
        assert reasons[-1] in (FinishReason.STOP, FinishReason.LENGTH)


async def test_a5_e10_what_can_never_fit_is_refused_with_the_numbers(engine):
    prompt = await engine.prepare(user("word " * 9000))
    with pytest.raises(InvalidRequestError, match=r"prompt takes \d+ tokens, the context holds 8192"):
        await engine.submit(prompt, GREEDY)
    short = await engine.prepare(user("word"))
    with pytest.raises(InvalidRequestError, match=r"max_tokens is 9000, the context holds 8192") as error:
        await engine.submit(short, SamplingParams(max_tokens=9000))
    assert error.value.code == "context_length_exceeded"


async def test_bad_pictures_are_refused_before_the_queue(engine):
    with pytest.raises(InvalidRequestError, match="none of JPEG"):
        await engine.prepare(user(b"no picture", "What?"))
    # The worker lives on.
    assert text(await collect(engine, user(picture(1, 50, 50), "What?")))


async def test_c8_order_of_text_and_pictures_is_kept(engine):
    prompt = await engine.prepare(user("alpha", picture(1, 50, 50), "beta", picture(2, 50, 50)))
    whole = engine.tokenizer.decode(prompt.token_ids)
    first, second = (image.token_indices[0] for image in prompt.images)
    assert "alpha" in engine.tokenizer.decode(prompt.token_ids[:first])
    assert "beta" in engine.tokenizer.decode(prompt.token_ids[first:second])
    assert whole.index("alpha") < whole.index("beta")


@pytest.mark.parametrize("stage", ["encode", "sample", "detokenize"])
async def test_an_exception_in_one_requests_stage_fails_it_alone(engine, monkeypatch, stage):
    good = asyncio.create_task(collect(engine, user("I am fine."), SamplingParams(temperature=0, max_tokens=60)))
    marker = {"encode": user(picture(77, 64, 64), "x"), "sample": user("bad"), "detokenize": user("bad")}[stage]
    if stage == "encode":
        monkeypatch.setattr(engine._core.runner, "start_encode", lambda inputs: 1 / 0)
    elif stage == "sample":
        original = engine._core._choose

        def choose(logits, states):
            if any(s.params.seed == 666 for s in states):
                raise RuntimeError("bad row")
            return original(logits, states)

        monkeypatch.setattr(engine._core, "_choose", choose)
    else:
        from vlm_engine.detokenizer import Detokenizer

        original = Detokenizer.add

        def add(self, token):
            if self._stops == ("poison",):
                raise RuntimeError("bad text")
            return original(self, token)

        monkeypatch.setattr(Detokenizer, "add", add)
    params = SamplingParams(temperature=0, max_tokens=5, seed=666, stop=("poison",))
    with pytest.raises(RequestFailedError):
        await collect(engine, marker, params)
    assert (await good)[-1].finish_reason in (FinishReason.STOP, FinishReason.LENGTH)
    assert engine.state is EngineState.READY
    monkeypatch.undo()
    assert text(await collect(engine, marker, SamplingParams(temperature=0, max_tokens=5, ignore_eos=True)))


async def test_a_picture_worker_that_dies_takes_nobody_with_it(engine):
    before = asyncio.create_task(engine.prepare(user(picture(30, 400, 400), "before")))
    await asyncio.sleep(0)
    for pid in engine._pool.worker_pids:
        os.kill(pid, signal.SIGKILL)
    during = await engine.prepare(user(picture(31, 64, 64), "during"))
    assert len((await before).images) == len(during.images) == 1
    assert text(await collect(engine, user(picture(31, 64, 64), "after")))


class Lethal:
    """Ends whoever unpickles it: a stand-in for a picture on which a decoder crashes."""

    def __reduce__(self):
        return os._exit, (1,)


async def test_a_picture_that_kills_every_worker_fails_alone(engine):
    neighbours = [asyncio.create_task(engine.prepare(user(picture(32, 64, 64), "fine"))) for _ in range(3)]
    lethal = asyncio.create_task(engine.prepare(user(Lethal(), "boom")))
    neighbours += [asyncio.create_task(engine.prepare(user(picture(33, 64, 64), "fine"))) for _ in range(3)]
    with pytest.raises(InvalidRequestError, match="died on the picture"):
        await lethal
    assert [len(prompt.images) for prompt in await asyncio.gather(*neighbours)] == [1] * 6


async def test_a19_seventy_two_pictures_at_once_are_answered_or_refused(engine):
    async def one(number):
        try:
            return await collect(
                engine, user(picture(number, 48, 48), f"{number}?"), SamplingParams(temperature=0, max_tokens=2)
            )
        except OverloadedError:
            return None

    answers = await asyncio.gather(*(one(number) for number in range(72)))
    answered = [a for a in answers if a is not None]
    assert len(answered) >= 12
    assert all(a[-1].finish_reason in (FinishReason.STOP, FinishReason.LENGTH) for a in answered)
    assert engine.state is EngineState.READY


async def test_b11_a_picture_that_failed_once_can_be_tried_again(engine, monkeypatch):
    scene = user(picture(78, 64, 64), "again")
    monkeypatch.setattr(engine._core.runner, "start_encode", lambda inputs: 1 / 0)
    with pytest.raises(RequestFailedError):
        await collect(engine, scene)
    monkeypatch.undo()
    assert text(await collect(engine, scene))


async def test_people_go_before_cameras(engine):
    """Background prompts arrive first and fill every place; a chat that comes later finishes before most of them."""
    order = []

    async def one(name, kind):
        params = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True)
        await collect(engine, user(f"{name} " + "word " * 400), params, priority_class=kind)
        order.append(name)

    cameras = [asyncio.create_task(one(f"camera{i}", PriorityClass.BACKGROUND)) for i in range(7)]
    await asyncio.sleep(0)
    chat = asyncio.create_task(one("chat", PriorityClass.INTERACTIVE))
    await asyncio.gather(chat, *cameras)
    assert order.index("chat") <= 1


def test_describe_is_for_scripts(engine):
    assert engine.describe([picture(1, 60, 60)], "What?", max_tokens=4)


def test_loading_what_is_not_there_says_so_in_one_line(tmp_path):
    missing = VLMEngine(EngineConfig(model=str(tmp_path / "nothing")))
    with pytest.raises(ModelLoadError, match="there is no such folder"):
        missing.start()
    assert missing.state is EngineState.STOPPED
    hub = VLMEngine(EngineConfig(model="nobody/never-existed"))
    with pytest.raises(ModelLoadError, match="not in the local cache and not downloadable") as error:
        hub.start()
    assert "\n" not in str(error.value)


async def test_an_error_that_cannot_be_isolated_ends_every_stream_and_says_dead(checkpoint, monkeypatch):
    engine = VLMEngine(
        EngineConfig(model=str(checkpoint("text")), dtype="float32", device="cpu", kv_cache_memory=1 << 22)
    )
    await asyncio.to_thread(engine.start)
    prompt = await engine.prepare(user("Hello"))
    monkeypatch.setattr(engine._core.runner, "forward", lambda chunks: torch.zeros(1) @ torch.zeros(2))
    streams = [await engine.submit(prompt, GREEDY, request_id=f"d{i}") for i in range(3)]
    for stream in streams:
        assert [out.finish_reason async for out in stream][-1] is FinishReason.ERROR
    assert engine.state is EngineState.DEAD
    with pytest.raises(EngineDeadError):
        await engine.submit(prompt, GREEDY)
    await asyncio.to_thread(engine.shutdown)


async def test_shutdown_ends_what_is_running(checkpoint):
    engine = VLMEngine(
        EngineConfig(model=str(checkpoint("text")), dtype="float32", device="cpu", kv_cache_memory=1 << 22)
    )
    await asyncio.to_thread(engine.start)
    prompt = await engine.prepare(user("Hello"))
    stream = await engine.submit(prompt, SamplingParams(temperature=0, max_tokens=2000, ignore_eos=True))
    await anext(stream)
    await asyncio.to_thread(engine.shutdown)
    assert [out.finish_reason async for out in stream][-1] is FinishReason.ABORT
    assert engine.state is EngineState.STOPPED
