"""What a benchmark asks of servers that know less than ours, and how it counts their tokens."""

from __future__ import annotations

import pytest

from pipeline.bench.asks import Ask
from pipeline.bench.endpoint import EndpointError, OpenAIEndpoint, Usage
from tests.bench.picky_server import PickyServer, text


async def test_a_refused_extra_is_left_out_from_then_on_and_named() -> None:
    with PickyServer(refuses=("priority", "continuous_usage_stats")) as server:
        async with await OpenAIEndpoint.open(server.base_url) as endpoint:
            assert endpoint.model == "picky"
            assert endpoint.refused == ("priority", "usage in every chunk")
            await endpoint.answer(Ask("x", 7, background=True), lambda _: None)
    sent = server.bodies[-1]
    assert "priority" not in sent and sent["stream_options"] == {"include_usage": True}
    assert sent["ignore_eos"] is True and sent["max_tokens"] == 7


async def test_a_server_that_knows_no_extra_at_all_is_asked_plainly() -> None:
    with PickyServer(refuses=("priority", "ignore_eos", "stream_options")) as server:
        async with await OpenAIEndpoint.open(server.base_url) as endpoint:
            await endpoint.answer(Ask("x", 7, background=True), lambda _: None)
    assert set(server.bodies[-1]) == {"model", "messages", "max_tokens", "temperature", "stream"}


async def test_background_is_a_priority_and_people_have_none() -> None:
    with PickyServer() as server:
        async with await OpenAIEndpoint.open(server.base_url) as endpoint:
            await endpoint.answer(Ask("x", 7, background=True), lambda _: None)
            await endpoint.answer(Ask("x", 7), lambda _: None)
    assert server.bodies[-2]["priority"] == 1 and "priority" not in server.bodies[-1]


async def test_one_tile_is_asked_for_by_request_and_its_refusal_is_told_with_the_servers_reason() -> None:
    with PickyServer(refuses=("mm_processor_kwargs",)) as server:
        async with await OpenAIEndpoint.open(server.base_url):
            pass  # without one tile there is nothing to refuse
        with pytest.raises(EndpointError, match=r"do_image_splitting.*mm_processor_kwargs is unknown here"):
            await OpenAIEndpoint.open(server.base_url, one_tile=True)
    assert server.bodies[-1]["mm_processor_kwargs"] == {"do_image_splitting": False}


async def test_tokens_are_counted_by_the_server_where_every_chunk_says_them() -> None:
    """A stalled server hands out several tokens in one chunk; a token without text has a chunk without text."""
    chunks = [
        text("", prompt_tokens=9, completion_tokens=0),
        text("a", prompt_tokens=9, completion_tokens=1),
        text("bcd", prompt_tokens=9, completion_tokens=4),
        text("", prompt_tokens=9, completion_tokens=5),
    ]
    assert await _arrivals(chunks) == ([1, 3, 1], Usage(9, 5))


async def test_else_a_chunk_of_text_is_a_token_and_the_role_is_none() -> None:
    chunks = [text(""), text("a"), text("b"), {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 2}}]
    assert await _arrivals(chunks) == ([1, 1], Usage(3, 2))


async def test_an_error_in_the_stream_is_one() -> None:
    with pytest.raises(EndpointError, match="out of pages"):
        await _arrivals([text("a"), {"error": {"message": "out of pages"}}])


async def _arrivals(chunks: list) -> tuple[list[int], Usage]:
    with PickyServer() as server:
        async with await OpenAIEndpoint.open(server.base_url) as endpoint:
            server.chunks = chunks
            arrived: list[int] = []
            return arrived, await endpoint.answer(Ask("x", 7), arrived.append)


async def test_a_server_that_is_not_there() -> None:
    with PickyServer() as server:
        pass
    with pytest.raises(EndpointError, match="can't be reached"):
        await OpenAIEndpoint.open(server.base_url)
