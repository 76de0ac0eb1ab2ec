"""A client that leaves: its request is gone before a second step begins, whatever state it was in, and nothing is left.

The engine is held between steps (:mod:`tests.api.gate`), so each state is seen for certain, on a machine of any speed.
Pictures being downloaded are not among the states: nothing is fetched by default.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from openai import OpenAI

from api.services import Services
from pipeline.config import ServerConfig, WatchwordConfig
from tests.api.conftest import MODEL, user
from tests.api.gate import Gate, held
from tests.api.live_server import LiveServer
from tests.api.pictures import data_url, image_part, photograph
from tests.api.waiting import until
from vlm_engine.engine import VLMEngine

FEW = 400
"""More steps than any state takes to come about."""


@contextmanager
def asking(server: LiveServer, path: str, body: dict) -> Iterator[None]:
    """A request over a bare socket, which is closed at the end of the block."""
    data = json.dumps(body).encode()
    host, port = server.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port))) as connection:
        head = f"POST {path} HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
        connection.sendall(f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data)
        yield


def chat(text: str, *pictures: dict, **fields) -> dict:
    content = [*pictures, {"type": "text", "text": text}]
    return {"messages": [{"role": "user", "content": content}], "max_tokens": 900, "ignore_eos": True, **fields}


@contextmanager
def others(server: LiveServer, engine: VLMEngine, gate: Gate, count: int) -> Iterator[None]:
    """So many other chats that decode for as long as the block."""
    client = OpenAI(base_url=f"{server.url}/v1", api_key="unused", max_retries=0)
    streams = [
        client.chat.completions.create(
            messages=user(f"Number {n}"), model=MODEL, stream=True, max_tokens=1500, extra_body={"ignore_eos": True}
        )
        for n in range(count)
    ]
    begun = engine.metrics.value("generation_tokens")
    step_until(gate, lambda: engine.metrics.value("generation_tokens") >= begun + 2 * count)
    yield
    for stream in streams:
        stream.close()


def step_until(gate: Gate, condition) -> None:
    """Step by step until the condition holds."""
    for _ in range(FEW):
        if condition():
            return
        gate.let_one_through()
    pytest.fail("the state did not come about")


def check_gone_within_one_step(engine: VLMEngine, gate: Gate, before: set[str]) -> None:
    """The client has left: one more step may run, and then nothing of its request is there."""
    core = engine._core
    until(lambda: engine._thread.inbox)  # the abort has arrived; the engine looks at it between two steps
    gate.let_one_through()
    until(lambda: {s.request.request_id for s in core._sequences.values()} == before)
    core.check_integrity()


def check_nothing_left(engine: VLMEngine) -> None:
    """A18: no request, no page, no feature held, no picture in preparation."""
    core = engine._core
    until(lambda: not core.has_work and not engine._thread.inbox)
    assert not core._sequences and core.num_waiting == 0
    core.check_integrity()
    core.encoder_cache.check_integrity({})
    assert core.pool.num_free == core.pool.num_blocks
    assert engine.metrics.value("preprocess_queue_depth") == 0


def requests_of(engine: VLMEngine) -> set[str]:
    return {s.request.request_id for s in engine._core._sequences.values()}


@pytest.mark.parametrize("stream", [False, True])
def test_a16_a17_while_queued(small_steps, stream):
    engine, server = small_steps
    with held(engine) as gate, others(server, engine, gate, 2):
        before = requests_of(engine)
        with asking(server, "/v1/chat/completions", chat("Wait.", stream=stream)):
            until(lambda: engine._thread.inbox)
            step_until(gate, lambda: engine._core.num_waiting == 1)
        check_gone_within_one_step(engine, gate, before)
    check_nothing_left(engine)


@pytest.mark.parametrize("stream", [False, True])
def test_a17_in_the_middle_of_prefill(small_steps, stream):
    engine, server = small_steps
    with held(engine) as gate, others(server, engine, gate, 1):
        before = requests_of(engine)
        computed = engine.metrics.value("prompt_tokens")
        with asking(server, "/v1/chat/completions", chat("word " * 900, stream=stream)):
            until(lambda: engine._thread.inbox)
            # The second chunk at least, and far from the end.
            step_until(gate, lambda: engine.metrics.value("prompt_tokens") > computed + 20)
            assert engine.metrics.value("prompt_tokens") < computed + 500
        check_gone_within_one_step(engine, gate, before)
    check_nothing_left(engine)


@pytest.mark.parametrize("stream", [False, True])
def test_a17_in_the_middle_of_encoding_a_picture(small_steps, stream):
    engine, server = small_steps
    with held(engine) as gate, others(server, engine, gate, 1):
        before = requests_of(engine)
        slices, items = engine.metrics.value("encoder_slices"), engine.metrics.value("encoder_items")
        picture = image_part(data_url(photograph(600 + stream)))
        with asking(server, "/v1/chat/completions", chat("Who?", picture, stream=stream)):
            until(lambda: engine._thread.inbox)
            step_until(gate, lambda: engine.metrics.value("encoder_slices") > slices + 1)
            assert engine.metrics.value("encoder_items") == items
        check_gone_within_one_step(engine, gate, before)
        assert engine.metrics.value("encoder_items") == items
    check_nothing_left(engine)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", chat("Say much.", n=2)),
        ("/v1/completions", {"prompt": ["One", "Two"], "max_tokens": 900, "ignore_eos": True}),
        ("/v1/responses", {"input": "Say much.", "max_output_tokens": 900, "ignore_eos": True}),
    ],
    ids=["chat", "completion", "response"],
)
def test_a16_while_decoding(small_steps, path, body, stream):
    engine, server = small_steps
    generated = engine.metrics.value("generation_tokens")
    with held(engine) as gate:
        with asking(server, path, {**body, "stream": stream}):
            step_until(gate, lambda: engine.metrics.value("generation_tokens") > generated + 6)
        check_gone_within_one_step(engine, gate, set())
    check_nothing_left(engine)


def test_a17_while_its_picture_is_prepared(small_steps):
    engine, server = small_steps
    shared = set(Path("/dev/shm").glob("psm_*")) if Path("/dev/shm").is_dir() else set()
    with asking(server, "/v1/chat/completions", chat("Who?", image_part(data_url(photograph())))):
        until(lambda: engine.metrics.value("preprocess_queue_depth") == 1)
    until(lambda: engine.metrics.value("preprocess_queue_depth") == 0)
    client = OpenAI(base_url=f"{server.url}/v1", api_key="unused", max_retries=0)
    # Pictures are taken in their order: once this one is done, whatever the first left behind would lie there.
    content = [image_part(), {"type": "text", "text": "And this?"}]
    assert client.chat.completions.create(messages=[{"role": "user", "content": content}], model=MODEL, max_tokens=1)
    check_nothing_left(engine)
    if Path("/dev/shm").is_dir():
        until(lambda: set(Path("/dev/shm").glob("psm_*")) <= shared)


def test_a_queued_stream_is_kept_alive_by_comments(small_steps):
    engine, _ = small_steps
    config = WatchwordConfig(server=ServerConfig(sse_keep_alive_s=0.02))
    with LiveServer(Services(config, engine, None, None, MODEL)) as server, held(engine):
        for path, body in (
            ("chat/completions", {"messages": user()}),
            ("completions", {"prompt": "x"}),
            ("responses", {"input": "x"}),
        ):
            with httpx.stream("POST", f"{server.url}/v1/{path}", json={**body, "stream": True}) as response:
                assert response.status_code == 200
                lines = response.iter_lines()
                assert [next(line for line in lines if line.startswith(":")) for _ in range(3)] == 3 * [": keep-alive"]
                lines.close()
    check_nothing_left(engine)


def test_the_official_client_reads_over_the_comments(small_steps):
    engine, _ = small_steps
    config = WatchwordConfig(server=ServerConfig(sse_keep_alive_s=0.02))
    with LiveServer(Services(config, engine, None, None, MODEL)) as server:
        client = OpenAI(base_url=f"{server.url}/v1", api_key="unused", max_retries=0)
        with held(engine) as gate:
            stream = client.chat.completions.create(messages=user(), model=MODEL, max_tokens=5, stream=True)
            until(lambda: engine._core.has_work)  # the request may still be on its way to the engine's thread
            step_until(gate, lambda: not engine._core.has_work)
            assert [chunk.choices[0].finish_reason for chunk in stream][-1] in ("length", "stop")
