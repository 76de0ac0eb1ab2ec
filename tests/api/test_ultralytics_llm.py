"""``ultralytics.LLM(base_url=...)`` in both its api modes: what people with a YOLO pipeline will point at us."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import numpy as np
import openai
import pytest

from tests.api.conftest import MODEL
from tests.api.pictures import data_url, encoded, picture

os.environ["YOLO_OFFLINE"] = "true"
os.environ["YOLO_AUTOINSTALL"] = "false"

LIMITS = {"responses": {"max_output_tokens": 6}, "chat.completions": {"max_tokens": 6}}
BGR = np.asarray(picture())[..., ::-1].copy()
QUESTION = "What colour is the coat?"


def make(server, api: str, **fields):
    from ultralytics import LLM

    fields = {**LIMITS[api], "temperature": 0.0, **fields}
    return LLM(MODEL, api=api, base_url=f"{server.url}/v1", api_key="x", **fields)


@pytest.fixture(params=sorted(LIMITS))
def llm(request, server):
    return make(server, request.param)


@pytest.fixture
def file(tmp_path) -> Path:
    path = tmp_path / "coat.png"
    path.write_bytes(encoded(kind="PNG"))  # without loss, so that each way of giving it is the same picture
    return path


def text_of(answer) -> str:
    return answer.output_text if hasattr(answer, "output_text") else answer.choices[0].message.content


def tokens_of(answer) -> int:
    usage = answer.usage
    return usage.input_tokens if hasattr(usage, "input_tokens") else usage.prompt_tokens


def streamed(event) -> str:
    if hasattr(event, "choices"):
        return event.choices[0].delta.content or ""
    return event.delta if event.type == "response.output_text.delta" else ""


def test_text(llm):
    assert text_of(llm("What is YOLO?"))


def test_both_apis_say_the_same(server):
    first, second = (make(server, api) for api in LIMITS)
    assert text_of(first(QUESTION, image=BGR)) == text_of(second(QUESTION, image=BGR))


def test_a_picture_as_array_path_pil_or_data_url_is_the_same_picture(llm, file):
    answers = [llm(QUESTION, image=image) for image in (BGR, file, str(file), picture(), data_url(encoded(kind="PNG")))]
    assert tokens_of(answers[0]) > tokens_of(llm(QUESTION)) + 64
    assert len({tokens_of(answer) for answer in answers}) == 1
    assert len({text_of(answer) for answer in answers[:4]}) == 1  # these four leave the client as one JPEG


def test_a_picture_alone_is_described(llm, file):
    assert text_of(llm(BGR)) == text_of(llm(file)) == text_of(llm("Describe the image.", image=BGR))


def test_a_picture_by_http_is_refused_in_words_while_fetching_is_off(llm):
    with pytest.raises(openai.BadRequestError) as refused:
        llm(QUESTION, image="http://127.0.0.1:1/coat.jpg")
    assert refused.value.code == "image_url_fetching_off" and "image_url" in refused.value.param


def test_own_prompts_and_whole_messages_are_passed_on(server):
    for api in LIMITS:
        given = make(server, api, prompt="Be brief.")
        assert text_of(given())
        assert tokens_of(given("Why?")) > tokens_of(make(server, api)("Why?"))
        message = [{"role": "user", "content": "Hello"}]
        assert text_of(given(message)) == text_of(make(server, api)("Hello"))


def test_a_stream_says_the_same(llm):
    said = "".join(streamed(event) for event in llm("Hello", image=BGR, stream=True))
    assert said and said == text_of(llm("Hello", image=BGR))


async def test_async_calls_side_by_side(llm):
    answers = await asyncio.gather(*(llm.async_call(f"Question {n}") for n in range(3)))
    assert all(text_of(answer) for answer in answers)


async def test_async_pictures_and_streams(llm, file):
    whole = text_of(await llm.async_call(QUESTION, image=file))
    stream = await llm.async_call(QUESTION, image=BGR, stream=True)
    assert "".join([streamed(event) async for event in stream]) == whole
