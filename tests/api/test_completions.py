"""POST /v1/completions with the official client."""

from __future__ import annotations

import json

import openai
import pytest
from openai.types import Completion

from tests.api.conftest import CONTEXT, MODEL, error_of

GREEDY = {"model": MODEL, "temperature": 0.0, "max_tokens": 8}


def complete(client, prompt="The cat sat on", **fields):
    return client.completions.create(prompt=prompt, **{**GREEDY, **fields})


def text_of(chunks, index=0) -> str:
    return "".join(choice.text for chunk in chunks for choice in chunk.choices if choice.index == index)


def test_a_plain_call_is_a_whole_answer_of_the_right_kind(client, engine):
    answer = complete(client)
    assert isinstance(answer, Completion) and answer.object == "text_completion" and answer.id.startswith("cmpl-")
    [choice] = answer.choices
    assert choice.finish_reason == "length" and choice.text and choice.logprobs is None
    assert answer.usage.prompt_tokens == len(engine.tokenizer.encode("The cat sat on"))
    assert answer.usage.completion_tokens == 8


def test_sixteen_tokens_are_the_default(client):
    asked = dict(prompt="On", model=MODEL, temperature=0, extra_body={"ignore_eos": True})
    assert client.completions.create(**asked).usage.completion_tokens == 16


def test_the_four_forms_of_a_prompt(client, engine):
    ids = engine.tokenizer.encode("The cat sat on")
    text = complete(client).choices[0].text
    assert complete(client, ids).choices[0].text == text
    both = complete(client, ["The cat sat on", "A dog"], n=2)
    assert [choice.index for choice in both.choices] == [0, 1, 2, 3]
    assert both.choices[0].text == both.choices[1].text == text
    assert both.choices[2].text == complete(client, "A dog").choices[0].text
    assert both.usage.prompt_tokens == len(ids) + len(engine.tokenizer.encode("A dog"))
    assert both.usage.completion_tokens == 4 * 8
    assert [choice.text for choice in complete(client, [ids, ids]).choices] == [text, text]


def test_special_tokens_count_as_text_in_texts_and_as_themselves_by_their_ids(client, engine):
    end = engine.tokenizer.convert_tokens_to_ids("<end_of_utterance>")
    assert complete(client, "<end_of_utterance>").usage.prompt_tokens > 2
    assert complete(client, [end]).usage.prompt_tokens == 1


def test_echo_puts_the_prompt_before_the_text(client, engine):
    text = complete(client).choices[0].text
    assert complete(client, echo=True).choices[0].text == "The cat sat on" + text
    ids = engine.tokenizer.encode("The cat sat on")
    assert complete(client, ids, echo=True).choices[0].text == "The cat sat on" + text
    chunks = list(complete(client, ["The cat sat on", "A dog"], echo=True, stream=True))
    assert text_of(chunks) == "The cat sat on" + text
    assert text_of(chunks, 1).startswith("A dog")


def test_logprobs_come_as_parallel_lists(client):
    shown = {"extra_body": {"skip_special_tokens": False}}  # tokens left out of the text have log-probabilities too
    choice = complete(client, logprobs=3, **shown).choices[0]
    lists = choice.logprobs
    assert "".join(lists.tokens) == choice.text
    assert lists.text_offset == [len("".join(lists.tokens[:place])) for place in range(8)]
    for token, logprob, top in zip(lists.tokens, lists.token_logprobs, lists.top_logprobs, strict=True):
        assert len(top) == 3 and top[token] == pytest.approx(logprob) == pytest.approx(max(top.values()))
    sampled = complete(client, logprobs=0, temperature=2.0, seed=3).choices[0].logprobs
    assert all(list(top) == [token] for token, top in zip(sampled.tokens, sampled.top_logprobs, strict=True))
    streamed = [c.choices[0].logprobs for c in complete(client, logprobs=3, stream=True) if c.choices[0].logprobs]
    assert [token for part in streamed for token in part.tokens] == lists.tokens
    assert [offset for part in streamed for offset in part.text_offset] == lists.text_offset


def scores(choice) -> list[tuple]:
    lists = choice.logprobs
    return list(zip(lists.tokens, lists.token_logprobs, lists.top_logprobs, lists.text_offset, strict=True))


def test_echo_with_logprobs_tells_the_prompts_own(client, engine):
    """As evaluation harnesses ask: each token's log-probability is the one that it would have as an answer."""
    ids = engine.tokenizer.encode("The cat sat on")
    first, *rest = scores(complete(client, ids, echo=True, logprobs=2, max_tokens=1).choices[0])
    assert first == (engine.tokenizer.decode(ids[:1]), None, None, 0)
    assert len(rest) == len(ids)  # the prompt's others, and the one token of the answer
    for place, (token, logprob, top, offset) in enumerate(rest, 1):
        forced = {"logit_bias": {str(ids[place]): 100}} if place < len(ids) else {}
        alone = complete(client, ids[:place], logprobs=2, max_tokens=1, **forced).choices[0].logprobs
        assert alone.tokens == [token] and offset == sum(len(engine.tokenizer.decode([id])) for id in ids[:place])
        assert logprob == pytest.approx(alone.token_logprobs[0], abs=1e-3)
        assert top == pytest.approx(alone.top_logprobs[0], abs=1e-3)


def test_max_tokens_zero_scores_the_prompt_and_adds_nothing(client):
    [one, two] = complete(client, ["The cat sat on", "A dog"], echo=True, logprobs=0, max_tokens=0).choices
    assert (one.text, two.text) == ("The cat sat on", "A dog") and one.finish_reason == two.finish_reason == "length"
    assert "".join(one.logprobs.tokens) == one.text and "".join(two.logprobs.tokens) == two.text
    assert complete(client, echo=True, max_tokens=0).usage.completion_tokens == 0


def test_echo_with_logprobs_streams_the_prompt_first(client):
    fields = dict(prompt=["The cat sat on", "A"], n=2, echo=True, logprobs=1)
    whole = complete(client, **fields)
    chunks = list(complete(client, stream=True, **fields))
    for choice in whole.choices:
        parts = [c for chunk in chunks for c in chunk.choices if c.index == choice.index]
        assert "".join(part.text for part in parts) == choice.text
        told = [entry for part in parts if part.logprobs for entry in scores(part)]
        assert [(t, o) for t, _, _, o in told] == [(t, o) for t, _, _, o in scores(choice)]
        assert [p for _, p, _, _ in told][1:] == pytest.approx([p for _, p, _, _ in scores(choice)][1:], abs=1e-3)
    nothing = list(complete(client, stream=True, **{**fields, "max_tokens": 0}))
    assert text_of(nothing, 2) == "A" and nothing[-1].choices[0].finish_reason == "length"


def test_prompt_logprobs_come_as_vllm_gives_them(client, engine):
    ids = engine.tokenizer.encode("The cat sat on")
    choice = complete(client, ids, extra_body={"prompt_logprobs": 2}).choices[0]
    first, *rest = choice.prompt_logprobs
    assert first is None and len(rest) == len(ids) - 1
    echoed = scores(complete(client, ids, echo=True, logprobs=0).choices[0])
    for token, entry, (text, logprob, _, _) in zip(ids[1:], rest, echoed[1:], strict=False):
        assert entry[str(token)]["logprob"] == pytest.approx(logprob, abs=1e-3)
        assert entry[str(token)]["decoded_token"] == text and 2 <= len(entry) <= 3
        ranks = sorted(value["rank"] for value in entry.values())
        assert ranks[:2] == [1, 2] and ranks[-1] == entry[str(token)]["rank"]
    assert choice.text == complete(client, ids).choices[0].text


def test_best_of_returns_the_likeliest(client):
    fields = dict(temperature=1.5, seed=11, logprobs=0, max_tokens=4)

    def mean(choice) -> float:
        return sum(choice.logprobs.token_logprobs) / len(choice.logprobs.token_logprobs)

    every = complete(client, n=6, **fields)
    best = complete(client, n=2, best_of=6, **fields)
    ranked = sorted(every.choices, key=mean, reverse=True)
    assert [choice.text for choice in best.choices] == [choice.text for choice in ranked[:2]]
    assert [choice.index for choice in best.choices] == [0, 1]
    assert best.usage.completion_tokens == every.usage.completion_tokens == 24
    assert complete(client, best_of=3).choices[0].logprobs is None


def test_a_stream_says_what_the_whole_answer_says(client):
    whole = complete(client, ["The cat sat on", "A dog"])
    chunks = list(complete(client, ["The cat sat on", "A dog"], stream=True))
    assert [text_of(chunks, index) for index in (0, 1)] == [choice.text for choice in whole.choices]
    ends = [choice.index for chunk in chunks for choice in chunk.choices if choice.finish_reason]
    assert sorted(ends) == [0, 1]
    assert len({chunk.id for chunk in chunks}) == 1


def test_usage_comes_when_asked_and_in_each_chunk_when_asked(http):
    def data(**options) -> list[dict]:
        body = {"prompt": ["a b", "c"], "max_tokens": 3, "stream": True, "echo": True, "stream_options": options}
        with http.stream("POST", "/v1/completions", json=body) as response:
            lines = [line.removeprefix("data: ") for line in response.iter_lines() if line]
        assert lines[-1] == "[DONE]"
        return [json.loads(line) for line in lines[:-1]]

    assert all("usage" not in chunk and chunk["choices"] for chunk in data())
    *chunks, last = data(include_usage=True)
    assert last["choices"] == [] and last["usage"]["completion_tokens"] == 6
    assert all(chunk["usage"] is None for chunk in chunks)
    *chunks, last = data(include_usage=True, continuous_usage_stats=True)
    assert {chunk["usage"]["prompt_tokens"] for chunk in chunks} == {last["usage"]["prompt_tokens"]}
    counts = [chunk["usage"]["completion_tokens"] for chunk in chunks]
    assert counts == sorted(counts) and counts[0] == 0 and counts[-1] == 6


def test_e1_stops_penalties_and_vllm_fields_work_as_in_chats(client):
    text = complete(client).choices[0].text
    stop = text[len(text) // 2 :][:3]
    stopped = complete(client, stop=[stop]).choices[0]
    assert stopped.finish_reason == "stop" and stopped.text == text[: text.index(stop)] and stopped.stop_reason == stop
    assert complete(client, temperature=1.0, extra_body={"top_k": 1}).choices[0].text == text
    assert complete(client, frequency_penalty=2.0, max_tokens=24).choices[0].text
    kept = complete(client, extra_body={"truncate_prompt_tokens": 2})
    assert kept.usage.prompt_tokens == 2


async def test_the_async_client_streams(async_client):
    stream = await async_client.completions.create(prompt="Hello", model=MODEL, max_tokens=4, stream=True)
    assert text_of([chunk async for chunk in stream])


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({}, "prompt"),
        ({"prompt": None}, "prompt"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": [[]]}, "prompt"),
        ({"prompt": [1.5]}, "prompt"),
        ({"prompt": [10**6]}, "prompt"),
        ({"prompt": [-1]}, "prompt"),
        ({"prompt": ["x"] * 129}, "prompt"),
        ({"prompt": "x", "suffix": "y"}, "suffix"),
        ({"prompt": "x", "max_tokens": 0}, "max_tokens"),
        ({"prompt": "x", "max_tokens": CONTEXT}, "max_tokens"),
        ({"prompt": "word " * 2 * CONTEXT}, "prompt"),
        ({"prompt": "x", "n": 3, "best_of": 2}, "best_of"),
        ({"prompt": "x", "best_of": 2, "stream": True}, "best_of"),
        ({"prompt": ["x"] * 100, "n": 3}, "n"),
        ({"prompt": "x", "logprobs": 21}, "logprobs"),
        ({"prompt": "x", "max_tokens": -1, "echo": True}, "max_tokens"),
        ({"prompt": "x", "stream_options": {"include_usage": True}}, "stream_options"),
        ({"prompt": "x", "mm_processor_kwargs": {}}, "mm_processor_kwargs"),
        ({"prompt": "x", "add_generation_prompt": True}, "add_generation_prompt"),
        ({"prompt": "x", "messages": []}, "messages"),
        ({"prompt": "x", "prompt_logprobs": 21}, "prompt_logprobs"),
        ({"prompt": "x", "prompt_logprobs": -1}, "prompt_logprobs"),
        ({"prompt": "x", "prompt_logprobs": 1, "stream": True}, "prompt_logprobs"),
        ({"prompt": "x", "store": True}, "store"),
    ],
)
def test_e17_what_cannot_be_obeyed_is_400_that_names_it(http, fields, param):
    response = http.post("/v1/completions", json=fields)
    assert response.status_code == 400
    assert error_of(response)["param"].startswith(param)


def test_a_picture_cannot_be_smuggled_in_by_its_token(http, engine):
    picture = engine.tokenizer.convert_tokens_to_ids("<image>")
    error = error_of(http.post("/v1/completions", json={"prompt": [1, picture]}))
    assert error["param"] == "prompt" and str(picture) in error["message"]


@pytest.mark.parametrize("stream", [False, True])
def test_one_bad_prompt_refuses_all_and_leaves_nothing_behind(client, engine, stream):
    with pytest.raises(openai.BadRequestError):
        complete(client, ["fine", "word " * 2 * CONTEXT], stream=stream, max_tokens=900)
    assert complete(client).choices[0].text
    assert engine.metrics.value("num_requests_running") == 0
