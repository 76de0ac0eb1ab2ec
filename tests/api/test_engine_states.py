"""An engine that loads, is full, loses a client, or has died: what people on the other side see."""

from __future__ import annotations

import asyncio
import json
import socket
import threading

import httpx
import openai
import pytest
from openai import OpenAI

from api.openai.chat import read_chat
from api.openai.dialects import dialect_of
from api.openai.submission import off_loop
from api.services import Services
from pipeline.config import ServerConfig, WatchwordConfig
from tests.api.conftest import MODEL, engine_config, error_of, user
from tests.api.live_server import LiveServer
from tests.api.pictures import data_url, image_part, photograph
from tests.api.waiting import until
from vlm_engine.engine import EngineState, VLMEngine


def client_of(server: LiveServer) -> OpenAI:
    return OpenAI(base_url=f"{server.url}/v1", api_key="unused", max_retries=0)


def test_while_loading_live_is_200_and_the_rest_503_in_words(checkpoint):
    engine = VLMEngine(engine_config(checkpoint("text")))
    with LiveServer(Services(WatchwordConfig(), engine, None, None, MODEL)) as server:
        assert [httpx.get(f"{server.url}{path}").status_code for path in ("/health/live", "/health")] == [200, 200]
        ready = httpx.get(f"{server.url}/health/ready")
        assert ready.status_code == 503 and ready.json()["parts"]["engine"]["reason"]
        for path, body in (("chat/completions", {"messages": user()}), ("responses", {"input": "x"})):
            response = httpx.post(f"{server.url}/v1/{path}", json=body)
            assert response.status_code == 503 and int(response.headers["retry-after"]) > 0
            assert error_of(response)["code"] == "engine_loading"
        assert httpx.get(f"{server.url}/v1/models").status_code == 503
        loading = threading.Thread(target=engine.start)
        loading.start()
        # The official client's own retries carry it over the loading.
        patient = OpenAI(base_url=f"{server.url}/v1", api_key="unused", max_retries=8)
        assert patient.chat.completions.create(messages=user(), model=MODEL, max_tokens=2).choices
        assert httpx.get(f"{server.url}/health/ready").status_code == 200
        loading.join()
        engine.shutdown()


def test_a_model_that_cannot_be_loaded_is_503_with_the_reason_in_health(tmp_path):
    engine = VLMEngine(engine_config(tmp_path / "nothing"))
    with pytest.raises(Exception, match="nothing"):
        engine.start()
    with LiveServer(Services(WatchwordConfig(), engine, None, None, MODEL)) as server:
        ready = httpx.get(f"{server.url}/health/ready")
        assert ready.status_code == 503 and "nothing" in ready.json()["parts"]["engine"]["reason"]
        response = httpx.post(f"{server.url}/v1/responses", json={"input": "x"})
        assert response.status_code == 503 and response.headers["x-should-retry"] == "false"
        assert error_of(response)["code"] == "engine_dead"


def test_a14_a_full_queue_is_429_with_retry_after(checkpoint):
    engine = VLMEngine(engine_config(checkpoint("text"), max_num_seqs=1, max_queued_requests=1))
    engine.start()
    with LiveServer(Services(WatchwordConfig(), engine, None, None, MODEL)) as server:
        client = client_of(server)
        long = dict(messages=user(), model=MODEL, max_tokens=900, stream=True, extra_body={"ignore_eos": True})
        running = client.chat.completions.create(**long)
        next(running)
        until(lambda: engine.metrics.value("num_requests_running") == 1)
        waiting = client.chat.completions.create(**long)
        with pytest.raises(openai.RateLimitError) as refused:
            for _ in range(3):
                client.chat.completions.create(**long)
        assert int(refused.value.response.headers["retry-after"]) >= 1
        assert refused.value.code == "engine_overloaded"
        running.close()
        waiting.close()
        until(lambda: aborted(engine) >= 2)
    engine.shutdown()


def test_a_dead_engine_ends_streams_with_an_error_and_refuses_new_requests(checkpoint, monkeypatch):
    engine = VLMEngine(engine_config(checkpoint("text")))
    engine.start()
    with LiveServer(Services(WatchwordConfig(), engine, None, None, MODEL)) as server:
        client = client_of(server)
        long = dict(max_tokens=900, stream=True, ignore_eos=True)
        with httpx.stream("POST", f"{server.url}/v1/chat/completions", json={"messages": user(), **long}) as response:
            lines = response.iter_lines()
            assert "assistant" in next(lines)

            def broken() -> None:
                raise MemoryError("no page left")

            monkeypatch.setattr(engine._core, "step", broken)
            rest = [line.removeprefix("data: ") for line in lines if line]
        assert rest[-1] == "[DONE]"
        assert json.loads(rest[-2])["error"]["type"] == "server_error"
        until(lambda: engine.state is EngineState.DEAD)
        health = httpx.get(f"{server.url}/health")
        assert health.status_code == 503 and health.json()["state"] == "dead"
        with pytest.raises(openai.InternalServerError) as refused:
            client.chat.completions.create(messages=user(), model=MODEL)
        assert refused.value.status_code == 503 and refused.value.code == "engine_dead"
        assert httpx.get(f"{server.url}/health/ready").status_code == 503
        assert httpx.get(f"{server.url}/health/live").status_code == 200
    engine.shutdown()


def test_a_stream_that_fails_in_the_middle_raises_in_the_official_client(checkpoint, monkeypatch):
    engine = VLMEngine(engine_config(checkpoint("text")))
    engine.start()
    with LiveServer(Services(WatchwordConfig(), engine, None, None, MODEL)) as server:
        client = client_of(server)
        chat = client.chat.completions.create(
            messages=user(), model=MODEL, max_tokens=900, stream=True, extra_body={"ignore_eos": True}
        )
        response = client.responses.create(
            input="x", model=MODEL, max_output_tokens=900, stream=True, extra_body={"ignore_eos": True}
        )
        next(chat), next(response)

        def broken() -> None:
            raise MemoryError("no page left")

        monkeypatch.setattr(engine._core, "step", broken)
        with pytest.raises(openai.APIError):
            list(chat)
        last = list(response)[-1]
        assert last.type == "response.failed" and last.response.error.code == "server_error"
    engine.shutdown()


def test_the_request_deadline_ends_a_long_request(checkpoint):
    engine = VLMEngine(engine_config(checkpoint("text")))
    engine.start()
    config = WatchwordConfig(server=ServerConfig(request_timeout_s=0.05))
    with LiveServer(Services(config, engine, None, None, MODEL)) as server:
        body = {"messages": user(), "max_tokens": 900, "ignore_eos": True}
        response = httpx.post(f"{server.url}/v1/chat/completions", json=body)
        assert response.status_code == 504 and error_of(response)["code"] == "request_timeout"
        until(lambda: aborted(engine) == 1)
    engine.shutdown()


SLOW_S = 600.0


def test_the_deadline_holds_while_a_request_waits_to_be_prepared(checkpoint, monkeypatch):
    """One request is prepared at once, the next one ten minutes later."""
    monkeypatch.setattr("api.limits.PREPARE_S", SLOW_S)
    monkeypatch.setattr("api.limits.PREPARES", 0)
    engine = VLMEngine(engine_config(checkpoint("text")))
    engine.start()
    with LiveServer(Services(WatchwordConfig(), engine, None, None, MODEL)) as server:
        ask = {"url": f"{server.url}/v1/chat/completions", "json": {"messages": user(), "max_tokens": 2}}
        assert httpx.post(**ask, timeout=30).status_code == 200
        late = httpx.post(**ask, headers={"X-Request-Timeout": "0.2"}, timeout=30)
        assert late.status_code == 504 and error_of(late)["code"] == "request_timeout"
        assert "0.2 s" in error_of(late)["message"] and "X-Request-Timeout" in error_of(late)["message"]
    engine.shutdown()


def test_an_engine_that_is_not_ready_is_said_before_anything_waits(checkpoint, monkeypatch):
    monkeypatch.setattr("api.limits.PREPARE_S", SLOW_S)
    monkeypatch.setattr("api.limits.PREPARES", 0)
    engine = VLMEngine(engine_config(checkpoint("text")))
    with LiveServer(Services(WatchwordConfig(), engine, None, None, MODEL)) as server:
        for _ in range(3):
            response = httpx.post(f"{server.url}/v1/chat/completions", json={"messages": user()}, timeout=30)
            assert response.status_code == 503 and error_of(response)["code"] == "engine_loading"


def aborted(engine: VLMEngine) -> float:
    return engine.metrics.value("request_finished", finished_reason="abort", **{"class": "interactive"})


def test_a16_a_client_that_leaves_a_stream_is_aborted(client, engine):
    before = aborted(engine)
    stream = client.chat.completions.create(
        messages=user(), model=MODEL, max_tokens=900, stream=True, extra_body={"ignore_eos": True}
    )
    for _ in range(3):
        next(stream)
    stream.close()
    until(lambda: aborted(engine) == before + 1, 5)


def leave_early(server: LiveServer, content: list[dict], when) -> None:
    """Posts a chat over a bare socket and hangs up once ``when`` holds."""
    request = {"messages": [{"role": "user", "content": content}], "max_tokens": 900, "ignore_eos": True}
    body = json.dumps(request).encode()
    host, port = server.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port))) as connection:
        head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
        connection.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        until(when)


def test_a16_a_client_that_leaves_before_its_whole_answer_is_aborted(server, engine):
    before, steps = aborted(engine), engine.metrics.value("generation_tokens")
    leave_early(
        server,
        [{"type": "text", "text": "Say much."}],
        lambda: engine.metrics.value("generation_tokens") > steps + 5,
    )
    until(lambda: aborted(engine) == before + 1, 5)


def test_a17_a_client_that_leaves_while_its_picture_is_prepared_costs_no_token(server, engine, client):
    computed = engine.metrics.value("prompt_tokens")
    leave_early(
        server,
        [image_part(data_url(photograph())), {"type": "text", "text": "What is it?"}],
        lambda: engine.metrics.value("preprocess_queue_depth") == 1,
    )
    until(lambda: engine.metrics.value("preprocess_queue_depth") == 0, 5)
    # A chat that comes after it is answered, and is all that was computed.
    usage = client.chat.completions.create(messages=user("After that."), model=MODEL, max_tokens=1).usage
    assert engine.metrics.value("prompt_tokens") <= computed + usage.prompt_tokens


async def test_e18_large_bodies_are_read_off_the_event_loop(engine):
    """20 pictures of 4 megapixels in one body are read in another thread, and the loop goes on turning meanwhile."""
    content = [image_part(data_url(photograph()))] * 20
    body = json.dumps({"messages": [{"role": "user", "content": content}]}).encode()
    assert 20_000_000 < len(body) < ServerConfig().max_body_bytes
    readers = []

    def read():
        readers.append(threading.current_thread())
        return read_chat(body, engine.default_params, dialect_of(engine.chat_template))

    turns = 0
    reading = asyncio.create_task(off_loop(len(body), read))
    while not reading.done():
        await asyncio.sleep(0)
        turns += 1
    assert len(reading.result()[1].messages[0]["content"]) == 20
    assert readers != [threading.current_thread()]
    assert turns > 10
