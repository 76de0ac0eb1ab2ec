"""Scenes, and one checkpoint with everything that golden tests ask of it."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

from tests.golden.harness import Harness, Job, Reference, picture, user
from vlm_engine import SamplingParams

TOKENS = 12

VISION_KINDS = ["smolvlm", "smolvlm2", "qwen2-vl", "qwen2.5-vl", "qwen3-vl", "llava-onevision", "internvl", "nano"]
TEXT_KINDS = ["text", "qwen2", "qwen3"]

SMALL_TILES = {"smolvlm": {"do_image_splitting": False}}
"""Options of the processor where a test is not about tiles: SmolVLM-256M's make 832 tokens of the smallest picture."""

SCENES = {
    "image before text": lambda: user(picture(1, 120, 90), "Describe the person."),
    "image after text": lambda: user("What is shown here, please?", picture(1, 120, 90)),
    "images between text": lambda: user("First:", picture(1, 120, 90), "second:", picture(2, 64, 150), "compare them."),
    "images side by side": lambda: user(picture(4, 64, 64), picture(5, 90, 60), "Which is larger?"),
    "same image twice": lambda: user(picture(1, 120, 90), "and again", picture(1, 120, 90), "same?"),
    "text only": lambda: user("Tell me about cameras and the people that walk by them all day long."),
}

TALKS = {
    "question": lambda: user("Tell me about cameras and the people that walk by them all day long."),
    "three turns": lambda: [
        *user("Who was at the gate?"),
        {"role": "assistant", "content": [{"type": "text", "text": "A man with a red bag."}]},
        *user("And after him?"),
    ],
    "not English": lambda: user("Ünïcödé, 你好, 🚪, numbers 12345, and\n\n   some space. " * 4),
}


class World:
    """One checkpoint, its harness, its reference, and reference answers computed once."""

    def __init__(self, kind: str, path: Path) -> None:
        self.kind = kind
        self.harness = Harness(path)
        loaded = self.harness.checkpoint
        self.reference = Reference(path, processor=loaded.processor or loaded.tokenizer)
        self._answers: dict[tuple[str, int], tuple[list[int], list[float]]] = {}
        self._prompts: dict[str, Any] = {}
        self._ids: dict[str, list[int]] = {}

    def messages(self, name: str) -> list[dict[str, Any]]:
        """A scene's messages."""
        return (SCENES | TALKS)[name]()

    def expected(self, name: str, max_tokens: int = TOKENS) -> tuple[list[int], list[float]]:
        """The reference's answer to a scene."""
        key = name, max_tokens
        if key not in self._answers:
            self._answers[key] = self.reference.generate(self.messages(name), max_tokens)
            self._ids[name] = self.reference.prompt_ids
        return self._answers[key]

    def job(self, name: str, request_id: str = "r", max_tokens: int = TOKENS, **options: Any) -> Job:
        """A greedy job for a scene; its prompt is prepared once, and is the reference's token for token."""
        if name not in self._prompts:
            self.expected(name)
            self._prompts[name] = self.harness.prepare(self.messages(name))
            assert list(self._prompts[name].token_ids) == self._ids[name]
        params = SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True, **options)
        return Job(self._prompts[name], params, request_id)


@lru_cache(maxsize=len(VISION_KINDS))
def world_of(kind: str, path: Path) -> World:
    """Worlds take seconds to make and some 150 MB each; several modules use the same."""
    return World(kind, path)
