"""docs/api.md names every field that a request may have, and every knob that it speaks of exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from api.app import _BODIES
from api.openai import chat_request, completions_request, responses_request, tokenize
from pipeline.config import ApiKeyConfig, ServerConfig

TEXT = (Path(__file__).resolve().parents[2] / "docs" / "api.md").read_text()
PROSE = re.sub(r"^```.*?^```", "", TEXT, flags=re.DOTALL | re.MULTILINE)
WORDS = set(re.findall(r"[A-Za-z_]+", " ".join(re.findall(r"`([^`]+)`", PROSE))))
FOREIGN = {"access_programs", "background_options", "image", "prompt_cache_options"}
"""Fields of the OpenAI API for its own models and tools; refused like unknown ones."""


@pytest.mark.parametrize("model", [model for models in _BODIES.values() for model in models])
def test_every_field_is_in_the_document(model):
    assert set(model.model_fields) - WORDS == set()


@pytest.mark.parametrize("module", [chat_request, completions_request, responses_request, tokenize])
def test_every_refused_field_is_in_the_document(module):
    assert set(module.UNSUPPORTED) - WORDS - FOREIGN == set()


def test_every_knob_in_the_document_exists():
    for name in re.findall(r"`server\.([a-z_]+)", TEXT):
        assert name in ServerConfig.model_fields
    for name in re.findall(r"server\.api_keys\[\]\.([a-z_]+)", TEXT):
        assert name in ApiKeyConfig.model_fields
