"""``ultralytics.LLM(base_url=...)`` in both its api modes: what people with a YOLO pipeline will point at us."""

from __future__ import annotations

import asyncio
import os

import numpy as np
import pytest

from tests.api.conftest import MODEL
from tests.api.pictures import picture

os.environ["YOLO_OFFLINE"] = "true"
os.environ["YOLO_AUTOINSTALL"] = "false"

LIMITS = {"responses": {"max_output_tokens": 6}, "chat.completions": {"max_tokens": 6}}
BGR = np.asarray(picture())[..., ::-1].copy()


@pytest.fixture(params=sorted(LIMITS))
def llm(request, server):
    from ultralytics import LLM

    return LLM(
        MODEL, api=request.param, base_url=f"{server.url}/v1", api_key="x", temperature=0.0, **LIMITS[request.param]
    )


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


def test_a_numpy_picture(llm):
    alone, asked = llm(BGR), llm("What colour is the coat?", image=BGR)
    assert text_of(alone) and text_of(asked)
    assert tokens_of(asked) > tokens_of(llm("What colour is the coat?")) + 64


def test_a_stream_says_the_same(llm):
    assert "".join(streamed(event) for event in llm("Hello", image=BGR, stream=True)) == text_of(
        llm("Hello", image=BGR)
    )


async def test_async_calls_side_by_side(llm):
    answers = await asyncio.gather(*(llm.async_call(f"Question {n}") for n in range(3)))
    assert all(text_of(answer) for answer in answers)
