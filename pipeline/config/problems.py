"""What is wrong with a configuration, in words: the place, the value, the limit, the nearest key. Never a secret."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, get_args

from pydantic import SecretStr
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from pipeline.config.base import Section
from pipeline.redaction import redact, redact_own_words

Path = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Problem:
    """One error: ``where`` is ``line 7`` or the name of an environment variable, ``""`` for the file as a whole."""

    where: str
    text: str

    def __str__(self) -> str:
        return f"{self.where}: {self.text}" if self.where else self.text


class ConfigProblem(Exception):
    """The configuration can't be used. ``str()`` is for people and holds no secret; ``problems`` has every error."""

    def __init__(self, source: str, problems: Iterable[Problem]) -> None:
        self.source = source
        self.problems = tuple(Problem(p.where, redact_own_words(p.text)) for p in problems)
        count = len(self.problems)
        heading = f"{source}: {'1 error' if count == 1 else f'{count} errors'}"
        super().__init__("\n".join([heading, *(f"  {problem}" for problem in self.problems)]))


def dotted(path: Path) -> str:
    """``("cameras", 0, "url")`` -> ``cameras[0].url``. Keys come from the file: they may be anything, also a secret."""
    text = ""
    for part in path:
        part = redact(part) if isinstance(part, str) else part
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


def nearest(word: str, known: Iterable[str]) -> str | None:
    """The known word that ``word`` was probably meant to be."""
    matches = difflib.get_close_matches(word.lower().replace("-", "_"), list(known), n=1, cutoff=0.6)
    return matches[0] if matches else None


def children(kind: Any) -> tuple[Mapping[str, FieldInfo] | None, Any]:
    """Fields of a section (or None), and the element type of a list (or None), for an annotation."""
    for option in (kind, *get_args(kind)):
        if isinstance(option, type) and issubclass(option, Section):
            is_list = option is not kind and getattr(kind, "__origin__", None) is tuple
            return (None, option) if is_list else (option.model_fields, None)
    if getattr(kind, "__origin__", None) is tuple:
        return None, get_args(kind)[0]
    return None, None


def kind_at(root: type[Section], path: Path) -> Any:
    """The annotation that the schema has at ``path``, or None."""
    kind: Any = root
    for part in path:
        fields, element = children(kind)
        if isinstance(part, int):
            kind = element
        elif getattr(kind, "__origin__", None) is dict:
            kind = get_args(kind)[1]
        elif fields is not None and part in fields:
            kind = fields[part].annotation
        else:
            return None
        if kind is None:
            return None
    return kind


def is_composite(kind: Any) -> bool:
    """Whether values are sections, lists or mappings, so that text for them must be JSON."""
    return children(kind) != (None, None) or getattr(kind, "__origin__", None) is dict


def is_secret(kind: Any) -> bool:
    """Whether values of this annotation must never be shown: a secret, or text where a section with secrets belongs."""
    if isinstance(kind, type) and issubclass(kind, Section):
        return any(is_secret(field.annotation) for field in kind.model_fields.values())
    return kind is SecretStr or any(is_secret(option) for option in get_args(kind))


def unknown_key(root: type[Section], path: Path) -> str:
    """Text for a key that the schema doesn't have at ``path``."""
    name, parent = str(path[-1]), path[:-1]
    text = f"{dotted(path)}: unknown key"
    fields, _ = children(kind_at(root, parent) if parent else root)
    if fields and (guess := nearest(name, fields)):
        return f"{text}; did you mean {guess!r}?"
    homes = [section for section, field in root.model_fields.items() if name in (children(field.annotation)[0] or {})]
    if homes:
        return f"{text}; it belongs under {' or '.join(repr(home) for home in homes)}"
    return f"{text}; known are {', '.join(fields)}" if fields else text


def describe(root: type[Section], error: ErrorDetails, origin: str | None) -> str:
    """One pydantic error in words. A value with an ``origin`` (the variable that it came from) is not shown."""
    path: Path = tuple(error["loc"])
    kind, context = kind_at(root, path), error.get("ctx", {})
    if error["type"] == "extra_forbidden":
        return unknown_key(root, path)
    if error["type"] == "missing":
        field = _field(root, path)
        about = f" ({field.description})" if field is not None and field.description else ""
        return f"{dotted(path)} is missing{about}"
    shown = _shown(error, kind, origin)
    return f"{dotted(path)}{shown}{_limit(root, path, error, context)}".lstrip(": ")


def _limit(root: type[Section], path: Path, error: ErrorDetails, context: Mapping[str, Any]) -> str:
    bounds = {"gt": "greater than", "ge": "at least", "lt": "less than", "le": "at most"}
    for name, words in bounds.items():
        if name in context:
            return f"must be {words} {context[name]}"
    match error["type"]:
        case "literal_error":
            allowed = str(context["expected"])
            words_allowed = [word.strip("' ") for word in allowed.replace(" or ", ",").split(",")]
            guess = nearest(str(error["input"]), words_allowed)
            return f"allowed are {allowed}" + (f"; did you mean {guess!r}?" if guess else "")
        case "string_type":
            return "must be text; put it in quotes"
        case "string_pattern_mismatch":
            field = _field(root, path)
            return f"allowed is: {field.description}" if field is not None else error["msg"]
        case "string_too_long":
            return f"at most {context['max_length']} characters"
        case "model_type" | "model_attributes_type":
            fields, _ = children(kind_at(root, path))
            return f"must be a section with keys such as {', '.join(list(fields or ())[:4])}"
        case "tuple_type":
            return "must be a list"
        case "value_error":
            return redact(str(context.get("error", error["msg"])))
    message = error["msg"]
    return message[:1].lower() + message[1:]


def _shown(error: ErrorDetails, kind: Any, origin: str | None) -> str:
    value = error["input"]
    if not isinstance(value, str | int | float | bool) and value is not None:
        return ": "
    if origin is not None:
        return f" (from {origin}): " if origin else ": "
    if is_secret(kind):
        return " (not shown): "
    text = redact(repr(value) if not isinstance(value, bool) else str(value).lower())
    return f" is {text if len(text) <= 80 else text[:77] + '...'}; "


def _field(root: type[Section], path: Path) -> FieldInfo | None:
    fields, _ = children(kind_at(root, path[:-1]) if len(path) > 1 else root)
    return (fields or {}).get(str(path[-1])) if path else None
