"""The fields of chat completions one by one (E17): each changes what it should change, with the official client."""

from __future__ import annotations

import asyncio
import json

import httpx
import openai
import pytest

from tests.api.conftest import CONTEXT, MODEL, error_of, user
from tests.api.pictures import data_url, encoded, image_part, picture
from tests.api.test_chat import GREEDY, greedy
from vlm_engine.chat import ChatRenderer
from vlm_engine.errors import InvalidRequestError


def refused(client, **fields) -> openai.BadRequestError:
    with pytest.raises(openai.BadRequestError) as error:
        greedy(client, **fields)
    return error.value


# Sampling ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "penalty",
    [{"presence_penalty": 2.0}, {"frequency_penalty": 2.0}, {"extra_body": {"repetition_penalty": 1.3}}],
    ids=["presence", "frequency", "repetition"],
)
def test_penalties_bring_other_words(client, engine, penalty):
    words = [
        engine.tokenizer.encode(word, add_special_tokens=False)[0] for word in (" a", " b", " c", " d", " e", " f")
    ]
    fields = dict(logit_bias=dict.fromkeys(map(str, words), 100), max_tokens=40)
    plain, other = (greedy(client, **fields, **more).choices[0].message.content for more in ({}, penalty))
    assert plain != other
    assert set(plain.split()) | set(other.split()) <= set("abcdef")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"logit_bias": {"49280": 1}}, "logit_bias"),
        ({"logit_bias": {str(2**31 - 1): 1}}, "logit_bias"),
        ({"extra_body": {"stop_token_ids": [49280]}}, "stop_token_ids"),
    ],
)
def test_tokens_that_the_model_does_not_have_are_refused(client, fields, param):
    error = refused(client, **fields)
    assert error.param == param and "49279" in error.message


async def test_e20_a_seed_says_the_same_alone_and_with_seven_others(async_client):
    async def say(seed: int, **fields) -> str:
        answer = await async_client.chat.completions.create(
            messages=user("Number one."), model=MODEL, max_tokens=12, seed=seed, **fields
        )
        return answer.choices[0].message.content

    for fields in ({"temperature": 0.0}, {"temperature": 1.0}):
        alone = await say(1, **fields)
        together = await asyncio.gather(say(1, **fields), *(say(seed, **fields) for seed in range(2, 9)))
        assert together[0] == alone
        assert (len(set(together)) == 1) is (fields["temperature"] == 0.0)


# Messages ------------------------------------------------------------------------------------------------------------


def test_system_and_tool_messages_reach_the_prompt(client):
    bare = greedy(client, user("How warm is it?")).usage.prompt_tokens
    messages = [
        {"role": "system", "content": "Be brief."},
        *user("How warm is it?"),
        {"role": "assistant", "content": "I look it up."},
        {"role": "tool", "tool_call_id": "call_1", "content": "21 degrees"},
    ]
    answer = greedy(client, messages)
    assert answer.usage.prompt_tokens > bare + 8
    other = [*messages[:-1], {**messages[-1], "content": "35 degrees"}]
    assert greedy(client, other).choices[0].message.content != answer.choices[0].message.content


def test_pictures_of_several_turns_are_all_seen_in_their_order(client):
    def look(first: str, second: str):
        turns = [
            {"role": "user", "content": [image_part(data_url(encoded(picture(first)))), {"type": "text", "text": "1"}]},
            {"role": "assistant", "content": "Yes."},
            {
                "role": "user",
                "content": [{"type": "text", "text": "2"}, image_part(data_url(encoded(picture(second))))],
            },
        ]
        options = {"mm_processor_kwargs": {"do_image_splitting": False}}
        answer = greedy(client, turns, logprobs=True, max_tokens=4, extra_body=options)
        return answer.usage.prompt_tokens, [token.logprob for token in answer.choices[0].logprobs.content]

    tokens, seen = look("firebrick", "navy")
    assert tokens > 128  # both take 64
    assert look("firebrick", "navy")[1] == pytest.approx(seen, abs=1e-4)
    assert look("navy", "firebrick")[1] != pytest.approx(seen, abs=1e-4)
    assert look("firebrick", "firebrick")[1] != pytest.approx(seen, abs=1e-4)


def test_without_the_generation_prompt_the_prompt_ends_earlier(client):
    plain, bare = (
        greedy(client, extra_body=body).usage.prompt_tokens for body in ({}, {"add_generation_prompt": False})
    )
    assert bare < plain


def test_template_variables_are_given_to_the_template(engine):
    template = "{% for m in messages %}{{ m.name }}: {{ m.content }}{% endfor %}{{ mood }}{{ eos_token }}"
    chat = ChatRenderer(engine.tokenizer, template, None)
    assert chat.template_variables == {"mood"}
    message = {"role": "user", "content": "Hello", "name": "ann"}
    [ids] = chat.render([message], template_kwargs={"mood": " glad"}).pieces
    assert engine.tokenizer.decode(ids).startswith("ann: Hello glad")
    with pytest.raises(InvalidRequestError, match="it has: mood"):
        chat.render([message], template_kwargs={"mod": "x"})


def test_template_variables_that_the_template_does_not_have_are_refused(client):
    for name in ("enable_thinking", "chat_template", "tokenize", "messages", "add_generation_prompt", "tools"):
        error = refused(client, extra_body={"chat_template_kwargs": {name: True}})
        assert error.param == "chat_template_kwargs" and name in error.message
    assert greedy(client, extra_body={"chat_template_kwargs": {}}).choices


def test_names_cannot_forge_special_tokens(engine):
    template = "{% for m in messages %}{{ m.name }}{{ m.tool_call_id }}{{ m.content }}{% endfor %}"
    chat = ChatRenderer(engine.tokenizer, template, None)
    end = "<end_of_utterance>"
    [ids] = chat.render([{"role": "tool", "content": end, "name": end, "tool_call_id": end}]).pieces
    assert engine.tokenizer.convert_tokens_to_ids(end) not in ids
    assert engine.tokenizer.decode(ids) == 3 * end


# Prompts -------------------------------------------------------------------------------------------------------------


def test_only_the_last_tokens_of_a_prompt_are_kept_when_asked(client):
    long = user("word " * 300)
    kept = greedy(client, long, extra_body={"truncate_prompt_tokens": 40})
    assert kept.usage.prompt_tokens == 40
    whole = greedy(client, extra_body={"truncate_prompt_tokens": 1000})
    assert whole.choices[0].message.content == greedy(client).choices[0].message.content
    too_long = user("word " * 2 * CONTEXT)
    rest = greedy(client, too_long, extra_body={"truncate_prompt_tokens": -1})
    assert rest.usage.prompt_tokens == CONTEXT - GREEDY["max_tokens"]


def test_but_never_a_part_of_a_picture(client):
    messages = [{"role": "user", "content": [image_part(), {"type": "text", "text": "Who is it? " * 10}]}]
    error = refused(client, messages=messages, extra_body={"truncate_prompt_tokens": 60})
    assert error.param == "truncate_prompt_tokens" and "picture" in error.message
    splitting = {"mm_processor_kwargs": {"do_image_splitting": False}}
    whole = greedy(client, messages, logprobs=True, extra_body=splitting)
    cut = whole.usage.prompt_tokens - 2  # what stands before the picture is cut off, the picture is moved
    kept = greedy(client, messages, logprobs=True, extra_body={**splitting, "truncate_prompt_tokens": cut})
    assert kept.usage.prompt_tokens == cut and kept.choices[0].message.content


@pytest.mark.parametrize("value", [0, -2])
def test_a_truncation_to_nothing_is_refused(client, value):
    assert refused(client, extra_body={"truncate_prompt_tokens": value}).param == "truncate_prompt_tokens"


def test_a_text_far_beyond_the_context_is_refused_before_it_is_tokenised(client):
    error = refused(client, messages=user("x" * 2_000_000))
    assert error.code == "context_length_exceeded" and "2000" in error.message


def test_only_the_same_salt_shares_what_is_cached(client):
    question = user("A question of its own, long enough for several blocks of the cache. " * 4)

    def cached(salt: str) -> int:
        usage = greedy(client, question, extra_body={"cache_salt": salt}).usage
        return usage.prompt_tokens_details.cached_tokens

    assert cached("a") == 0
    assert cached("a") > 0
    assert cached("b") == 0


# Streams -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [1, 2])
def test_e5_counts_in_each_chunk_are_right_while_the_prompt_takes_two_and_a_half_chunks(small_steps, n):
    _, server = small_steps
    with httpx.Client(base_url=server.url, timeout=60) as http:
        text = "word " * 150
        prompt = http.post("/tokenize", json={"messages": user(text)}).json()["count"]
        assert 2.3 * 64 < prompt < 3 * 64
        options = {"include_usage": True, "continuous_usage_stats": True}
        body = {"messages": user(text), "max_tokens": 5, "ignore_eos": True, "stream": True, "n": n}
        with http.stream("POST", "/v1/chat/completions", json={**body, "stream_options": options}) as response:
            lines = [line.removeprefix("data: ") for line in response.iter_lines() if line]
    *chunks, last = [json.loads(line) for line in lines[:-1]]
    assert {chunk["usage"]["prompt_tokens"] for chunk in chunks} == {prompt}
    counts = [chunk["usage"]["completion_tokens"] for chunk in chunks]
    assert counts[0] == 0 and counts == sorted(counts) and counts[-1] == 5 * n
    assert last["choices"] == [] and last["usage"] == chunks[-1]["usage"]


@pytest.mark.parametrize(
    ("options", "param"),
    [
        ({"continuous_usage_stats": True}, "stream_options.continuous_usage_stats"),
        ({"include_obfuscation": True}, "stream_options.include_obfuscation"),
        ({"include_usge": True}, "stream_options.include_usge"),
    ],
)
def test_stream_options_that_cannot_be_obeyed_are_refused(http, options, param):
    body = {"messages": user(), "stream": True, "stream_options": options}
    response = http.post("/v1/chat/completions", json=body)
    assert response.status_code == 400 and error_of(response)["param"] == param
