"""POST /tokenize and /detokenize in vLLM's shapes, GET /version."""

from __future__ import annotations

import re

import pytest

from tests.api.conftest import CONTEXT, MODEL, error_of, user
from tests.api.pictures import image_part


def test_a_text_there_and_back(http, engine):
    body = {"model": MODEL, "prompt": "Grüße from the yard, 門.", "return_token_strs": True}
    answer = http.post("/tokenize", json=body).json()
    assert answer["tokens"] == engine.tokenizer.encode("Grüße from the yard, 門.")
    assert answer["count"] == len(answer["tokens"]) == len(answer["token_strs"])
    assert answer["max_model_len"] == CONTEXT
    back = http.post("/detokenize", json={"model": MODEL, "tokens": answer["tokens"]}).json()
    assert back == {"prompt": "Grüße from the yard, 門."}


def test_token_strings_come_only_when_asked_and_an_empty_text_has_no_tokens(http):
    answer = http.post("/tokenize", json={"prompt": ""}).json()
    assert answer == {"count": 0, "max_model_len": CONTEXT, "tokens": [], "token_strs": None}
    assert http.post("/detokenize", json={"tokens": []}).json() == {"prompt": ""}


def test_a_chats_tokens_are_those_that_its_answer_counts(http, client):
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [image_part(), {"type": "text", "text": "Who is it?"}]},
    ]
    counted = http.post("/tokenize", json={"messages": messages}).json()["count"]
    answer = client.chat.completions.create(model=MODEL, messages=messages, max_tokens=1)
    assert counted == answer.usage.prompt_tokens
    bare = http.post("/tokenize", json={"messages": messages, "add_generation_prompt": False}).json()["count"]
    assert bare < counted
    one_tile = {"messages": messages, "mm_processor_kwargs": {"do_image_splitting": False}}
    assert http.post("/tokenize", json=one_tile).json()["count"] < counted


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("tokenize", {}, "prompt"),
        ("tokenize", {"prompt": 5}, "prompt"),
        ("tokenize", {"prompt": "x", "colour": 1}, "colour"),
        ("tokenize", {"prompt": "x" * 1_000_000}, "prompt"),
        ("tokenize", {"messages": []}, "messages"),
        ("tokenize", {"messages": user(), "chat_template": "{{ 1 }}"}, "chat_template"),
        ("detokenize", {"tokens": [10**6]}, "tokens"),
        ("detokenize", {"tokens": [-1]}, "tokens"),
        ("detokenize", {"tokens": "abc"}, "tokens"),
    ],
)
def test_what_cannot_be_obeyed_is_400_that_names_it(http, path, body, param):
    response = http.post(f"/{path}", json=body)
    assert response.status_code == 400
    assert error_of(response)["param"].startswith(param)


def test_another_model_is_404(http):
    assert http.post("/tokenize", json={"prompt": "x", "model": "gpt"}).status_code == 404


def test_the_version_is_told_to_everybody(http):
    assert re.fullmatch(r"\d+\.\d+\.\d+.*", http.get("/version").json()["version"])
