"""docs/configuration.md is what the models say."""

from __future__ import annotations

from pathlib import Path

from pipeline.config import WatchwordConfig
from pipeline.config.reference import reference

PAGE = Path(__file__).resolve().parents[2] / "docs" / "configuration.md"


def test_the_page_is_current():
    assert PAGE.read_text() == reference(), "run: python -m pipeline.config.reference > docs/configuration.md"


def test_every_section_and_every_key_is_on_it():
    text = reference()
    for name in WatchwordConfig.model_fields:
        assert f"## `{name}`" in text
    for key in ("`password`", "`target_itl_ms`", "`deadline_s`", "`max_failures`"):
        assert f"| {key} |" in text
