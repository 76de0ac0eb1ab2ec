"""Answers of models read: words and attributes, also from servers that don't keep to what they were asked for (R53).

Our own engine writes under a grammar: there an answer is the object that the schema asks for, or one that was cut off
at ``max_tokens``. Other servers put fences around it, write two, think aloud before it, or answer in plain words.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import jiter
import jsonschema

from pipeline.config.output_schema import WORDS

MAX_ANSWER = 64 * 1024
"""Characters of an answer that are read; who writes more is not describing."""
_THINKING, _THOUGHT = ("<think>", "<thinking>"), ("</think>", "</thinking>")
_CONTROL = {code: " " for code in range(32)}
_FENCE = re.compile(r"^\s*```[a-zA-Z]*\s*|\s*```\s*$")


class AnswerForm(StrEnum):
    """How an answer came.

    VALID: an object that fits the schema, and nothing else. REPAIRED: one that had to be found, completed or cleaned.
    TEXT: words without attributes.
    """

    VALID = "valid"
    REPAIRED = "repaired"
    TEXT = "text"


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer with its words.

    Attributes:
        words: never empty.
        attributes: what else the schema asks for and the answer has in the form that it asks for; None without any.
        form: how it came.
    """

    words: str
    attributes: Mapping[str, Any] | None
    form: AnswerForm


class NoWords(ValueError):
    """An answer in which there is no description."""


def read_text(raw: str) -> Answer:
    """An answer in plain words. Raises :class:`NoWords`."""
    words = _clean(_without_thoughts(raw[:MAX_ANSWER])).strip()
    if not words:
        raise NoWords("the model gave no words")
    return Answer(words, None, AnswerForm.TEXT)


def read_object(raw: str, schema: Mapping[str, Any]) -> Answer:
    """An answer that should be an object that fits ``schema``. Raises :class:`NoWords`.

    The first object counts. One that is cut off is read as far as it goes. Of attributes that don't fit the schema none
    is kept, so that filters and rules meet what the schema promises. Without any object, what was written are the
    words.
    """
    text = _without_thoughts(raw[:MAX_ANSWER])
    start = text.find("{")
    if start < 0:
        return read_text(_FENCE.sub("", text))
    found, whole = _first_object(text[start:])
    if not found and _is_prose(text[:start]):
        return read_text(text)
    words = found.pop(WORDS, None)
    if not isinstance(words, str) or not words.strip():
        raise NoWords(f"the model's answer has no {WORDS!r}")
    checked = _fitting({WORDS: words, **found}, schema)
    exact = whole and checked.complete and text.strip() == text[start:].strip() and _ends(text[start:])
    attributes = {name: value for name, value in checked.value.items() if name != WORDS}
    return Answer(_clean(words).strip(), attributes or None, AnswerForm.VALID if exact else AnswerForm.REPAIRED)


def words_so_far(raw: str) -> str:
    """The words of an object that is still being written; empty before their first character."""
    text = _without_thoughts(raw[:MAX_ANSWER])
    start = text.find("{")
    if start < 0:
        return ""
    found, _ = _first_object(text[start:])
    words = found.get(WORDS)
    return _clean(words).strip() if isinstance(words, str) else ""


def thoughts_over(raw: str) -> str:
    """Plain words that are still being written, without what was thought before them."""
    return _clean(_without_thoughts(raw[:MAX_ANSWER])).strip()


@dataclass(frozen=True, slots=True)
class _Checked:
    value: dict[str, Any]
    complete: bool


def _fitting(value: dict[str, Any], schema: Mapping[str, Any]) -> _Checked:
    """The properties that fit the schema; ``complete``: all of them do and none is missing."""
    properties = schema.get("properties", {})
    known = {name: _cleaned(item) for name, item in value.items() if name in properties}
    errors = list(jsonschema.Draft202012Validator(schema).iter_errors(known))
    wrong = {str(error.absolute_path[0]) for error in errors if error.absolute_path}
    fitting = {name: item for name, item in known.items() if name not in wrong}
    return _Checked(fitting, not errors and len(known) == len(value))


def _first_object(text: str) -> tuple[dict[str, Any], bool]:
    """The object at the beginning of ``text`` and whether it is whole. What can't be read is an empty one."""
    try:
        found, _ = json.JSONDecoder(strict=False).raw_decode(text)
        return (found, True) if isinstance(found, dict) else ({}, False)
    except (ValueError, RecursionError):
        pass
    return _completed(text), False


def _completed(text: str) -> dict[str, Any]:
    """What is readable of an object that is cut off, or has a fault: what comes before that."""
    # Between values these are blanks anyway; inside texts only Python's reader takes them.
    text = text.translate(_CONTROL).encode(errors="replace").decode()
    try:
        json.loads(text)
        readable = text
    except json.JSONDecodeError as error:
        # jiter tells "cut off" from "wrong": it completes the one and refuses the other.
        readable = text[: error.pos].rstrip().rstrip(",")
    except RecursionError:
        return {}
    for candidate in (text, readable):
        try:
            found = jiter.from_json(candidate.encode(), partial_mode="trailing-strings")
        except ValueError:
            continue
        return found if isinstance(found, dict) else {}
    return {}


def _ends(text: str) -> bool:
    """Whether nothing follows the object."""
    try:
        _, end = json.JSONDecoder(strict=False).raw_decode(text)
    except (ValueError, RecursionError):
        return False
    return not text[end:].strip()


def _without_thoughts(text: str) -> str:
    """Reasoning goes, also such as has only its end (its beginning was in the prompt) or only its beginning."""
    for end in _THOUGHT:
        text = text.rpartition(end)[2]
    for start in _THINKING:
        text = text.partition(start)[0]
    return text


def _is_prose(before: str) -> bool:
    """Words before a brace that begins no object: the brace is part of a sentence."""
    return len(_FENCE.sub("", before).split()) > 3


def _cleaned(value: Any) -> Any:
    """Texts of a value fit for a database; twice the same in a list once."""
    if isinstance(value, str):
        return _clean(value).strip()
    if isinstance(value, list):
        seen: list[Any] = []
        for item in map(_cleaned, value):
            if item not in seen:
                seen.append(item)
        return seen
    if isinstance(value, dict):
        return {_clean(str(name)): _cleaned(item) for name, item in value.items()}
    return value


def _clean(text: str) -> str:
    """What no database takes, NUL and lone surrogates, is replaced."""
    return text.encode(errors="replace").decode().replace("\0", "\N{REPLACEMENT CHARACTER}")
