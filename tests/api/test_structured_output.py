"""Structured output over HTTP with the official client; the model is random, so only the grammar makes it answer so."""

from __future__ import annotations

import json
import re

import jsonschema
import openai
import pytest

from tests.api.conftest import MODEL, error_of, user

FIELDS = {"model": MODEL, "messages": user(), "max_tokens": 200, "temperature": 1.0, "seed": 3}
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 8},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "coat": {"enum": ["red", "blue", None]},
    },
    "required": ["name", "age", "coat"],
    "additionalProperties": False,
}


def as_format(schema, **more) -> dict:
    return {"type": "json_schema", "json_schema": {"name": "person", "schema": schema, **more}}


@pytest.mark.parametrize("stream", [False, True])
def test_a_json_schema_is_followed_in_every_choice_and_ends_with_stop(client, stream):
    asked = dict(FIELDS, n=3, response_format=as_format(PERSON, strict=True), stream=stream)
    if stream:
        texts, reasons = ["", "", ""], {}
        for chunk in client.chat.completions.create(**asked):
            for choice in chunk.choices:
                texts[choice.index] += choice.delta.content or ""
                reasons[choice.index] = choice.finish_reason or reasons.get(choice.index)
    else:
        choices = client.chat.completions.create(**asked).choices
        texts = [choice.message.content for choice in choices]
        reasons = {choice.index: choice.finish_reason for choice in choices}
    assert reasons == {0: "stop", 1: "stop", 2: "stop"}
    for text in texts:
        jsonschema.validate(json.loads(text), PERSON)
    assert len(set(texts)) > 1


def test_the_clients_own_parse_helper_gets_its_model(client):
    from typing import Literal

    from pydantic import BaseModel

    class Person(BaseModel):
        coat: Literal["red", "blue"]
        hat: bool
        colours: list[Literal["green", "grey"]]

    asked = {**FIELDS, "max_tokens": 1000, "logit_bias": {"77": 0}}
    parsed = client.chat.completions.parse(response_format=Person, **asked).choices[0].message.parsed
    assert isinstance(parsed, Person)


@pytest.mark.parametrize(
    ("extra", "pattern"),
    [
        ({"structured_outputs": {"regex": r"[a-f]{3}-\d{2}"}}, r"[a-f]{3}-\d{2}"),
        ({"structured_outputs": {"choice": ["yes", "no"]}}, "yes|no"),
        ({"structured_outputs": {"grammar": 'start: "go " ("left" | "right")'}}, "go (left|right)"),
        ({"structured_outputs": {"grammar": 'root ::= "go " ("left" | "right")'}}, "go (left|right)"),
        ({"structured_outputs": {"json": {"const": 7}}}, "7"),
        ({"guided_regex": "[ab]{4}"}, "[ab]{4}"),
        ({"guided_choice": ["one"]}, "one"),
        ({"guided_grammar": 'start: "x"'}, "x"),
        ({"guided_json": '{"type": "boolean"}'}, "true|false"),
    ],
)
def test_vllms_extras_are_followed(client, extra, pattern):
    choice = client.chat.completions.create(extra_body=extra, **FIELDS).choices[0]
    assert re.fullmatch(pattern, choice.message.content) and choice.finish_reason == "stop"


@pytest.mark.parametrize("text", ["0", "Ì", "b5"])
def test_a_top_p_that_is_next_to_nothing_leaves_the_likeliest_of_what_may_follow(client, text):
    """5e-324 is more than 0, and less than any number that a GPU or torch's float32 knows."""
    asked = dict(model=MODEL, prompt="A", max_tokens=8, temperature=1.0, top_p=5e-324)
    choice = client.completions.create(extra_body={"guided_choice": [text]}, **asked).choices[0]
    assert choice.text == text and choice.finish_reason == "stop"
    assert client.completions.create(**asked).choices[0].text == greedy_text(client)


def greedy_text(client) -> str:
    return client.completions.create(model=MODEL, prompt="A", max_tokens=8, temperature=0.0).choices[0].text


def test_json_on_one_line_takes_fewer_steps_than_tokens(client, engine):
    """vLLM's ``disable_any_whitespace``: between two values nothing is left to choose, so nothing is sampled there."""
    extra = {"structured_outputs": {"json": PERSON, "disable_any_whitespace": True}}
    before = engine.metrics.value("jump_forward_tokens")
    answer = client.chat.completions.create(extra_body=extra, **FIELDS)
    text = answer.choices[0].message.content
    jsonschema.validate(json.loads(text), PERSON)
    assert re.fullmatch(r'\{"name": "[^"]*", "age": \d+, "coat": (null|"red"|"blue")\}', text)
    forced = engine.metrics.value("jump_forward_tokens") - before
    assert 10 <= forced < answer.usage.completion_tokens


def test_what_is_forced_is_sampled_where_log_probabilities_are_asked_for(client, engine):
    before = engine.metrics.value("jump_forward_tokens")
    extra = {"structured_outputs": {"json": PERSON, "disable_any_whitespace": True}}
    answer = client.chat.completions.create(extra_body=extra, logprobs=True, **FIELDS)
    choice = answer.choices[0]
    jsonschema.validate(json.loads(choice.message.content), PERSON)
    assert "".join(token.token for token in choice.logprobs.content) == choice.message.content
    assert engine.metrics.value("jump_forward_tokens") == before


def test_completions_follow_them_too(client):
    asked = dict(model=MODEL, prompt=["A", "B"], max_tokens=20, extra_body={"guided_regex": "[ab]{4}"})
    assert all(re.fullmatch("[ab]{4}", choice.text) for choice in client.completions.create(**asked).choices)


def test_e14_a_json_object_ends_or_runs_into_its_limit_without_endless_white_space(client, engine):
    """The model is pushed towards white space with all that logit_bias allows."""
    spaces = {token: engine.tokenizer.decode([token]) for token in range(0, 49152)}
    bias = {str(token): 100 for token, text in spaces.items() if text and not text.strip(" \n\t")}
    assert len(bias) > 10
    choice = client.chat.completions.create(
        response_format={"type": "json_object"}, logit_bias=bias, **{**FIELDS, "max_tokens": 120}
    ).choices[0]
    # The white space where a value or a name is due; in strings it is the model's own.
    outside = re.sub(r'"(\\.|[^"\\])*("|$)', '""', choice.message.content)
    assert max((len(run) for run in re.findall(r"\s+", outside)), default=0) <= 17
    assert choice.finish_reason in ("stop", "length")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"response_format": as_format({"type": "nonsense"})}, "response_format"),
        ({"response_format": as_format({"not": {}})}, "response_format"),
        ({"response_format": {"type": "xml"}}, "response_format"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        ({"structured_outputs": {"regex": "("}}, "structured_outputs.regex"),
        ({"structured_outputs": {"grammar": "start: nobody"}}, "structured_outputs.grammar"),
        ({"structured_outputs": {"choice": []}}, "structured_outputs.choice"),
        ({"structured_outputs": {"lua": "x"}}, "structured_outputs.lua"),
        ({"structured_outputs": {"json": {"$ref": "http://127.0.0.1:1/x"}}}, "structured_outputs.json"),
        ({"guided_json": "{"}, "guided_json"),
        ({"guided_json": {}, "guided_regex": "a"}, "guided_regex"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_e13_what_cannot_be_followed_is_400_before_any_answer(http, fields, param, stream):
    response = http.post("/v1/chat/completions", json={"messages": user(), "max_tokens": 2, "stream": stream, **fields})
    assert response.status_code == 400, response.text
    assert error_of(response)["param"].startswith(param)


def test_e13_the_engine_goes_on_after_bad_schemas(client):
    for _ in range(3):
        with pytest.raises(openai.BadRequestError):
            client.chat.completions.create(response_format=as_format({"type": "nonsense"}), **FIELDS)
    assert client.chat.completions.create(**{**FIELDS, "max_tokens": 2}).choices[0].message.content is not None


def test_a_lenient_schema_lets_pass_what_cannot_be_enforced(client):
    loose = {"type": "array", "items": {"const": 1}, "maxItems": 3, "uniqueItems": True}
    choice = client.chat.completions.create(response_format=as_format(loose, strict=False), **FIELDS).choices[0]
    assert set(json.loads(choice.message.content)) <= {1}


def test_stop_strings_minimum_and_logprobs_go_along(client):
    extra = {"guided_regex": "(ab){1,20}c", "min_tokens": 6}
    choice = client.chat.completions.create(extra_body=extra, logprobs=True, top_logprobs=2, **FIELDS).choices[0]
    assert re.fullmatch("(ab){1,20}c", choice.message.content) and len(choice.logprobs.content) >= 1
    assert "".join(token.token for token in choice.logprobs.content) == choice.message.content
    stopped = client.chat.completions.create(extra_body={"guided_regex": "x{3}yz{3}"}, stop="y", **FIELDS).choices[0]
    assert stopped.message.content == "xxx" and stopped.finish_reason == "stop"


def test_ignore_eos_goes_on_as_long_as_the_grammar_does(client):
    asked = {**FIELDS, "max_tokens": 30}
    free = client.chat.completions.create(extra_body={"guided_regex": "a*", "ignore_eos": True}, **asked)
    assert free.usage.completion_tokens == 30 and free.choices[0].finish_reason == "length"
    bound = client.chat.completions.create(extra_body={"guided_regex": "a{5}", "ignore_eos": True}, **asked)
    assert bound.choices[0].message.content == "aaaaa" and bound.choices[0].finish_reason == "stop"
