"""Both backends behind the one interface: the engine itself on a tiny checkpoint, and a server over HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from pipeline.backends import BackendError, DescriptionBackend, DescriptionPiece, InProcessBackend, OpenAIBackend
from pipeline.reasons import Reason
from tests.pipeline.material import jpeg_of
from tests.pipeline.openai_server import Behaviour, OpenAIServer
from tests.pipeline.waiting import until


async def answer(backend: DescriptionBackend, jpeg: bytes, max_tokens: int = 8) -> list[DescriptionPiece]:
    return [piece async for piece in backend.describe(jpeg, "Say what is seen.", "What is it?", max_tokens)]


async def reason_of(backend: DescriptionBackend, jpeg: bytes) -> Reason:
    with pytest.raises(BackendError) as caught:
        await answer(backend, jpeg)
    return caught.value.reason


@pytest.fixture(scope="module")
def server() -> Iterator[OpenAIServer]:
    running = OpenAIServer()
    running.start()
    yield running
    running.stop()


async def test_a_server_streams_words_and_counts_tokens(server):
    server.behaviour = Behaviour()
    pieces = await answer(OpenAIBackend(server.base_url, None, "remote"), jpeg_of())

    assert [piece.text for piece in pieces] == ["A", " person", " in", " red", " .", ""]
    assert [piece.finish_reason for piece in pieces] == [None] * 5 + ["stop"]
    usage = pieces[-1].usage
    assert (usage.prompt_tokens, usage.cached_tokens, usage.output_tokens) == (70, 64, 5)


@pytest.mark.parametrize(
    ("status", "headers", "reason", "retry_after"),
    [
        (400, {}, Reason.ENGINE_ERROR, None),
        (401, {}, Reason.ENGINE_DOWN, None),
        (404, {}, Reason.ENGINE_DOWN, None),
        (413, {}, Reason.ENGINE_ERROR, None),
        (429, {"retry-after": "7"}, Reason.ENGINE_BUSY, 7.0),
        (429, {"retry-after": "Wed, 21 Oct 2026 07:28:00 GMT"}, Reason.ENGINE_BUSY, None),
        (500, {}, Reason.ENGINE_ERROR, None),
        (503, {"retry-after": "nan"}, Reason.ENGINE_DOWN, None),
    ],
)
async def test_a_servers_refusal_is_a_reason(server, status, headers, reason, retry_after):
    server.behaviour = Behaviour(refusals=[(status, headers)])

    with pytest.raises(BackendError) as caught:
        await answer(OpenAIBackend(server.base_url, None, "remote"), jpeg_of())

    assert (caught.value.reason, caught.value.retry_after) == (reason, retry_after)
    assert len(server.behaviour.seen) == 1, "the describer repeats, not the client"


async def test_an_unreachable_server_is_down():
    absent = OpenAIServer()
    absent.stop()
    assert await reason_of(OpenAIBackend(absent.base_url, None, "remote"), jpeg_of()) == Reason.ENGINE_DOWN


async def test_leaving_early_ends_the_request_at_the_server(server):
    server.behaviour = Behaviour(words="word " * 100, pause_s=0.05)
    pieces = OpenAIBackend(server.base_url, None, "remote").describe(jpeg_of(), "", "What is it?", 8)
    assert (await anext(pieces)).text == "word"
    await pieces.aclose()
    await until(lambda: server.behaviour.running == 0)


@pytest.fixture(scope="module")
def engine(tiny_smolvlm):
    from vlm_engine import EngineConfig, VLMEngine

    running = VLMEngine(EngineConfig(model=str(tiny_smolvlm), device="cpu", max_model_len=2048))
    running.start()
    yield running
    running.shutdown()


async def test_the_engine_streams_the_same_words_each_time_and_counts_tokens(engine):
    backend = InProcessBackend(engine)
    first = await answer(backend, jpeg_of())
    again = await answer(backend, jpeg_of())

    assert "".join(piece.text for piece in first) == "".join(piece.text for piece in again)
    assert first[-1].finish_reason in ("stop", "length")
    assert 0 < first[-1].usage.output_tokens <= 8
    assert first[-1].usage.prompt_tokens > 64, "the picture's tokens are in the prompt"
    assert backend.model == engine.model_name


async def test_options_for_the_models_processor_are_passed_on(engine):
    whole = await answer(InProcessBackend(engine), jpeg_of(), 1)
    one_tile = await answer(InProcessBackend(engine, {"do_image_splitting": False}), jpeg_of(), 1)

    assert one_tile[-1].usage.prompt_tokens < whole[-1].usage.prompt_tokens


async def test_a_bound_on_the_pictures_tokens_is_kept_and_told(engine):
    """One below what the model needs means that: crops must not fail for it."""
    backend = InProcessBackend(engine)

    async def image_tokens(bound: int | None) -> int | None:
        pieces = [piece async for piece in backend.describe(jpeg_of(), "", "What is it?", 1, bound)]
        return pieces[-1].usage.image_tokens

    assert await image_tokens(None) > 300
    assert 64 < await image_tokens(300) <= 300
    assert await image_tokens(64) == await image_tokens(1) == 64


async def test_a_picture_that_is_none_fails_alone(engine):
    backend = InProcessBackend(engine)
    good, bad = await asyncio.gather(answer(backend, jpeg_of()), reason_of(backend, b"no picture"))

    assert bad == Reason.ENGINE_ERROR
    assert good[-1].finish_reason is not None


async def test_leaving_early_frees_the_engine(engine):
    pieces = InProcessBackend(engine).describe(jpeg_of(), "", "What is it?", 500)
    await anext(pieces)
    await pieces.aclose()
    await until(lambda: engine.metrics.value("num_requests_running") == 0)


async def test_an_engine_that_is_not_loaded_yet_is_down(tiny_smolvlm):
    from vlm_engine import EngineConfig, VLMEngine

    backend = InProcessBackend(VLMEngine(EngineConfig(model=str(tiny_smolvlm), device="cpu")))
    assert await reason_of(backend, jpeg_of()) == Reason.ENGINE_DOWN


async def test_a_crop_is_not_to_blame_when_the_engine_shuts_down_under_it(engine):
    """Last in this file: the engine that the tests share is gone after it."""
    backend = InProcessBackend(engine)
    pieces = backend.describe(jpeg_of(), "", "What is it?", 900)
    await anext(pieces)
    await asyncio.to_thread(engine.shutdown)

    with pytest.raises(BackendError) as caught:
        async for _ in pieces:
            pass
    assert caught.value.reason == Reason.ENGINE_DOWN
    assert await reason_of(backend, jpeg_of()) == Reason.ENGINE_DOWN
