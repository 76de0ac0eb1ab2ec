"""What is asked of the model while it is measured: chats, camera pictures, long texts. The same for every server.

Everything is made before a phase begins, from a seed, and every picture and text differs from all others, so that no
cache helps and two servers get the same.
"""

from __future__ import annotations

import io
import random
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from PIL import Image

PERSON_SIZES = ((191, 508), (141, 494), (406, 674))
"""Width and height of person crops as a detector cuts them out of 720p frames; SmolVLM makes 9 to 13 tiles of each."""
SINGLE_AT = 0.1
"""A load of one prompt comes after this share of the phase, so that the picture shows the chats before it."""
LEAD_IN_S = 1.0
"""Loads that repeat begin so late, so that the chats of the phase have begun."""
_COMMON = (
    "time year people way day man thing woman life child world school state family student group country problem "
    "hand part place case week company system program question work government number night point home water room "
    "mother area money story fact month lot right study book eye job word business issue side kind head house "
    "service friend father power hour game line end member law car city community name president team minute idea "
    "kid body information back parent face others level office door health person art war history party result "
    "change morning reason "
)
WORDS = tuple(_COMMON.split())
"""Common words: one token each in the vocabularies of the families the engine runs."""


@dataclass(frozen=True, slots=True)
class Ask:
    """One request.

    Attributes:
        text: the question.
        picture: a JPEG that comes before it, or None.
        max_tokens: answer length; asked for in full where the server knows ``ignore_eos``.
        background: to be served after people's chats, where the server knows classes or priorities.
        one_tile: the picture is not to be split into tiles (``do_image_splitting: false``).
    """

    text: str
    max_tokens: int
    picture: bytes | None = None
    background: bool = False
    one_tile: bool = False


@dataclass(frozen=True, slots=True)
class CameraLoad:
    """Pictures of persons, ``rate`` a second, each with a short question; background work, as cameras are here."""

    rate: float
    one_tile: bool = False
    max_tokens: int = 40
    sizes: Sequence[tuple[int, int]] = PERSON_SIZES

    @property
    def title(self) -> str:
        tiles = "one tile each" if self.one_tile else "as the model splits them"
        return f"pictures, {self.rate:g}/s, {tiles}"

    def arrivals(self, seconds: float) -> list[float]:
        """When the prompts are sent, in seconds since the phase began."""
        return _every(1.0 / self.rate, seconds)

    def ask(self, seed: int, _words: int) -> Ask:
        size = self.sizes[seed % len(self.sizes)]
        question = "Describe the person in this picture."
        return Ask(question, self.max_tokens, picture(size, seed), background=True, one_tile=self.one_tile)


@dataclass(frozen=True, slots=True)
class TextLoad:
    """Texts of ``prompt_tokens`` tokens, every so many seconds, or (None) a single one."""

    prompt_tokens: int
    every_s: float | None = None
    max_tokens: int = 40

    @property
    def title(self) -> str:
        when = "one alone" if self.every_s is None else f"every {self.every_s:g} s"
        return f"text of {self.prompt_tokens:,} tokens, {when}"

    def arrivals(self, seconds: float) -> list[float]:
        """When the prompts are sent, in seconds since the phase began."""
        return [SINGLE_AT * seconds] if self.every_s is None else _every(self.every_s, seconds)

    def ask(self, seed: int, words: int) -> Ask:
        return Ask(prose(words, seed), self.max_tokens)


Load = CameraLoad | TextLoad


def _every(gap: float, seconds: float) -> list[float]:
    first = min(LEAD_IN_S, SINGLE_AT * seconds)
    times = [first + number * gap for number in range(int(seconds / gap) + 1)]
    return [at for at in times if at < seconds]


def picture(size: tuple[int, int], seed: int) -> bytes:
    """A JPEG of coarse noise, another one for each seed."""
    width, height = size
    coarse = np.random.default_rng(seed).integers(0, 255, (height // 8, width // 8, 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(coarse).resize(size).save(buffer, "JPEG", quality=90)
    return buffer.getvalue()


def prose(words: int, seed: int) -> str:
    """So many common words in an order of their own from the first word on: no prefix is shared."""
    return " ".join(random.Random(seed).choices(WORDS, k=words))


def chat_question(seed: int, number: int, turn: int) -> str:
    """What a chat asks: short, and another one for each seed, chat and turn."""
    return f"{prose(3, seed * 1_000_003 + number * 1_009 + turn)}: tell me a long story, part {turn}."
