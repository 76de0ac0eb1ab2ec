"""What every route shares: error shape, ids, headers, body cap, keys, metrics, the source offer."""

from __future__ import annotations

import io
import re
import socket
import tarfile

import httpx
import openai
import pytest
from openai import OpenAI
from prometheus_client.parser import text_string_to_metric_families

from api.middleware import SECURITY_HEADERS
from api.services import Services
from pipeline.cli.keys import hash_of
from pipeline.config import ServerConfig, WatchwordConfig
from pipeline.reasons import Reason
from tests.api.conftest import MODEL, error_of, user
from tests.api.gate import held
from tests.api.live_server import LiveServer
from tests.api.waiting import until

KEYS = ("first-key-0123456789", "second-key-0123456789")


@pytest.fixture(scope="module")
def guarded(engine):
    """A server that asks for keys and takes small bodies only."""
    keys = [{"hash": hash_of(key), "roles": ["chat", "viewer"]} for key in KEYS]
    server = ServerConfig.model_validate({"api_keys": keys, "max_body_bytes": 4096})
    with LiveServer(Services(WatchwordConfig(server=server), engine, None, None, MODEL)) as live:
        yield live


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


# Errors, ids, headers ------------------------------------------------------------------------------------------------


def test_an_unknown_path_and_a_wrong_method_are_errors_of_the_same_shape(http):
    for response, status in ((http.get("/v1/nothing"), 404), (http.get("/v1/chat/completions"), 405)):
        assert response.status_code == status
        error_of(response)


def test_the_request_id_comes_back_and_is_made_up_when_missing_or_unfit(http):
    assert http.get("/health/live", headers={"X-Request-Id": "abc-1.2:3"}).headers["x-request-id"] == "abc-1.2:3"
    for given in ({}, {"X-Request-Id": "a b"}, {"X-Request-Id": "x" * 200}):
        assert re.fullmatch(r"req_[0-9a-f]{32}", http.get("/health/live", headers=given).headers["x-request-id"])


def test_the_official_client_sees_the_request_id(client):
    answer = client.chat.completions.with_raw_response.create(messages=user(), model=MODEL, max_tokens=1)
    assert answer.request_id.startswith("req_")


def test_an_unexpected_error_is_500_in_the_usual_shape_and_the_log_has_it(guarded, caplog):
    @guarded.app.get("/broken")
    async def broken() -> None:
        raise RuntimeError("details for the log only")

    response = httpx.get(f"{guarded.url}/broken")
    assert response.status_code == 500
    error = error_of(response)
    assert response.headers["x-request-id"] in error["message"] and "details" not in error["message"]
    assert "details for the log only" in caplog.text
    for name in SECURITY_HEADERS:
        assert name in response.headers


def test_every_answer_carries_the_security_headers(http):
    for path in ("/", "/v1/models", "/nothing", "/web/main.js"):
        headers = http.get(path).headers
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy and "frame-ancestors 'none'" in policy and "unsafe-inline" not in policy
        assert headers["x-content-type-options"] == "nosniff"


# Body cap ------------------------------------------------------------------------------------------------------------


def test_a_body_over_the_cap_is_413(guarded):
    body = {"messages": user("x" * 10_000)}
    response = httpx.post(f"{guarded.url}/v1/chat/completions", json=body, headers=bearer(KEYS[0]))
    assert response.status_code == 413
    assert error_of(response)["code"] == "request_too_large"


def test_a_body_that_does_not_announce_its_size_is_cut_off_too(guarded):
    headers = {"Content-Type": "application/json", **bearer(KEYS[0])}
    chunks = (b" " * 1000 for _ in range(9))
    response = httpx.post(f"{guarded.url}/v1/chat/completions", content=chunks, headers=headers)
    assert response.status_code == 413


def test_an_endless_body_is_not_read_for_ever(guarded):
    host, port = guarded.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=10) as connection:
        head = f"POST /v1/responses HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
        connection.sendall(f"{head}Authorization: Bearer {KEYS[0]}\r\nTransfer-Encoding: chunked\r\n\r\n".encode())
        chunk = b"1000\r\n" + b" " * 4096 + b"\r\n"
        for _ in range(5):
            connection.sendall(chunk)
        assert connection.recv(4096).startswith(b"HTTP/1.1 413")


def send_head(url: str, path: str = "/v1/responses", length: int = 100) -> socket.socket:
    """A request whose body is still to come."""
    host, port = url.removeprefix("http://").split(":")
    connection = socket.create_connection((host, int(port)), timeout=20)
    head = f"POST {path} HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n"
    connection.sendall(f"{head}\r\n".encode())
    return connection


def test_a_body_that_does_not_come_is_408_and_holds_nothing(engine):
    config = WatchwordConfig(server=ServerConfig(body_timeout_s=0.05))
    with LiveServer(Services(config, engine, None, None, MODEL)) as server:
        with send_head(server.url) as connection:
            answer = b"".join(iter(lambda: connection.recv(65536), b""))  # until the server closes
        assert answer.startswith(b"HTTP/1.1 408") and b"server.body_timeout_s" in answer
        until(lambda: server.app.state.limits.num_open == 0)
        # Once the body is there, the answer may take longer.
        body = {"input": "x", "max_output_tokens": 200}
        assert httpx.post(f"{server.url}/v1/responses", json=body, timeout=120).status_code == 200


def test_a_client_that_leaves_within_its_body_is_no_error(server, caplog):
    with send_head(server.url) as connection:
        until(lambda: server.app.state.limits.num_open == 1)
        connection.sendall(b"{")
    until(lambda: server.app.state.limits.num_open == 0)
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


def test_all_bodies_together_are_bounded(engine):
    config = WatchwordConfig(server=ServerConfig(max_open_body_bytes=5000))
    with LiveServer(Services(config, engine, None, None, MODEL)) as server:
        url = f"{server.url}/v1/chat/completions"
        body = {"messages": user("x" * 3000), "max_tokens": 2}
        with held(engine), httpx.stream("POST", url, json={**body, "stream": True}) as stream:
            lines = stream.iter_lines()
            assert "assistant" in next(lines)
            refused = httpx.post(url, json=body)
            assert refused.status_code == 429 and "server.max_open_body_bytes" in error_of(refused)["message"]
            assert refused.headers["retry-after"] == "1"
            lines.close()
        until(lambda: httpx.post(url, json=body).status_code == 200)


# Keys ----------------------------------------------------------------------------------------------------------------


def test_without_a_key_it_is_401_and_with_any_of_them_it_works(guarded):
    for key in KEYS:
        client = OpenAI(base_url=f"{guarded.url}/v1", api_key=key, max_retries=0)
        assert client.models.list().data[0].id == MODEL
    with pytest.raises(openai.AuthenticationError) as refused:
        OpenAI(base_url=f"{guarded.url}/v1", api_key="wrong", max_retries=0).models.list()
    assert refused.value.code == "invalid_api_key" and "wrong" not in refused.value.message
    for headers in ({}, {"Authorization": "Basic x"}, {"Authorization": f"Bearer {KEYS[0][:-1]}"}):
        response = httpx.get(f"{guarded.url}/v1/models", headers=headers)
        assert response.status_code == 401 and response.headers["www-authenticate"] == "Bearer"


@pytest.mark.parametrize("path", ["/api/cameras", "/api/events", "/api/stream", "/api/queue", "/metrics", "/v1/models"])
def test_data_needs_a_key(guarded, path):
    assert httpx.get(guarded.url + path).status_code == 401


@pytest.mark.parametrize("path", ["/", "/web/style.css", "/health/live", "/health/ready", "/source.tar.gz"])
def test_the_page_itself_health_and_the_source_need_none(guarded, path):
    assert httpx.get(guarded.url + path).status_code == 200


def test_the_page_exchanges_a_key_for_a_cookie_that_can_only_read(guarded):
    with httpx.Client(base_url=guarded.url) as browser:
        assert browser.post("/api/session", headers=bearer("wrong")).status_code == 401
        signed_in = browser.post("/api/session", headers=bearer(KEYS[1]))
        assert signed_in.status_code == 204
        cookie = signed_in.headers["set-cookie"]
        assert "HttpOnly" in cookie and "SameSite=strict" in cookie and KEYS[1] not in cookie
        assert browser.get("/v1/models").status_code == 200
        # A foreign page can make a browser post with its cookies; the cookie does not count there.
        assert browser.post("/v1/chat/completions", json={"messages": user()}).status_code == 401
        assert browser.delete("/api/session").status_code == 204
        assert browser.get("/v1/models").status_code == 401
        browser.cookies.set("watchword_session", "no hex")
        assert browser.get("/v1/models").status_code == 401


def test_an_open_server_says_so_once_in_the_log(engine, caplog):
    with LiveServer(Services(WatchwordConfig(), engine, None, None, MODEL)) as server:
        httpx.get(f"{server.url}/v1/models")
        httpx.get(f"{server.url}/v1/models")
    assert caplog.text.count("No API keys are configured") == 1


# Models, health, metrics, source -------------------------------------------------------------------------------------


def test_models_tell_the_context_and_names_with_slashes_work(client, http):
    [model] = client.models.list().data
    assert model.id == MODEL and model.max_model_len == 2048 and model.owned_by == "watchword"
    assert client.models.retrieve(MODEL).id == MODEL
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("other")


def families(http) -> dict:
    response = http.get("/metrics")
    assert response.headers["content-type"].startswith("text/plain")
    return {family.name: family for family in text_string_to_metric_families(response.text)}


def test_metrics_tell_the_engines_work(client, http):
    def tokens() -> float:
        return families(http)["watchword_generation_tokens"].samples[0].value

    before = tokens()
    client.chat.completions.create(messages=user(), model=MODEL, max_tokens=5, temperature=0)
    found = families(http)
    assert tokens() == before + 5
    buckets = [s for s in found["watchword_time_to_first_token_seconds"].samples if s.name.endswith("_bucket")]
    interactive = [s.value for s in buckets if s.labels["class"] == "interactive"]
    assert interactive == sorted(interactive) and interactive[-1] >= 1
    count = [s for s in found["watchword_time_to_first_token_seconds"].samples if s.name.endswith("_count")]
    assert count[0].value == interactive[-1]
    states = {s.labels["state"]: s.value for s in found["watchword_engine_state"].samples}
    assert states["ready"] == 1 and sum(states.values()) == 1
    assert "process_cpu_seconds" in found


def test_metrics_tell_cameras_queue_and_drops(operator, station):
    station.status("front", fps=4.0, frame_age=0.5, frames=100, decoder="cpu")
    station.drop("front", Reason.SUPERSEDED, 3)
    found = families(operator)
    assert found["watchword_camera_fps"].samples[0].value == 4.0
    assert found["watchword_camera_frames"].samples[0].value == 100
    [decoder] = found["watchword_camera_decoder"].samples
    assert (decoder.labels["decoder"], decoder.value) == ("cpu", 1)
    assert found["watchword_camera_frame_age_seconds"].samples[0].value >= 0.5
    states = {s.labels["state"]: s.value for s in found["watchword_camera_state"].samples}
    assert states["online"] == 1 and sum(states.values()) == 1
    [drops] = found["watchword_drops"].samples
    assert drops.labels == {"camera": "front", "reason": "superseded"} and drops.value == 3
    assert found["watchword_redis_up"].samples[0].value == 1
    assert found["watchword_queue_dead"].samples[0].value == 0


def test_ready_names_every_part(operator, station):
    ready = operator.get("/health/ready")
    assert ready.status_code == 200
    assert set(ready.json()["parts"]) == {"store", "redis"}


def test_the_running_source_is_offered(http):
    assert "AGPL-3.0" in http.get("/openapi.json").json()["info"]["license"]["name"]
    data = http.get("/source.tar.gz").content
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        names = archive.getnames()
        assert {"watchword/api/app.py", "watchword/vlm_engine/engine.py", "watchword/api/web/main.js"} <= set(names)
        assert all(entry.uname == "" and entry.uid == 0 for entry in archive)
    assert not any("__pycache__" in name or name.endswith((".yaml", ".env", ".db")) for name in names)


def test_openapi_describes_the_requests_and_resolves(http):
    schema = http.get("/openapi.json").json()
    for path in ("/v1/chat/completions", "/v1/responses"):
        reference = schema["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]["$ref"]
        assert reference.rsplit("/", 1)[1] in schema["components"]["schemas"]
    known = schema["components"]["schemas"]
    for name in re.findall(r'"#/components/schemas/([^"]+)"', http.get("/openapi.json").text):
        assert name in known
