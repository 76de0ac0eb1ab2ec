"""Who may do what, how much of it, and for how long."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys

import httpx
import openai
import pytest
from openai import OpenAI

from api.auth import ApiKeys, Caller
from api.errors import ApiError
from api.limits import LimitRequests, Limits, Pace
from api.services import Services
from pipeline.cli.keys import hash_of
from pipeline.cli.serve import run_serve
from pipeline.config import ServerConfig, WatchwordConfig
from pipeline.config.server import is_loopback
from tests.api.conftest import MODEL, error_of, user
from tests.api.gate import held
from tests.api.live_server import LiveServer
from tests.api.station import Station
from tests.api.test_responses_stored import SetClock
from tests.api.waiting import until
from vlm_engine.errors import OverloadedError

CHAT = {"messages": user(), "max_tokens": 1}
LONG = {"messages": user(), "max_tokens": 1500, "ignore_eos": True, "stream": True}


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


def serving(engine, **server) -> LiveServer:
    config = WatchwordConfig(server=ServerConfig.model_validate(server))
    return LiveServer(Services(config, engine, None, None, MODEL))


# Roles ---------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def roles(engine, valkey, tmp_path_factory):
    """A server with cameras and engine, and a key for each role, named like it."""
    keys = [{"hash": hash_of(role), "roles": [role]} for role in ("chat", "viewer", "operator", "admin")]
    station = Station(valkey.connection_url, tmp_path_factory.mktemp("roles"), engine, api_keys=keys)
    with LiveServer(station.services) as server, httpx.Client(base_url=server.url, timeout=30) as client:
        yield client
    station.close()


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("GET", "/v1/models", "chat operator admin"),
        ("POST", "/v1/chat/completions", "chat operator admin"),
        ("POST", "/v1/completions", "chat operator admin"),
        ("POST", "/v1/responses", "chat operator admin"),
        ("GET", "/v1/responses/resp_1", "chat operator admin"),
        ("POST", "/tokenize", "chat operator admin"),
        ("POST", "/detokenize", "chat operator admin"),
        ("GET", "/api/cameras", "viewer operator admin"),
        ("GET", "/api/events", "viewer operator admin"),
        ("GET", "/api/queue", "viewer operator admin"),
        ("GET", "/api/queue/dead", "viewer operator admin"),
        ("POST", "/api/queue/dead/1-1/replay", "operator admin"),
        ("DELETE", "/api/queue/dead/1-1", "operator admin"),
        ("GET", "/api/engine/steps", "viewer operator admin"),
        ("GET", "/metrics", "viewer operator admin"),
        ("POST", "/api/session", "viewer operator admin"),
    ],
)
def test_each_role_reaches_its_routes_and_no_others(roles, method, path, allowed):
    for role in ("chat", "viewer", "operator", "admin"):
        response = roles.request(method, path, headers=bearer(role), json={} if method == "POST" else None)
        if role in allowed.split():
            assert response.status_code not in (401, 403), role
        else:
            assert response.status_code == 403, role
            assert error_of(response)["code"] == "insufficient_role"
    if path != "/api/session":
        assert roles.request(method, path).status_code == 401


def test_no_route_but_the_public_ones_is_without_a_role(roles):
    public = {
        "/source.tar.gz", "/health", "/health/live", "/health/ready", "/api/session", "/version",
    }  # fmt: skip
    for path, methods in roles.get("/openapi.json").json()["paths"].items():
        for method in methods:
            response = roles.request(method, re.sub(r"{\w+}", "x", path))
            assert response.status_code == 401 or path in public, (method, path)


def test_keys_and_hashes_stay_out_of_logs_and_errors(engine, caplog):
    key = "ww-a-very-secret-key-of-somebody"
    with serving(engine, api_keys=[{"hash": hash_of(key), "name": "ann"}]) as server:
        for given in (key, key + "x"):
            httpx.post(f"{server.url}/v1/chat/completions", json={"messages": 1}, headers=bearer(given))
    assert key not in caplog.text and hash_of(key).removeprefix("sha256:") not in caplog.text


def test_a_new_key_works_with_the_lines_that_come_with_it(engine, tmp_path):
    from pipeline.config.load import load_config

    command = [sys.executable, "-m", "pipeline.cli", "keys"]
    made = subprocess.run([*command, "new", "--name", "ann"], capture_output=True, text=True, timeout=60, check=True)
    key = re.search(r"ww-[\w-]{43}", made.stderr)[0]
    assert key not in made.stdout
    file = tmp_path / "watchword.yaml"
    file.write_text(made.stdout)
    config = load_config(file, {})
    assert config.server.api_keys[0].name == "ann" and config.server.api_keys[0].roles == ("chat",)
    with LiveServer(Services(config, engine, None, None, MODEL)) as server:
        assert OpenAI(base_url=f"{server.url}/v1", api_key=key, max_retries=0).models.list().data
    hashed = subprocess.run(
        [*command, "hash"], input=key + "\n", capture_output=True, text=True, timeout=60, check=True
    ).stdout.strip()
    assert hashed == config.server.api_keys[0].hash.get_secret_value()
    short = subprocess.run([*command, "hash"], input="secret\n", capture_output=True, text=True, timeout=60)
    assert short.returncode == 2 and "at least 32" in short.stderr


# Where it listens ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("host", "loopback"),
    [
        ("127.0.0.1", True),
        ("127.8.9.1", True),
        ("::1", True),
        ("localhost", True),
        ("0.0.0.0", False),
        ("::", False),
        ("", False),
        ("192.168.1.5", False),
        ("watchword.example", False),
    ],
)
def test_without_keys_only_loopback_is_taken(host, loopback):
    assert is_loopback(host) is loopback
    assert ServerConfig(host=host, allow_open=True)
    assert ServerConfig.model_validate({"host": host, "api_keys": [{"hash": hash_of("k")}]})
    if loopback:
        assert ServerConfig(host=host)
    else:
        with pytest.raises(ValueError, match=r"server\.api_keys is empty.*server\.allow_open"):
            ServerConfig(host=host)


def test_the_command_line_cannot_open_it_by_the_way(monkeypatch):
    with pytest.raises(Exception, match=r"server\.allow_open"):
        run_serve(None, model="/nowhere", host="0.0.0.0", port=0, cameras=False)


# Rate and concurrency ------------------------------------------------------------------------------------------------


def refused(limits: Limits, caller: Caller) -> ApiError:
    with pytest.raises(ApiError) as error:
        limits.enter(caller)
    assert error.value.status == 429
    return error.value


def test_the_rate_counts_any_minute_and_says_when_to_come_back():
    clock = SetClock()
    limits = Limits(100, clock)
    ann, bob = (Caller(name, frozenset(), requests_per_minute=2) for name in ("ann", "bob"))
    limits.enter(ann)
    clock.seconds = 20.0
    limits.enter(ann)
    clock.seconds = 50.5
    error = refused(limits, ann)
    assert error.code == "rate_limit_exceeded" and error.headers["Retry-After"] == "10"
    limits.enter(bob)  # a neighbour is not hit
    clock.seconds = 60.0
    limits.enter(ann)
    assert refused(limits, ann).headers["Retry-After"] == "20"


def test_a_slot_is_free_again_when_left_once():
    limits = Limits(2)
    ann = Caller("ann", frozenset(), max_concurrent_requests=1)
    slot = limits.enter(ann)
    assert refused(limits, ann).code == "concurrency_limit_exceeded"
    limits.enter(Caller("bob", frozenset()))
    assert refused(limits, Caller("cid", frozenset())).code == "server_busy"
    slot.leave()
    slot.leave()
    assert limits.num_open == 1
    limits.enter(ann)


def test_what_is_refused_later_is_not_counted():
    limits = Limits(10)
    ann = Caller("ann", frozenset(), requests_per_minute=1)
    for _ in range(5):
        limits.enter(ann).refuse()
    assert limits.num_open == 0
    slot = limits.enter(ann)
    slot.leave()
    slot.refuse()  # left already; it was answered, and counts
    assert refused(limits, ann).code == "rate_limit_exceeded" and limits.num_open == 0


async def test_who_is_beyond_their_own_limits_takes_nobodys_turn():
    """A flood of one key with a limit must not use up the pace at which everybody's requests are looked at."""
    keys = ApiKeys(
        ServerConfig(api_keys=[{"hash": hash_of("few"), "max_concurrent_requests": 1}, {"hash": hash_of("b")}])
    )
    held = asyncio.Event()

    async def app(scope, receive, send):
        await held.wait()
        await send({"type": "http.response.start", "status": 200, "headers": []})

    limited = LimitRequests(app, Limits(10_000), keys)
    statuses: list[tuple[str, int]] = []

    async def ask(key: str) -> None:
        async def send(message):
            if message["type"] == "http.response.start":
                statuses.append((key, message["status"]))

        headers = [(b"authorization", f"Bearer {key}".encode())]
        scope = {"type": "http", "method": "POST", "path": "/v1/chat/completions", "headers": headers}
        await limited(scope, None, send)

    first = asyncio.create_task(ask("few"))
    await asyncio.sleep(0)
    for _ in range(2000):
        await ask("few")
    assert statuses == [("few", 429)] * 2000
    other = asyncio.create_task(ask("b"))
    held.set()
    await asyncio.gather(first, other)
    assert sorted(statuses[2000:]) == [("b", 200), ("few", 200)]


async def test_what_is_being_prepared_counts_as_waiting():
    """Else a burst would be tokenised whole before the first of it is in the engine's queue."""
    asked: list[int] = []

    def room(preparing: int) -> None:
        asked.append(preparing)
        if preparing >= 2:
            raise OverloadedError("2 requests wait already", retry_after=5.0)

    limits = Limits(100, room=room)
    ann = Caller("ann", frozenset())
    first, second, third = (limits.enter(ann) for _ in range(3))
    await first.queue_up()
    await second.queue_up()
    with pytest.raises(ApiError) as error:
        await third.queue_up()
    assert error.value.status == 429 and error.value.headers["Retry-After"] == "5"
    first.submitted()  # the engine counts it now
    first.submitted()
    await third.queue_up()
    second.leave()
    assert limits.num_preparing == 1 and asked == [0, 1, 2, 1]
    third.leave()
    third.leave()
    assert limits.num_preparing == 0 and limits.num_open == 1


def test_a_burst_is_spread_and_what_comes_at_leisure_does_not_wait():
    pace = Pace(0.25, 4)
    waits = [pace.delay(10.0) for _ in range(4 + 50)]
    assert waits[: 4 + 1] == [0.0] * 5
    assert waits[-1] == 49 * 0.25
    assert pace.delay(10.0 + 49 * 0.25) == 0.25
    assert [pace.delay(40.0 + number * 0.25) for number in range(100)] == [0.0] * 100


def test_a_flood_does_not_become_a_queue_that_everybody_stands_in():
    pace = Pace(0.25, 4, longest=2.0)
    assert [pace.delay(10.0) for _ in range(13)][-1] == 2.0
    for _ in range(1000):
        with pytest.raises(ApiError) as error:
            pace.delay(10.0)
    assert error.value.status == 429 and error.value.headers["Retry-After"] == "1"
    assert pace.delay(10.5) == 1.75, "those that were refused take nobody's turn"


def test_one_key_over_its_rate_is_429_and_the_other_goes_on(engine):
    keys = [{"hash": hash_of("few"), "requests_per_minute": 2}, {"hash": hash_of("many")}]
    with serving(engine, api_keys=keys) as server:
        few, many = (OpenAI(base_url=f"{server.url}/v1", api_key=key, max_retries=0) for key in ("few", "many"))
        for _ in range(2):
            few.chat.completions.create(model=MODEL, **CHAT)
        with pytest.raises(openai.RateLimitError) as error:
            few.chat.completions.create(model=MODEL, **CHAT)
        assert error.value.code == "rate_limit_exceeded" and error.value.type == "rate_limit_error"
        assert 1 <= int(error.value.response.headers["retry-after"]) <= 60
        assert few.models.list().data  # reading isn't counted
        assert many.chat.completions.create(model=MODEL, **CHAT).choices
        # Without a valid key nothing is counted for anybody.
        assert httpx.post(f"{server.url}/v1/responses", json={}, headers=bearer("wrong")).status_code == 401


def test_a_streams_slot_is_held_until_it_ends_or_its_client_leaves(engine):
    with serving(engine, max_concurrent_requests=1) as server:
        url = f"{server.url}/v1/chat/completions"
        with held(engine), httpx.stream("POST", url, json=LONG) as stream:
            lines = stream.iter_lines()
            assert "assistant" in next(lines)
            response = httpx.post(url, json=CHAT)
            assert response.status_code == 429 and error_of(response)["code"] == "concurrency_limit_exceeded"
            lines.close()
        until(lambda: httpx.post(url, json=CHAT).status_code == 200, 60)
        assert httpx.post(url, json={}).status_code == 400  # a refusal gives its slot back
        until(lambda: server.app.state.limits.num_open == 0)


def test_a_background_response_holds_its_slot_until_it_is_done(engine):
    with serving(engine, max_concurrent_requests=1) as server:
        client = OpenAI(base_url=f"{server.url}/v1", api_key="x", max_retries=0)
        long = {"max_output_tokens": 1500, "extra_body": {"ignore_eos": True}}
        with held(engine):
            begun = client.responses.create(input="x", model=MODEL, background=True, **long)
            with pytest.raises(openai.RateLimitError):
                client.responses.create(input="x", model=MODEL)
            assert client.responses.cancel(begun.id).status == "cancelled"
        until(lambda: server.app.state.limits.num_open == 0)
        assert client.responses.create(input="x", model=MODEL, max_output_tokens=1).output_text is not None


def test_the_whole_servers_bound_is_429(engine):
    with serving(engine, max_open_requests=1) as server:
        url = f"{server.url}/v1/chat/completions"
        with held(engine), httpx.stream("POST", url, json=LONG) as stream:
            lines = stream.iter_lines()
            assert "assistant" in next(lines)
            response = httpx.post(url, json=CHAT)
            assert response.status_code == 429 and "server.max_open_requests" in error_of(response)["message"]
            assert int(response.headers["retry-after"]) >= 1
            lines.close()


# Deadlines -----------------------------------------------------------------------------------------------------------


def test_a_request_may_ask_for_less_time(client, http):
    long = {key: value for key, value in LONG.items() if key != "stream"}
    response = http.post("/v1/chat/completions", json=long, headers={"X-Request-Timeout": "0.05"})
    error = error_of(response)
    assert (
        response.status_code == 504 and error["code"] == "request_timeout" and "X-Request-Timeout" in error["message"]
    )
    with pytest.raises(openai.APIError, match=r"0\.05"):
        list(
            client.chat.completions.create(
                model=MODEL, extra_headers={"X-Request-Timeout": "0.05"}, extra_body={"ignore_eos": True},
                messages=user(), max_tokens=1500, stream=True,
            )
        )  # fmt: skip


@pytest.mark.parametrize("given", ["0", "-1", "601", "soon", "inf", "nan", "1e999"])
@pytest.mark.parametrize("path", ["chat/completions", "completions", "responses"])
def test_but_not_for_more_or_nonsense(http, path, given):
    response = http.post(f"/v1/{path}", json={}, headers={"X-Request-Timeout": given})
    assert response.status_code == 400
    error = error_of(response)
    assert error["param"] == "X-Request-Timeout" and "server.request_timeout_s" in error["message"]
