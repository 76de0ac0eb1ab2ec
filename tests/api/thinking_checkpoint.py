"""A tiny Qwen3 whose template is that of a thinking model with tools: Qwen3-VL's, with Qwen3's ways of thinking."""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.checkpoints import SHARED

ENDING = "{%- if add_generation_prompt %}\n    {{- '<|im_start|>assistant\\n' }}\n{%- endif %}"
THINKING = (
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}"
    "{%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\\n\\n</think>\\n\\n' }}"
    "{%- elif open_thinking is defined and open_thinking %}{{- '<think>\\n' }}{%- endif %}{%- endif %}"
)


def build(qwen3: Path, out: Path) -> Path:
    """Copies the checkpoint ``qwen3`` to ``out`` and gives it that template."""
    shutil.copytree(qwen3, out)
    template = (SHARED / "vlm" / "qwen3-vl-2b" / "chat_template.jinja").read_text()
    assert ENDING in template
    (out / "chat_template.jinja").write_text(template.replace(ENDING, THINKING))
    return out
