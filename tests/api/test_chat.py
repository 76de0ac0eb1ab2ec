"""POST /v1/chat/completions with the official client."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import openai
import pytest
from openai.types.chat import ChatCompletion

from tests.api.conftest import MODEL, user
from tests.api.pictures import image_part
from tests.api.waiting import until

GREEDY = {"model": MODEL, "temperature": 0.0, "max_tokens": 12}


def greedy(client, messages=None, **fields):
    return client.chat.completions.create(messages=messages or user(), **{**GREEDY, **fields})


def streamed_text(chunks, index=0) -> str:
    return "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices if choice.index == index)


def events(http, **fields) -> list:
    """The data lines of a stream as they go over the wire."""
    body = {"messages": user(), "max_tokens": 4, "stream": True, **fields}
    with http.stream("POST", "/v1/chat/completions", json=body) as response:
        assert response.status_code == 200
        assert response.headers["content-type"].startswith("text/event-stream")
        lines = [line.removeprefix("data: ") for line in response.iter_lines() if line]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


def test_e17_a_plain_call_is_a_whole_answer_of_the_right_kind(client):
    answer = greedy(client)
    assert isinstance(answer, ChatCompletion)
    assert answer.object == "chat.completion" and answer.id.startswith("chatcmpl-") and answer.model == MODEL
    [choice] = answer.choices
    assert choice.finish_reason == "length"
    assert choice.message.role == "assistant" and choice.message.content
    assert answer.usage.completion_tokens == 12
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + 12


def test_e17_a_stop_string_ends_the_text_before_it(client):
    text = greedy(client).choices[0].message.content
    stop = text[len(text) // 2 :][:4]
    choice = greedy(client, stop=stop).choices[0]
    assert choice.finish_reason == "stop"
    assert choice.message.content == text[: text.index(stop)]
    assert choice.stop_reason == stop
    kept = greedy(client, stop=[stop], extra_body={"include_stop_str_in_output": True}).choices[0]
    assert kept.message.content == text[: text.index(stop)] + stop


def test_e17_n_and_seed_are_obeyed(client):
    fields = dict(messages=user(), model=MODEL, max_tokens=6, temperature=1.0, n=3, seed=7)
    first, again = (client.chat.completions.create(**fields) for _ in range(2))
    texts = [choice.message.content for choice in first.choices]
    assert [choice.index for choice in first.choices] == [0, 1, 2]
    assert len(set(texts)) == 3
    assert texts == [choice.message.content for choice in again.choices]
    assert first.usage.completion_tokens == 18


def test_e17_stop_tokens_minimum_and_ignored_end_are_obeyed(client, engine):
    token = engine.tokenizer.encode(" dog", add_special_tokens=False)[0]
    always = {str(token): 100}
    dogs = greedy(client, logit_bias=always, max_tokens=3).choices[0]
    assert dogs.message.content == " dog dog dog"
    stopped = greedy(client, logit_bias=always, extra_body={"stop_token_ids": [token]})
    assert stopped.choices[0].finish_reason == "stop" and stopped.choices[0].stop_reason == token
    assert stopped.usage.completion_tokens == 1
    later = greedy(client, logit_bias=always, extra_body={"stop_token_ids": [token], "min_tokens": 4})
    assert later.usage.completion_tokens > 4
    end = engine.tokenizer.encode("<end_of_utterance>", add_special_tokens=False)[0]
    ended = greedy(client, logit_bias={str(end): 100})
    assert ended.choices[0].finish_reason == "stop" and ended.usage.completion_tokens == 1
    ignored = greedy(client, logit_bias={str(end): 100}, extra_body={"ignore_eos": True})
    assert ignored.choices[0].finish_reason == "length" and ignored.usage.completion_tokens == 12
    shown = greedy(
        client, logit_bias={str(end): 100}, max_tokens=1, extra_body={"ignore_eos": True, "skip_special_tokens": False}
    )
    assert shown.choices[0].message.content == "<end_of_utterance>"


def test_penalties_and_truncations_change_what_is_said(client):
    plain = greedy(client, max_tokens=24).choices[0].message.content
    for penalty in ({"frequency_penalty": 2.0}, {"extra_body": {"repetition_penalty": 5.0}}):
        assert greedy(client, max_tokens=24, **penalty).choices[0].message.content
    # Truncated to the likeliest token, sampling is greedy.
    for narrow in ({"extra_body": {"top_k": 1}}, {"top_p": 1e-6}, {"extra_body": {"min_p": 1.0}}):
        assert greedy(client, max_tokens=24, temperature=1.0, **narrow).choices[0].message.content == plain


def test_prompt_logprobs_are_told_of_the_whole_prompt_and_only_when_asked(client):
    asked = greedy(client, extra_body={"prompt_logprobs": 0})
    first, *rest = asked.prompt_logprobs
    assert first is None and len(rest) == asked.usage.prompt_tokens - 1
    assert all(len(entry) == 1 and next(iter(entry.values()))["logprob"] <= 0 for entry in rest)
    assert asked.usage.prompt_tokens_details.cached_tokens == 0
    plain = greedy(client)
    assert plain.choices == asked.choices and not hasattr(plain, "prompt_logprobs")
    with pytest.raises(openai.BadRequestError) as refused:
        greedy(client, stream=True, extra_body={"prompt_logprobs": 1})
    assert refused.value.param == "prompt_logprobs"


def test_logprobs_come_for_each_token_and_are_refused_by_halves(client):
    answer = greedy(client, logprobs=True, top_logprobs=3, max_tokens=5)
    tokens = answer.choices[0].logprobs.content
    assert len(tokens) == 5
    assert "".join(token.token for token in tokens) == answer.choices[0].message.content
    for token in tokens:
        assert len(token.top_logprobs) == 3
        assert token.logprob == pytest.approx(token.top_logprobs[0].logprob)  # greedy takes the likeliest
        assert -math.inf < token.logprob <= 0
        assert bytes(token.bytes).decode() == token.token
    with pytest.raises(openai.BadRequestError) as refused:
        greedy(client, top_logprobs=3)
    assert refused.value.param == "top_logprobs"


def test_a_stream_says_what_the_whole_answer_says(client):
    whole = greedy(client)
    chunks = list(greedy(client, stream=True))
    assert streamed_text(chunks) == whole.choices[0].message.content
    assert len({chunk.id for chunk in chunks}) == 1 and len({chunk.created for chunk in chunks}) == 1
    assert all(chunk.object == "chat.completion.chunk" for chunk in chunks)
    assert len([chunk for chunk in chunks if chunk.choices[0].delta.content]) > 4  # in pieces, not at the end


def test_a_stream_begins_with_the_roles_and_ends_each_choice_once(http):
    chunks = events(http, n=2, seed=1)
    opening, rest = chunks[:2], chunks[2:]
    assert [chunk["choices"][0]["index"] for chunk in opening] == [0, 1]
    assert all(chunk["choices"][0]["delta"] == {"role": "assistant", "content": ""} for chunk in opening)
    assert all("role" not in chunk["choices"][0]["delta"] for chunk in rest)
    finishing = [chunk["choices"][0] for chunk in rest if chunk["choices"][0]["finish_reason"]]
    assert sorted(choice["index"] for choice in finishing) == [0, 1]
    assert all(choice["finish_reason"] == "length" and choice["delta"] == {} for choice in finishing)


@pytest.mark.parametrize("options", [None, {}, {"include_usage": False}])
def test_e6_e7_no_usage_and_no_empty_choices_unless_asked(http, options):
    for chunk in events(http, **({} if options is None else {"stream_options": options})):
        assert len(chunk["choices"]) == 1  # clients index choices[0]
        assert "usage" not in chunk


def test_e6_include_usage_adds_one_last_chunk_without_choices(http):
    *chunks, last = events(http, stream_options={"include_usage": True})
    assert last["choices"] == []
    assert last["usage"]["completion_tokens"] == 4
    assert last["usage"]["total_tokens"] == last["usage"]["prompt_tokens"] + 4
    assert all(chunk["usage"] is None and len(chunk["choices"]) == 1 for chunk in chunks)


def test_stream_options_need_a_stream(client):
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(messages=user(), model=MODEL, stream_options={"include_usage": True})
    assert refused.value.param == "stream_options"


async def test_the_async_client_streams_beside_others(async_client):
    import asyncio

    async def one(seed: int) -> str:
        stream = await async_client.chat.completions.create(
            messages=user(f"Number {seed}"), model=MODEL, max_tokens=8, seed=seed, stream=True
        )
        return streamed_text([chunk async for chunk in stream])

    texts = await asyncio.gather(*(one(seed) for seed in range(4)))
    assert all(texts)


def test_pictures_reach_the_model(client):
    from tests.api.pictures import data_url, encoded, picture

    def look(colour: str):
        content = [{"type": "text", "text": "Describe."}, image_part(data_url(encoded(picture(colour))))]
        answer = greedy(client, [{"role": "user", "content": content}], logprobs=True, max_tokens=4)
        return answer.usage.prompt_tokens, [token.logprob for token in answer.choices[0].logprobs.content]

    red_tokens, red = look("firebrick")
    assert red_tokens > 64  # at least one tile of image tokens
    assert look("firebrick")[1] == pytest.approx(red, abs=1e-4)
    assert look("navy")[1] != pytest.approx(red, abs=1e-4)


def test_the_same_question_again_is_partly_cached(client):
    question = user("The very same question, long enough to fill several blocks of the cache. " * 4)
    greedy(client, question)
    assert greedy(client, question).usage.prompt_tokens_details.cached_tokens > 0


def test_developer_messages_names_and_resent_answers_are_taken(client):
    messages = [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": "Hello", "name": "ann"},
        {"role": "assistant", "content": None, "refusal": "No.", "annotations": []},
        {"role": "user", "content": [{"type": "text", "text": "Why?"}]},
    ]
    assert greedy(client, messages).choices[0].message.content


def test_priority_above_zero_goes_to_the_background_class(client, engine):
    def finished(name: str) -> float:
        return engine.metrics.value("request_finished", finished_reason="length", **{"class": name})

    before = finished("background"), finished("interactive")
    greedy(client, extra_body={"priority": 1})
    until(lambda: finished("background") == before[0] + 1)
    greedy(client, extra_body={"priority": -1})
    until(lambda: finished("interactive") == before[1] + 1)


def test_continuing_the_last_message_goes_on_after_its_words(client):
    messages = [*user("Count."), {"role": "assistant", "content": "one two"}]
    plain = greedy(client, messages)
    going_on = greedy(client, messages, extra_body={"continue_final_message": True})
    assert going_on.usage.prompt_tokens < plain.usage.prompt_tokens


@pytest.mark.parametrize("limit", ["max_tokens", "max_completion_tokens"])
def test_both_names_of_the_token_limit_are_obeyed(client, limit):
    answer = client.chat.completions.create(messages=user(), model=MODEL, temperature=0, **{limit: 3})
    assert answer.usage.completion_tokens == 3


def test_fields_without_effect_are_taken(client):
    answer = greedy(
        client,
        user="u-1",
        metadata={"a": "b"},
        store=False,
        tools=[],
        tool_choice="auto",
        response_format={"type": "text"},
        service_tier="auto",
        extra_body={"safety_identifier": "x", "prompt_cache_key": "y", "echo": False, "best_of": 1},
    )
    assert answer.choices[0].message.content


def test_processor_options_reach_the_models_processor(client):
    """One tile takes 64 image tokens; the same picture cut up takes many times that."""
    messages = [{"role": "user", "content": [image_part(), {"type": "text", "text": "Who?"}]}]
    whole = greedy(client, messages).usage.prompt_tokens
    one = greedy(
        client, messages, extra_body={"mm_processor_kwargs": {"do_image_splitting": False}}
    ).usage.prompt_tokens
    assert one < 120 < whole


def looked_at(client, detail: str | None, **options) -> int:
    """Prompt tokens of a question about a picture."""
    part = image_part()
    if detail is not None:
        part["image_url"]["detail"] = detail
    messages = [{"role": "user", "content": [part, {"type": "text", "text": "Who?"}]}]
    return greedy(client, messages, **options).usage.prompt_tokens


def test_detail_is_how_closely_a_picture_is_looked_at(client):
    whole, tiles = looked_at(client, "low"), looked_at(client, None)
    assert whole < 120 < 800 < tiles
    assert [looked_at(client, detail) for detail in ("auto", "high", "original")] == [tiles] * 3


def test_options_for_the_processor_go_before_detail_but_the_bound_of_low_holds(client, engine, monkeypatch):
    monkeypatch.setattr(engine, "config", replace(engine.config, low_detail_image_tokens=400))
    one_tile, split = {"do_image_splitting": False}, {"do_image_splitting": True}
    low = looked_at(client, "low")
    assert looked_at(client, "high", extra_body={"mm_processor_kwargs": one_tile}) == low
    assert low < looked_at(client, "low", extra_body={"mm_processor_kwargs": split}) < 400 + 60


def test_the_bound_of_the_requests_class_holds_for_its_pictures(client, engine, monkeypatch):
    tiles = looked_at(client, "high")
    monkeypatch.setattr(engine, "config", replace(engine.config, max_image_tokens_background=400))
    assert looked_at(client, "high") == tiles
    for options in ({}, {"mm_processor_kwargs": {"do_image_splitting": True}}):
        background = looked_at(client, "high", extra_body={"priority": 1, **options})
        assert 192 < background < 400 + 60


@pytest.mark.parametrize("detail", ["medium", "", "LOW", 3])
def test_another_detail_is_400(client, detail):
    with pytest.raises(openai.BadRequestError) as error:
        looked_at(client, detail)
    assert error.value.param == "messages[0].content[0].image_url.detail"


@pytest.mark.parametrize("options", [{"size": {"longest_edge": 10**9}}, {"max_pixels": 10**12}, {"max_pixels": 0}])
def test_processor_options_are_a_short_list_with_limits(client, options):
    with pytest.raises(openai.BadRequestError) as error:
        greedy(client, extra_body={"mm_processor_kwargs": options})
    assert error.value.param.startswith("mm_processor_kwargs")
