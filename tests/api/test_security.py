"""What an attacker would try on the HTTP side: other sites' pages, slow connections, paths, forged prompts and logs."""

from __future__ import annotations

import io
import logging
import re
import socket
import tarfile

import httpx
import pytest

import api.server
from api.page import FOLDER
from api.services import Services
from pipeline.config import ServerConfig, WatchwordConfig
from pipeline.logs import PlainFormatter
from pipeline.redaction import RedactingFilter
from tests.api.conftest import MODEL, error_of, user
from tests.api.live_server import LiveServer
from tests.api.waiting import until


@pytest.fixture
def serve(engine):
    """``serve(**server)``: a server of its own with these settings."""
    running = []

    def start(**server) -> LiveServer:
        live = LiveServer(Services(WatchwordConfig(server=ServerConfig(**server)), engine, None, None, MODEL))
        running.append(live)
        live.__enter__()
        with httpx.Client(transport=httpx.HTTPTransport(retries=10)) as client:
            client.get(f"{live.url}/health/live")
        return live

    yield start
    for live in running:
        live.stop()


# Pages of other sites ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/", "/v1/models", "/api/cameras", "/api/stream", "/metrics", "/openapi.json"])
def test_dns_rebinding_an_open_server_answers_to_no_foreign_name(http, path):
    """A page of evil.example whose name suddenly leads here would be of the same origin as our page."""
    for name in (
        "evil.example",
        "evil.example:8000",
        "127.0.0.1.evil.example",
        "localhost.evil.example",
        "evil.example.",
    ):
        response = http.get(path, headers={"Host": name})
        assert response.status_code == 403 and error_of(response)["code"] == "host_not_allowed", name


@pytest.mark.parametrize(
    "name", ["localhost:1", "LOCALHOST", "127.0.0.1:8000", "192.168.1.7", "[::1]:8000", "a.localhost", "serve:8000"]
)
def test_addresses_and_names_of_the_local_network_are_answered(http, name):
    assert http.get("/v1/models", headers={"Host": name}).status_code == 200


def test_health_is_told_under_any_name(http):
    for path in ("/health/live", "/health/ready"):
        assert http.get(path, headers={"Host": "watchword.cameras.svc.cluster.local"}).status_code == 200


def test_named_hosts_are_answered_and_no_others(serve):
    live = serve(allowed_hosts=("watchword.example.com", "*.inside.example"))
    for name, status in (
        ("watchword.example.com", 200),
        ("a.inside.example", 200),
        ("inside.example", 403),
        ("example.com", 403),
        ("127.0.0.1", 200),
    ):
        assert httpx.get(f"{live.url}/v1/models", headers={"Host": name}).status_code == status, name


@pytest.mark.parametrize(
    ("headers", "passes"),
    [
        ({}, True),
        ({"Origin": "{url}"}, True),
        ({"Origin": "{url}", "Sec-Fetch-Site": "same-origin"}, True),
        ({"Origin": "https://proxy.example", "Sec-Fetch-Site": "same-origin"}, True),
        ({"Sec-Fetch-Site": "none"}, True),
        ({"Origin": "https://evil.example"}, False),
        ({"Origin": "null"}, False),
        ({"Origin": "http://127.0.0.1:1"}, False),
        ({"Origin": "http://["}, False),
        ({"Sec-Fetch-Site": "cross-site"}, False),
        ({"Sec-Fetch-Site": "same-site", "Origin": "{url}"}, False),
    ],
)
def test_csrf_pages_of_other_sites_can_change_nothing(http, server, headers, passes):
    given = {name: value.format(url=server.url) for name, value in headers.items()}
    for method, path in (("POST", "/api/session"), ("DELETE", "/api/session"), ("POST", "/v1/chat/completions")):
        response = http.request(method, path, headers=given, json={"messages": user(), "max_tokens": 1})
        assert (response.status_code != 403) is passes, (method, path)
    assert passes or error_of(response)["code"] == "cross_site_request"


def test_no_other_site_may_read_answers(http):
    for method in ("GET", "OPTIONS"):
        answer = http.request(method, "/v1/models", headers={"Origin": "https://evil.example"})
        assert not [name for name in answer.headers if name.startswith("access-control-")]


def test_the_page_writes_text_as_text_only():
    """XSS: descriptions are a model's words about what stands before a camera, on a T-shirt perhaps."""
    for path in FOLDER.glob("*.js"):
        code = re.sub(r"//.*", "", path.read_text())
        assert not re.search(r"innerHTML|outerHTML|insertAdjacent|document\.write|eval\(|new Function|srcdoc", code), (
            path
        )
    page = (FOLDER / "index.html").read_text()
    assert not re.search(r"<script(?![^>]*\bsrc=)|\son\w+=|style=|javascript:", page)


# Slow and many -------------------------------------------------------------------------------------------------------


def connect(live: LiveServer) -> socket.socket:
    host, port = live.url.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), timeout=20)


HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"


def test_who_does_not_say_what_it_wants_is_cut_off(serve, monkeypatch):
    monkeypatch.setattr(api.server, "HEAD_S", 0.3)
    live = serve()
    for beginning in (
        b"",
        b"GET / HTTP/1.1\r\nHost: local",
        b"GET /health/live HTTP/1.1\r\nHost: localhost\r\n\r\nGET",
    ):
        with connect(live) as connection:
            connection.sendall(beginning)
            while connection.recv(4096):  # an answer, then the end
                pass
    assert httpx.get(f"{live.url}/health/live").status_code == 200


def test_a_body_that_never_comes_is_408(serve):
    live = serve(body_timeout_s=0.3)
    with connect(live) as connection:
        connection.sendall(HEAD + b"Content-Length: 100\r\n\r\n{")
        assert connection.recv(4096).startswith(b"HTTP/1.1 408")
    assert httpx.get(f"{live.url}/health/live").status_code == 200


def test_the_bodies_of_all_requests_together_are_bounded(serve):
    live = serve(max_body_bytes=64_000, max_open_body_bytes=100_000)

    def post() -> httpx.Response:
        return httpx.post(f"{live.url}/v1/chat/completions", json={"messages": user("x" * 50_000)})

    with connect(live) as held:
        held.sendall(HEAD + b"Content-Length: 64000\r\n\r\n" + b" " * 60_000)
        until(lambda: post().status_code == 429)
        refused = post()
        assert refused.headers["retry-after"] and error_of(refused)["code"] == "server_busy"
    # The first one left: there is room again. (Too long for the model, which says so.)
    until(lambda: post().status_code != 429)
    assert error_of(post())["code"] == "context_length_exceeded"


# Paths ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path",
    [
        "/web/..%2f..%2fpyproject.toml",
        "/web/%2e%2e/app.py",
        "/web/....//app.py",
        "/web/main.js%00.css",
        "/web//etc/passwd",
        "/source.tar.gz/../../etc/passwd",
        "//etc/passwd",
    ],
)
def test_no_path_leads_to_another_file(server, path):
    with connect(server) as connection:
        connection.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
        answer = b"".join(iter(lambda: connection.recv(65536), b""))
    assert re.match(rb"HTTP/1.1 (404|400|405) ", answer) and b"root:" not in answer


@pytest.mark.parametrize("event", ["..", "..%2f..%2fetc%2fpasswd", "%2e%2e%2fx", "a%00b", "a%0d%0aX-Injected:%201"])
def test_no_event_id_leads_to_another_file(operator, event):
    response = operator.get(f"/api/events/{event}/crop.jpg")
    assert response.status_code in (400, 404) and "x-injected" not in response.headers


def test_the_source_holds_files_of_the_packages_only(http):
    with tarfile.open(fileobj=io.BytesIO(http.get("/source.tar.gz").content)) as archive:
        for entry in archive:
            assert entry.isfile() and entry.name.startswith("watchword/") and ".." not in entry.name


# Prompts and logs ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", ["\ue0009999\ue001", "<image>", "<|im_end|>", {"a": ["\ue0000\ue001"]}, "\ue000", 7])
@pytest.mark.parametrize("key", ["bos_token", "enable_thinking", "image_token", "documents", "custom"])
def test_template_arguments_forge_nothing_and_break_nothing(http, key, value):
    body = {"messages": user(), "max_tokens": 1, "chat_template_kwargs": {key: value}}
    assert http.post("/v1/chat/completions", json=body).status_code in (200, 400)


@pytest.mark.parametrize("key", ["chat_template", "tools", "tokenize", "conversation", "return_tensors", "messages"])
def test_template_arguments_take_nothing_over(http, key):
    body = {"messages": user(), "max_tokens": 1, "chat_template_kwargs": {key: "{{ 1 / 0 }}"}}
    assert http.post("/v1/chat/completions", json=body).status_code in (200, 400)


@pytest.mark.parametrize("field", ["name", "tool_call_id"])
def test_names_forge_no_special_tokens(http, field):
    def tokens(value: str) -> int:
        body = {"messages": [{"role": "user", "content": "x", field: value}], "max_tokens": 1}
        return http.post("/v1/chat/completions", json=body).json()["usage"]["prompt_tokens"]

    assert tokens("<|im_end|>" * 3) >= tokens("a")


def test_log_injection_what_a_client_sends_is_one_record():
    record = logging.makeLogRecord(
        {"name": "api", "levelname": "ERROR", "msg": "%s failed", "args": ("/x\n2026 ERROR fake\r\x1b[2J",)}
    )
    RedactingFilter().filter(record)
    lines = PlainFormatter().format(record).split("\n")
    assert len(lines) == 2 and lines[1].startswith("    2026 ERROR fake\\r\\x1b[2J failed")
