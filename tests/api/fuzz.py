"""Requests made up from our own OpenAPI description, sent to a live server; every answer must be one that we mean.

An answer is right when it is no 5xx, comes in time, has an error of the one shape if it is an error, and a stream ends
as streams end. What the model is asked for is kept small; everything else is as generated, valid or not.
"""

from __future__ import annotations

import json
import math
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import httpx
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from schemathesis import Case, GenerationMode

from tests.api.pictures import data_url

ENDLESS = "/api/stream"
"""Server-sent events without an end, by design."""
LONGEST_S = 60.0
MOST_TOKENS = 4
MOST_OUTPUTS = 2
LIMITS = {
    "/v1/chat/completions": "max_completion_tokens",
    "/v1/completions": "max_tokens",
    "/v1/responses": "max_output_tokens",
}
CHEAP_SHARE = 0.3
"""Of the requests, for all routes but those that generate."""
ROUNDS = 5


@dataclass
class Report:
    """What was sent, and what came back. ``seconds``: how long that took in all."""

    statuses: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0
    slowest_s: float = 0.0
    wrong: list[str] = field(default_factory=list)

    @property
    def requests(self) -> int:
        return sum(self.statuses.values())

    def add(self, other: Report) -> None:
        """Takes in what another piece of the same run has seen."""
        self.statuses += other.statuses
        self.seconds += other.seconds
        self.slowest_s = max(self.slowest_s, other.slowest_s)
        self.wrong += other.wrong

    def as_json(self) -> dict[str, Any]:
        by_route: dict[str, dict[str, int]] = {}
        for key, count in sorted(self.statuses.items()):
            route, _, status = key.rpartition(" ")
            by_route.setdefault(route, {})[status] = count
        return {
            "requests": self.requests,
            "seconds": round(self.seconds),
            "slowest_s": round(self.slowest_s, 2),
            "wrong": self.wrong,
            "statuses": by_route,
        }


def fuzz(url: str, requests: int, number: int = 0) -> Report:
    """Sends about so many requests; ``number`` seeds them. The report's ``wrong`` holds what should not have been."""
    schema = schemathesis.openapi.from_url(f"{url}/openapi.json")
    operations = [result.ok() for result in schema.get_all_operations() if result.ok().path != ENDLESS]
    generating = [operation for operation in operations if operation.path in LIMITS]
    others = [operation for operation in operations if operation.path not in LIMITS]
    report, begun = Report(), time.monotonic()
    with httpx.Client(base_url=url, timeout=LONGEST_S) as client:
        _round(others, round(requests * CHEAP_SHARE), number, client, report)
        # Routes without parameters have few different requests; the rest goes to those that generate.
        for turn in range(ROUNDS):
            if report.requests < requests:
                _round(generating, requests - report.requests, number + turn, client, report)
    report.seconds = time.monotonic() - begun
    return report


def _round(operations: list[Any], requests: int, number: int, client: httpx.Client, report: Report) -> None:
    each = math.ceil(requests / len(operations) / 2)
    for operation in operations:
        for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE):
            _send(operation, mode, each, number, client, report)


def _send(operation: Any, mode: GenerationMode, count: int, number: int, client: httpx.Client, report: Report) -> None:
    left = count
    quiet = settings(
        max_examples=count,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )

    @seed(number)
    @quiet
    @given(case=operation.as_strategy(generation_mode=mode))
    def send(case: Case) -> None:
        nonlocal left
        if left > 0:
            left -= 1
            if mode is GenerationMode.POSITIVE and isinstance(case.body, dict):
                case.body = _consistent(_fitting(case.body))
            _one(case, client, report)

    try:
        send()
    except Exception as error:
        # Parameterless GETs can't be made invalid; whatever else goes wrong is wrong.
        if type(error).__name__ not in ("Unsatisfiable", "SkipTest"):
            report.wrong.append(f"{operation.method.upper()} {operation.path}: {type(error).__name__}: {error}"[:500])


def _one(case: Case, client: httpx.Client, report: Report) -> None:
    if isinstance(case.body, dict) and case.path in LIMITS:
        case.body = _modest(case.body, LIMITS[case.path])
    asked = case.as_transport_kwargs(base_url=str(client.base_url))
    request = {
        name: asked[name]
        for name in ("method", "url", "headers", "params", "json", "data", "cookies")
        if asked.get(name) is not None
    }
    begun = time.monotonic()
    try:
        response = client.request(**request)
    except httpx.TransportError as error:
        report.wrong.append(f"{case.method} {case.path}: {type(error).__name__}: {_shown(case)}")
        report.statuses[f"{case.method} {case.path} none"] += 1
        return
    except (UnicodeEncodeError, httpx.InvalidURL, TypeError, ValueError):
        return  # this client can't send it
    report.slowest_s = max(report.slowest_s, time.monotonic() - begun)
    report.statuses[f"{case.method} {case.path} {response.status_code}"] += 1
    if (wrong := what_is_wrong(response)) is not None:
        report.wrong.append(f"{case.method} {case.path} {response.status_code}: {wrong}: {_shown(case)}")


def what_is_wrong(response: httpx.Response) -> str | None:
    """None for an answer as it should be."""
    if response.status_code >= 500:
        return f"server error: {response.text[:300]}"
    if response.status_code >= 400:
        try:
            body = response.json()
        except ValueError:
            return "an error that is no JSON"
        shape = set(body) == {"error"} and set(body["error"]) == {"message", "type", "param", "code"}
        return None if shape else "an error of another shape"
    if response.headers.get("content-type", "").startswith("text/event-stream"):
        data = [line.removeprefix("data: ") for line in response.text.splitlines() if line.startswith("data: ")]
        ends = data and (data[-1] == "[DONE]" or json.loads(data[-1])["type"] in ENDS)
        return None if ends else "a stream without its end"
    return None


UNKNOWABLE = frozenset({"model", "previous_response_id", "chat_template_kwargs", "file_id"})
UNKNOWABLE |= {"tool_calls", "function_call", "audio"}
VOCABULARY = 49280
ENDS = ("response.completed", "response.incomplete")


def _fitting(value: Any, name: str = "") -> Any:
    """The body with what no description can say: real pictures, the model's own token ids, things that exist."""
    if name in ("image_url", "url") and isinstance(value, str):
        return data_url()
    if name in ("stop_token_ids", "prompt") and isinstance(value, list) and any(type(item) is int for item in value):
        return [token % VOCABULARY for token in value if type(token) is int]
    if name == "logit_bias" and isinstance(value, dict):
        return {str(int(token) % VOCABULARY): bias for token, bias in value.items() if token.isdecimal()}
    if isinstance(value, dict):
        return {key: _fitting(item, key) for key, item in value.items() if key not in UNKNOWABLE}
    return [_fitting(item) for item in value] if isinstance(value, list) else value


def _consistent(body: dict[str, Any]) -> dict[str, Any]:
    """The body without half wishes: what is only allowed together with something else."""
    for message in body.get("messages") or ():
        if isinstance(message, dict) and message.get("content") is None:
            message["content"] = message.get("refusal") or "Hello"
    needs = {"top_logprobs": "logprobs", "stream_options": "stream"}
    dropped = {name for name, other in needs.items() if "messages" in body and not body.get(other)}
    dropped |= {"stream_options"} if not body.get("stream") else {"prompt_logprobs"}
    dropped |= {"max_tokens"} if body.get("max_tokens") == 0 and not body.get("echo") else set()
    dropped |= {"truncate_prompt_tokens"} if body.get("truncate_prompt_tokens") == 0 else set()
    dropped |= {"max_tokens"} if "messages" in body and body.get("max_completion_tokens") is not None else set()
    return {name: value for name, value in body.items() if name not in dropped}


def _modest(body: dict[str, Any], limit: str) -> dict[str, Any]:
    """The body with less to generate; values that are refused anyway stay as they are."""
    body = dict(body)
    if not any(body.get(name) is not None for name in LIMITS.values()):
        body[limit] = 2
    for name in (*LIMITS.values(), "min_tokens"):
        _lower(body, name, MOST_TOKENS)
    for name in ("n", "best_of"):
        _lower(body, name, MOST_OUTPUTS)
    return body


def _lower(body: dict[str, Any], name: str, most: int) -> None:
    """Also of 423.0, which is an integer in JSON."""
    if type(body.get(name)) in (int, float) and body[name] > most:
        body[name] = most


def _shown(case: Case) -> str:
    shown = repr({"body": case.body, "query": case.query, "path": case.path_parameters})
    return shown.replace(data_url(), "<picture>")[:2000]
