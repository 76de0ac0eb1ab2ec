"""POST /v1/responses with the official client: what it answers, and its stream's events in their order."""

from __future__ import annotations

import json

import openai
import pytest
from openai.types.responses import Response

from tests.api.conftest import CONTEXT, MODEL, error_of
from tests.api.pictures import data_url

GREEDY = {"model": MODEL, "temperature": 0.0, "max_output_tokens": 8}


def test_a_response_says_what_a_chat_says(client):
    response = client.responses.create(input="Say something.", **GREEDY)
    assert isinstance(response, Response) and response.object == "response" and response.id.startswith("resp_")
    chat = client.chat.completions.create(
        messages=[{"role": "user", "content": "Say something."}], model=MODEL, temperature=0, max_tokens=8
    )
    assert response.output_text == chat.choices[0].message.content
    assert response.usage.input_tokens == chat.usage.prompt_tokens and response.usage.output_tokens == 8


def test_running_into_the_limit_is_incomplete_and_stopping_is_completed(client, engine):
    cut = client.responses.create(input="Say something.", **GREEDY)
    assert cut.status == "incomplete" and cut.incomplete_details.reason == "max_output_tokens"
    end = engine.tokenizer.encode("<end_of_utterance>", add_special_tokens=False)[0]
    done = client.responses.create(input="Hi", extra_body={"logit_bias": {str(end): 100}}, **GREEDY)
    assert done.status == "completed" and done.incomplete_details is None
    assert done.output[0].status == "completed"


def test_the_streams_events_come_in_their_order_and_numbered(client):
    whole = client.responses.create(input="Say something.", **GREEDY)
    events = list(client.responses.create(input="Say something.", stream=True, **GREEDY))
    kinds = [event.type for event in events]
    deltas = kinds.count("response.output_text.delta")
    assert deltas > 2
    assert kinds == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        *["response.output_text.delta"] * deltas,
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.incomplete",
    ]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert text == whole.output_text == events[-1].response.output_text == events[-4].text
    item_ids = {event.item_id for event in events if hasattr(event, "item_id")}
    assert item_ids == {events[-1].response.output[0].id}
    assert {event.response.id for event in events if hasattr(event, "response")} == {events[0].response.id}


def test_the_clients_own_stream_helper_follows_it(client, engine):
    end = engine.tokenizer.encode("<end_of_utterance>", add_special_tokens=False)[0]
    with client.responses.stream(input="Hi", extra_body={"logit_bias": {str(end): 100}}, **GREEDY) as stream:
        for _ in stream:
            pass
        assert stream.get_final_response().status == "completed"


def test_each_event_goes_out_under_its_own_name(http):
    body = {"input": "Hi", "max_output_tokens": 2, "stream": True}
    with http.stream("POST", "/v1/responses", json=body) as response:
        blocks = response.read().decode().strip().split("\n\n")
    for block in blocks:
        name, data = block.split("\n")
        assert name.removeprefix("event: ") == json.loads(data.removeprefix("data: "))["type"]


def test_instructions_history_and_pictures_make_the_prompt(client):
    history = [
        {"role": "user", "content": "Hello"},
        {
            "type": "message",
            "id": "msg_1",
            "status": "completed",
            "role": "assistant",
            "content": [{"type": "output_text", "text": "Good day.", "annotations": []}],
        },
        {
            "role": "user",
            "content": [
                {"type": "input_text", "text": "And this?"},
                {"type": "input_image", "image_url": data_url(), "detail": "auto"},
            ],
        },
    ]
    bare = client.responses.create(input="Hello", **GREEDY).usage.input_tokens
    full = client.responses.create(input=history, instructions="Be brief.", **GREEDY)
    assert full.usage.input_tokens > bare + 64  # a picture takes 64 tokens a tile
    assert full.instructions == "Be brief."


def test_detail_is_how_closely_a_picture_is_looked_at(client):
    def tokens(detail):
        parts = [{"type": "input_image", "image_url": data_url(), "detail": detail}]
        return client.responses.create(input=[{"role": "user", "content": parts}], **GREEDY).usage.input_tokens

    assert tokens("low") < 120 < 800 < tokens("auto") == tokens("high") == tokens("original")
    with pytest.raises(openai.BadRequestError) as error:
        tokens("medium")
    assert error.value.param == "input[0].content[0].detail"


def test_logprobs_come_when_included(client):
    asked = dict(input="Hi", include=["message.output_text.logprobs"], top_logprobs=2, **GREEDY)
    part = client.responses.create(**asked).output[0].content[0]
    assert len(part.logprobs) == 8 and all(len(token.top_logprobs) == 2 for token in part.logprobs)
    deltas = [e for e in client.responses.create(stream=True, **asked) if e.type == "response.output_text.delta"]
    assert sum(len(event.logprobs) for event in deltas) == 8


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": []}, "input"),
        ({}, "input"),
        ({"input": "x", "max_output_tokens": 0}, "max_output_tokens"),
        ({"input": "x", "max_output_tokens": CONTEXT}, "max_output_tokens"),
        ({"input": "x", "previous_response_id": "resp_1"}, "previous_response_id"),
        ({"input": "x", "background": True, "store": False}, "background"),
        ({"input": "x", "stream_options": {"include_obfuscation": False}}, "stream_options"),
        ({"input": "x", "stream": True, "stream_options": {"include_obfuscation": True}}, "stream_options"),
        ({"input": "x", "truncation": "auto"}, "truncation"),
        ({"input": "x", "truncate_prompt_tokens": 0}, "truncate_prompt_tokens"),
        ({"input": "x", "text": {"format": {"type": "xml"}}}, "text.format"),
        ({"input": "x", "tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"input": "x", "metadata": {"a": 1}}, "metadata.a"),
        ({"input": "x", "temperature": 9}, "temperature"),
        ({"input": [{"role": "user", "content": [{"type": "input_file"}]}]}, "input[0].content[0]"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input[0].content[0].image_url"),
        ({"input": [{"type": "function_call", "name": "f", "arguments": "{}"}]}, "input[0].call_id"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0]"),
    ],
)
def test_e17_what_cannot_be_obeyed_is_400_that_names_it(http, fields, param):
    response = http.post("/v1/responses", json=fields)
    assert response.status_code == 400
    assert error_of(response)["param"].startswith(param)


def test_e9_a_too_long_input_is_400_before_the_stream_begins(client):
    with pytest.raises(openai.BadRequestError) as refused:
        client.responses.create(input="word " * 2 * CONTEXT, stream=True, model=MODEL)
    assert refused.value.code == "context_length_exceeded"
