"""What is said about a person of whom some things are known: sentences, the describer's JSON, questions with answers.

Only what is known is said. Never anything about sex or age: who asks for it hears that it can't be told.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from pipeline.config.engine import DEFAULT_PROMPT, DEFAULT_SYSTEM_PROMPT
from pipeline.config.output_schema import DEFAULT_OUTPUT_SCHEMA
from pipeline.prompts import STRUCTURE

Facts = Mapping[str, str]
"""Concept -> value; a concept that isn't known is missing."""
Rng = np.random.Generator


@dataclass(frozen=True, slots=True)
class Exchange:
    """One question about a picture, and the answer. ``system``: instructions before them, if any."""

    system: str
    question: str
    answer: str


def a(text: str) -> str:
    """With its article."""
    return f"{'an' if text[0] in 'aeiou' else 'a'} {text}"


def upper(facts: Facts) -> str | None:
    """ "red jacket", "long-sleeved black top"; None when nothing of it is known."""
    kind, colour = facts.get("upper_kind"), facts.get("upper_colour")
    if kind is None and colour is None:
        return None
    return " ".join(word for word in (colour, kind or "top") if word)


def lower(facts: Facts) -> str | None:
    """ "blue jeans", "a black skirt"; None when nothing of it is known."""
    kind, colour = facts.get("lower_kind"), facts.get("lower_colour")
    if kind is None and colour is None:
        return None
    return " ".join(word for word in (colour, kind or "trousers") if word)


def is_dress(facts: Facts) -> bool:
    """Whether one garment is both upper and lower."""
    return facts.get("upper_kind") == "dress" and facts.get("lower_kind", "dress") == "dress"


def with_article(garment: str) -> str:
    """Trousers, jeans and shorts have none."""
    return garment if garment.rsplit(" ", 1)[-1] in ("trousers", "jeans", "shorts") else a(garment)


def clothes(facts: Facts) -> list[str]:
    """Garments with their articles, the upper first."""
    above, below = upper(facts), lower(facts)
    if is_dress(facts):
        return [a(above)] if above else []
    return [with_article(garment) for garment in (above, below) if garment is not None]


def joined(parts: list[str]) -> str:
    """ "a, b and c"."""
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"


def sentence(facts: Facts, rng: Rng) -> str:
    """One or two sentences."""
    worn = clothes(facts)
    sleeves = facts.get("sleeves")
    if sleeves is not None and worn and upper(facts) is not None and not is_dress(facts) and rng.random() < 0.5:
        short = upper(facts) or ""
        worn[0] = a(f"{sleeves}-sleeved {short}")
    extras = []
    if facts.get("hat") == "yes":
        extras.append("a hat")
    if facts.get("sunglasses") == "yes":
        extras.append("sunglasses")
    bag = facts.get("bag") == "yes"
    if not worn and not extras:
        return "A person carrying a bag." if bag else "A person; the clothes can't be made out."
    shape = int(rng.integers(3))
    if shape == 0:
        text = f"A person wearing {joined([*worn, *extras])}"
        return f"{text}, carrying a bag." if bag else f"{text}."
    if shape == 1:
        text = f"A person in {joined(worn or extras)}"
        if worn and extras:
            text += f", with {joined(extras)}"
        return f"{text}, carrying a bag." if bag else f"{text}."
    text = f"The person is wearing {joined([*worn, *extras])}."
    return f"{text} They are carrying a bag." if bag else text


def structured(facts: Facts, rng: Rng) -> str:
    """The describer's JSON object, as our grammar writes it."""

    def garment(kind: str | None, colour: str | None) -> dict[str, object]:
        return {"kind": kind or "unknown", "colours": [colour or "unknown"]}

    carried = ["bag"] if facts.get("bag") == "yes" else []
    known = sum(name in facts for name in ("upper_colour", "lower_colour", "upper_kind", "lower_kind"))
    value = {
        "description": sentence(facts, rng),
        "upper": garment(facts.get("upper_kind"), facts.get("upper_colour")),
        "lower": garment(facts.get("lower_kind"), facts.get("lower_colour")),
        "carried": carried,
        "posture": "unknown",
        "activity": "unknown",
        "confidence": ("low", "low", "low", "medium", "medium")[known],
    }
    return json.dumps(value, separators=(", ", ": "))


ASKED_TO_DESCRIBE = (
    DEFAULT_PROMPT,
    "Describe the person.",
    "Describe the person in one sentence.",
    "What do you see?",
    "What is the person wearing?",
    "Describe this picture.",
    "Describe the worker at the gate.",
    "Who is at the door? Describe the clothes.",
)
CANT_TELL = (
    "Is this a man or a woman?",
    "How old is the person?",
    "Who is this?",
    "What is the person's name?",
    "Where does the person come from?",
)


def _colour_question(facts: Facts, rng: Rng) -> tuple[str, str]:
    place, noun = (("upper", "upper garment"), ("lower", "lower garment"))[int(rng.integers(2))]
    kind, colour = facts.get(f"{place}_kind"), facts.get(f"{place}_colour")
    noun = kind if kind is not None and rng.random() < 0.6 else noun
    plural = noun in ("trousers", "jeans", "shorts")
    question = f"What colour {'are' if plural else 'is'} the {noun}?"
    if colour is None:
        return question, "The colour can't be made out."
    return question, f"The {noun} {'are' if plural else 'is'} {colour}."


def _garment_question(facts: Facts, rng: Rng) -> tuple[str, str]:
    place, build = (("upper", upper), ("lower", lower))[int(rng.integers(2))]
    garment = build(facts)
    question = f"What is the person wearing on the {place} body?"
    if garment is None:
        return question, "It can't be made out."
    return question, f"{with_article(garment)[0].upper()}{with_article(garment)[1:]}."


def _yes_no_question(facts: Facts, rng: Rng) -> tuple[str, str]:
    name, question, thing = (
        ("bag", "Is the person carrying a bag?", "carrying a bag"),
        ("hat", "Is the person wearing a hat?", "wearing a hat"),
        ("sunglasses", "Is the person wearing sunglasses?", "wearing sunglasses"),
    )[int(rng.integers(3))]
    value = facts.get(name)
    if value is None:
        return question, "It can't be made out."
    return question, f"Yes, the person is {thing}." if value == "yes" else f"No, the person is not {thing}."


def _sleeves_question(facts: Facts, rng: Rng) -> tuple[str, str]:
    value = facts.get("sleeves")
    question = "Are the sleeves long or short?"
    return question, f"The sleeves are {value}." if value else "It can't be made out."


QUESTIONS: tuple[Callable[[Facts, Rng], tuple[str, str]], ...] = (
    _colour_question,
    _colour_question,
    _garment_question,
    _yes_no_question,
    _sleeves_question,
)


def exchange(facts: Facts, rng: Rng) -> Exchange:
    """A question about a person and the answer that the facts give."""
    choice = rng.random()
    if choice < 0.3:
        outline = json.dumps(DEFAULT_OUTPUT_SCHEMA, ensure_ascii=False, separators=(",", ":"))
        system = "\n\n".join((DEFAULT_SYSTEM_PROMPT, f"{STRUCTURE}\n{outline}")) if rng.random() < 0.2 else ""
        return Exchange(system, DEFAULT_PROMPT if system else "Describe the person as JSON.", structured(facts, rng))
    if choice < 0.62:
        system = DEFAULT_SYSTEM_PROMPT if rng.random() < 0.6 else ""
        question = ASKED_TO_DESCRIBE[int(rng.integers(len(ASKED_TO_DESCRIBE)))]
        return Exchange(system, question, sentence(facts, rng))
    if choice < 0.68:
        question = CANT_TELL[int(rng.integers(len(CANT_TELL)))]
        return Exchange("", question, "I can't tell that from the picture.")
    question, answer = QUESTIONS[int(rng.integers(len(QUESTIONS)))](facts, rng)
    return Exchange("", question, answer)
