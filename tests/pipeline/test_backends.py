"""Both backends behind the one interface: the engine itself on a tiny checkpoint, and a server over HTTP."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack
from typing import Any

import jsonschema
import pytest

from api.services import Services
from pipeline.backends import (
    BackendError,
    DescriptionBackend,
    DescriptionPiece,
    DescriptionRequest,
    InProcessBackend,
    OpenAIBackend,
)
from pipeline.config import WatchwordConfig
from pipeline.config.output_schema import DEFAULT_OUTPUT_SCHEMA
from pipeline.reasons import Reason
from tests.api.live_server import LiveServer
from tests.pipeline.material import jpeg_of
from tests.pipeline.openai_server import Behaviour, OpenAIServer, pictures_of
from tests.pipeline.waiting import until


def asking(*pictures: bytes, max_tokens: int = 8, **changes: Any) -> DescriptionRequest:
    values = {"system": "Say what is seen.", "question": "What is it?", "max_tokens": max_tokens}
    return DescriptionRequest(pictures, **(values | changes))


async def answer(
    backend: DescriptionBackend, *pictures: bytes, max_tokens: int = 8, **changes: Any
) -> list[DescriptionPiece]:
    request = asking(*pictures, max_tokens=max_tokens, **changes)
    return [piece async for piece in backend.describe(request)]


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


Remote = Callable[[OpenAIServer], OpenAIBackend]


@pytest.fixture
async def remote() -> AsyncIterator[Remote]:
    """``remote(server)`` -> a backend, closed within the test's loop: the client would else be closed in whichever test
    the garbage collector gets to it, and say there that its loop is gone."""
    async with AsyncExitStack() as stack:

        def connect(server: OpenAIServer) -> OpenAIBackend:
            backend = OpenAIBackend(server.base_url, None, "remote")
            stack.push_async_callback(backend.close)
            return backend

        yield connect


async def test_a_server_streams_words_and_counts_tokens(server, remote):
    server.behaviour = Behaviour()
    pieces = await answer(remote(server), jpeg_of())

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
async def test_a_servers_refusal_is_a_reason(server, status, headers, reason, retry_after, remote):
    server.behaviour = Behaviour(refusals=[(status, headers)])

    with pytest.raises(BackendError) as caught:
        await answer(remote(server), jpeg_of())

    assert (caught.value.reason, caught.value.retry_after) == (reason, retry_after)
    assert len(server.behaviour.seen) == 1, "the describer repeats, not the client"


async def test_an_unreachable_server_is_down(remote):
    absent = OpenAIServer()
    absent.stop()
    assert await reason_of(remote(absent), jpeg_of()) == Reason.ENGINE_DOWN


SCHEMA = dict(DEFAULT_OUTPUT_SCHEMA)


async def test_a_schema_and_several_pictures_are_asked_for_in_openais_words(server, remote):
    server.behaviour = Behaviour()
    await answer(remote(server), jpeg_of(1), jpeg_of(2), schema=SCHEMA)

    [body] = server.behaviour.seen
    assert body["response_format"]["type"] == "json_schema"
    assert body["response_format"]["json_schema"] == {"name": "description", "schema": SCHEMA, "strict": True}
    assert pictures_of(body) == [jpeg_of(1), jpeg_of(2)]
    await answer(remote(server), jpeg_of())
    assert "response_format" not in server.behaviour.seen[-1]


async def test_a_server_that_refuses_schemas_is_warned_of_once_and_asked_without(server, caplog, remote):
    server.behaviour = Behaviour(refuses={"response_format"})
    backend = remote(server)
    for _ in range(3):
        pieces = await answer(backend, jpeg_of(), schema=SCHEMA)
        assert "".join(piece.text for piece in pieces) == "A person in red ."

    assert ["response_format" in body for body in server.behaviour.seen] == [True, False, False, False]
    assert [record.levelname for record in caplog.records].count("WARNING") == 1
    assert "refuses JSON schemas (response_format)" in caplog.text


async def test_a_crop_that_is_refused_in_any_case_teaches_nothing(server, caplog, remote):
    server.behaviour = Behaviour(refusals=[(400, {})] * 4)
    backend = remote(server)
    with pytest.raises(BackendError) as caught:
        await answer(backend, jpeg_of(1), jpeg_of(2), schema=SCHEMA)
    assert caught.value.reason == Reason.ENGINE_ERROR
    await answer(backend, jpeg_of(1), jpeg_of(2), schema=SCHEMA)

    assert "response_format" in server.behaviour.seen[-1] and len(pictures_of(server.behaviour.seen[-1])) == 2
    assert [record.getMessage() for record in caplog.records if record.name.startswith("pipeline")] == []


async def test_a_server_that_takes_one_picture_is_asked_again_with_the_best(server, caplog, remote):
    server.behaviour = Behaviour(refuses={"pictures"})
    backend = remote(server)
    assert backend.takes_several_pictures
    with pytest.raises(BackendError) as caught:
        await answer(backend, jpeg_of(1), jpeg_of(2), jpeg_of(3), best=1)
    assert caught.value.too_many_pictures, "what is kept of the request must be what was asked"
    assert not backend.takes_several_pictures
    assert pictures_of(server.behaviour.seen[-1]) == [jpeg_of(2)]
    await until(lambda: server.behaviour.running == 0)
    assert "refuses prompts with 3 pictures: it gets the best one alone" in caplog.text


async def test_r53_an_answer_without_choices_is_that_crops_failure(server, remote):
    server.behaviour = Behaviour(choiceless=True)
    assert await reason_of(remote(server), jpeg_of()) == Reason.ENGINE_ERROR


async def test_r53_reasoning_is_told_apart_from_the_answer(server, remote):
    server.behaviour = Behaviour(reasoning="so it is")
    pieces = await answer(remote(server), jpeg_of())
    assert "".join(piece.reasoning for piece in pieces) == "so it is "
    assert "".join(piece.text for piece in pieces) == "A person in red ."


async def test_leaving_early_ends_the_request_at_the_server(server, remote):
    server.behaviour = Behaviour(words="word " * 100, pause_s=0.05)
    pieces = remote(server).describe(asking(jpeg_of(), system=""))
    assert (await anext(pieces)).text == "word"
    await pieces.aclose()
    await until(lambda: server.behaviour.running == 0)


@pytest.fixture(scope="module")
def engine(tiny_smolvlm):
    from vlm_engine import EngineConfig, VLMEngine

    running = VLMEngine(EngineConfig(model=str(tiny_smolvlm), device="cpu", max_model_len=4096))
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
    whole = await answer(InProcessBackend(engine), jpeg_of(), max_tokens=1)
    one_tile = await answer(InProcessBackend(engine, {"do_image_splitting": False}), jpeg_of(), max_tokens=1)

    assert one_tile[-1].usage.prompt_tokens < whole[-1].usage.prompt_tokens


async def test_a_bound_on_the_pictures_tokens_is_kept_and_told(engine):
    """One below what the model needs means that: crops must not fail for it."""
    backend = InProcessBackend(engine)

    async def image_tokens(bound: int | None) -> int | None:
        pieces = await answer(backend, jpeg_of(), max_tokens=1, system="", max_image_tokens=bound)
        return pieces[-1].usage.image_tokens

    assert await image_tokens(None) > 300
    assert 64 < await image_tokens(300) <= 300
    assert await image_tokens(64) == await image_tokens(1) == 64


async def test_a_model_that_sees_nothing_still_gives_an_object_that_fits(engine):
    """Random weights write whatever the grammar lets them; every text and list of our schema has an end."""
    jpegs = [jpeg_of(n) for n in range(3)]
    backend = InProcessBackend(engine)
    answers = await asyncio.gather(*(answer(backend, jpeg, max_tokens=900, schema=SCHEMA) for jpeg in jpegs))
    for pieces in answers:
        text = "".join(piece.text for piece in pieces)
        assert pieces[-1].finish_reason == "stop", text
        jsonschema.validate(json.loads(text), SCHEMA)
        assert next(iter(json.loads(text))) == "description"


async def test_an_engine_without_grammars_still_describes(engine, caplog, monkeypatch):
    monkeypatch.setattr(engine._grammars, "_unavailable", "structured output doesn't know this model's tokenizer")
    backend = InProcessBackend(engine)
    for _ in range(2):
        assert (await answer(backend, jpeg_of(), schema=SCHEMA))[-1].finish_reason is not None
    assert [record.levelname for record in caplog.records].count("WARNING") == 1
    assert "doesn't know this model's tokenizer" in caplog.text


async def test_several_pictures_go_into_one_prompt_and_share_its_bound(engine):
    backend = InProcessBackend(engine)
    assert backend.takes_several_pictures
    one = (await answer(backend, jpeg_of(1), max_tokens=1, max_image_tokens=128))[-1].usage
    three = (await answer(backend, *map(jpeg_of, (1, 2, 3)), max_tokens=1, max_image_tokens=128))[-1].usage
    assert three.image_tokens == 3 * one.image_tokens <= 3 * 128
    assert three.prompt_tokens > one.prompt_tokens


async def test_pictures_that_do_not_fit_into_the_context_together_are_told_of(engine):
    backend = InProcessBackend(engine)
    with pytest.raises(BackendError) as caught:
        await answer(backend, *(jpeg_of(n, (640, 640)) for n in (1, 90, 180, 250)), max_tokens=900)
    assert caught.value.too_many_pictures
    assert (await answer(backend, jpeg_of(1, (640, 640)), max_tokens=1))[-1].finish_reason is not None


async def test_our_own_server_answers_the_openai_backend_in_the_same_way(engine):
    """Over HTTP, with the official client: the same prompt, the same words as in process; JSON that fits either way."""
    with LiveServer(Services(WatchwordConfig(), engine, None, None, "tiny")) as live:
        backend = OpenAIBackend(f"{live.url}/v1", None, "tiny")
        pictures = (jpeg_of(1), jpeg_of(2))
        over_http = await answer(backend, *pictures, max_tokens=40)
        fitting = await answer(backend, *pictures, max_tokens=900, schema=SCHEMA)
        await backend.close()
    here = await answer(InProcessBackend(engine), *pictures, max_tokens=40)
    one_line = await answer(InProcessBackend(engine), *pictures, max_tokens=900, schema=SCHEMA)

    assert "".join(piece.text for piece in over_http) == "".join(piece.text for piece in here)
    assert over_http[-1].usage.prompt_tokens == here[-1].usage.prompt_tokens
    for pieces in (fitting, one_line):
        assert pieces[-1].finish_reason == "stop"
        jsonschema.validate(json.loads("".join(piece.text for piece in pieces)), SCHEMA)
    assert "".join(piece.text for piece in one_line).startswith('{"description": "')


async def test_a_picture_that_is_none_fails_alone(engine):
    backend = InProcessBackend(engine)
    good, bad = await asyncio.gather(answer(backend, jpeg_of()), reason_of(backend, b"no picture"))

    assert bad == Reason.ENGINE_ERROR
    assert good[-1].finish_reason is not None


async def test_leaving_early_frees_the_engine(engine):
    pieces = InProcessBackend(engine).describe(asking(jpeg_of(), max_tokens=500))
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
    pieces = backend.describe(asking(jpeg_of(), max_tokens=900))
    await anext(pieces)
    await asyncio.to_thread(engine.shutdown)

    with pytest.raises(BackendError) as caught:
        async for _ in pieces:
            pass
    assert caught.value.reason == Reason.ENGINE_DOWN
    assert await reason_of(backend, jpeg_of()) == Reason.ENGINE_DOWN
