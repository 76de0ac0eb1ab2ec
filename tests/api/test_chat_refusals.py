"""What chat completions refuses, before any answer begins, and in which words."""

from __future__ import annotations

import httpx
import openai
import pytest

from tests.api.conftest import CONTEXT, MODEL, error_of, user


def post(http: httpx.Client, **fields) -> httpx.Response:
    return http.post("/v1/chat/completions", json={"messages": user(), "max_tokens": 2, **fields})


@pytest.mark.parametrize("stream", [False, True])
def test_e9_a_too_long_prompt_is_400_before_the_stream_begins(http, stream):
    response = post(http, messages=user("word " * 2 * CONTEXT), stream=stream)
    assert response.status_code == 400
    assert response.headers["content-type"] == "application/json"
    error = error_of(response)
    assert error["type"] == "invalid_request_error" and error["code"] == "context_length_exceeded"
    assert str(CONTEXT) in error["message"]


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
@pytest.mark.parametrize("value", [0, -1])
def test_e10_a_limit_below_one_is_400_that_names_it(http, name, value):
    body = {"messages": user(), name: value}
    error = error_of(http.post("/v1/chat/completions", json=body))
    assert error["param"] == name and name in error["message"] and "1" in error["message"]


def test_e10_prompt_and_limit_beyond_the_context_is_400_with_the_three_numbers(http):
    body = {"messages": user(), "max_completion_tokens": CONTEXT}
    response = http.post("/v1/chat/completions", json=body)
    error = error_of(response)
    assert response.status_code == 400 and error["param"] == "max_completion_tokens"
    numbers = [word.strip(",.") for word in error["message"].split() if word.strip(",.").isdigit()]
    assert len(numbers) == 3 and numbers.count(str(CONTEXT)) == 2
    assert "max_completion_tokens" in error["message"]


def test_e10_no_limit_means_the_rest_of_the_context(http):
    body = {"messages": user("word " * (CONTEXT - 100)), "temperature": 0, "ignore_eos": True}
    usage = http.post("/v1/chat/completions", json=body, timeout=60).json()["usage"]
    assert usage["total_tokens"] == CONTEXT


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", 3),
        ("temperature", "hot"),
        ("top_p", 0),
        ("n", 0),
        ("presence_penalty", -3),
        ("top_logprobs", 21),
        ("stop", ["a"] * 17),
        ("stop", ""),
        ("seed", 2**64),
        ("logit_bias", {"1": 101}),
        ("logit_bias", {"one": 1}),
        ("min_tokens", 5),
        ("messages", []),
        ("messages", "hello"),
        ("stream", "perhaps"),
    ],
)
def test_e17_a_value_that_cannot_be_obeyed_is_400_that_names_its_field(http, field, value):
    response = post(http, **{field: value})
    error = error_of(response)
    assert response.status_code == 400, error
    assert error["param"] is not None and error["param"].startswith(field)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("reasoning_effort", "high"),
        ("modalities", ["text", "audio"]),
        ("bad_words", ["x"]),
        ("echo", True),
        ("service_tier", "flex"),
    ],
)
def test_e17_what_is_not_supported_yet_is_400_that_names_it(http, field, value):
    response = post(http, **{field: value})
    assert response.status_code == 400
    error = error_of(response)
    assert error["param"] == field and error["code"] == "unsupported_parameter"


@pytest.mark.parametrize("field", ["tools", "response_format", "audio", "logit_bias", "stop", "seed", "user", "n"])
def test_null_asks_for_nothing(http, field):
    assert post(http, **{field: None}).status_code == 200


def test_an_unknown_field_is_400_that_names_it(http):
    error = error_of(post(http, tempreature=0.5))
    assert error["param"] == "tempreature" and error["code"] == "unknown_parameter"


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        ([{"role": "king", "content": "x"}], "messages[0].role"),
        ([{"role": "user"}], "messages[0].content"),
        ([{"role": "user", "content": 5}], "messages[0].content"),
        ([*user(), {"role": "user", "content": [{"type": "video"}]}], "messages[1].content[0]"),
        ([{"role": "user", "content": [{"type": "text"}]}], "messages[0].content[0].text"),
        (
            [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}],
            "messages[0].content[0].image_url.url",
        ),
        ([{"role": "user", "content": "x", "colour": "red"}], "messages[0].colour"),
        ([{"role": "assistant", "content": None, "tool_calls": [{"id": "1"}]}], "messages[0].tool_calls[0].function"),
    ],
)
def test_a_bad_message_is_400_with_the_path_to_the_fault(http, messages, param):
    response = post(http, messages=messages)
    assert response.status_code == 400
    assert error_of(response)["param"] == param


def test_two_different_limits_contradict_each_other(http):
    assert error_of(post(http, max_tokens=2, max_completion_tokens=3))["param"] == "max_tokens"
    assert post(http, max_tokens=2, max_completion_tokens=2).status_code == 200


def test_an_unknown_model_is_404_and_none_means_the_one_served(client, http):
    with pytest.raises(openai.NotFoundError) as refused:
        client.chat.completions.create(messages=user(), model="gpt-6-luna")
    assert refused.value.code == "model_not_found" and MODEL in str(refused.value)
    assert post(http).json()["model"] == MODEL


@pytest.mark.parametrize("body", [b"", b"{", b"[1]", b"null", b'{"messages": NaN}', b"[" * 100_000, b"\xff\xfe"])
def test_a_body_that_is_no_json_object_is_400(http, body):
    response = http.post("/v1/chat/completions", content=body, headers={"Content-Type": "application/json"})
    assert response.status_code == 400
    assert error_of(response)["code"] == "invalid_json"


def test_another_content_type_is_415(http):
    """A foreign web page may post text/plain without asking; it may not make us work."""
    response = http.post("/v1/chat/completions", content=b"{}", headers={"Content-Type": "text/plain"})
    assert response.status_code == 415
    error_of(response)
