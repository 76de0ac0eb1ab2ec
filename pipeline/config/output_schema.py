"""What a structured description must look like: a JSON schema, checked when the configuration is read.

The schema's ``description`` becomes the event's words and everything else its attributes. It comes first in the answer,
so that its words can be shown while the rest is still being made.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import BeforeValidator

MAX_SCHEMA_BYTES = 16 * 1024
"""As compact JSON: it is part of every prompt."""
MAX_PROPERTIES = 32
MAX_NAME = 60
WORDS = "description"
"""The property that holds the words."""

COLOURS = (
    "black",
    "white",
    "grey",
    "red",
    "orange",
    "yellow",
    "green",
    "blue",
    "purple",
    "pink",
    "brown",
    "beige",
    "multicoloured",
    "unknown",
)
_CLOTHING: Mapping[str, Any] = {
    "type": "object",
    "properties": {
        "kind": {"type": "string", "maxLength": 24},
        "colours": {"type": "array", "items": {"enum": list(COLOURS)}, "minItems": 1, "maxItems": 3},
    },
    "required": ["kind", "colours"],
    "additionalProperties": False,
}
DEFAULT_OUTPUT_SCHEMA: Mapping[str, Any] = {
    "type": "object",
    "properties": {
        WORDS: {"type": "string", "minLength": 1, "maxLength": 300},
        "upper": _CLOTHING,
        "lower": _CLOTHING,
        "carried": {"type": "array", "items": {"type": "string", "minLength": 1, "maxLength": 24}, "maxItems": 4},
        "posture": {
            "enum": ["standing", "walking", "running", "sitting", "crouching", "lying", "climbing", "riding", "unknown"]
        },
        "activity": {"type": "string", "maxLength": 60},
        "confidence": {"enum": ["low", "medium", "high"]},
    },
    "required": [WORDS, "upper", "lower", "carried", "posture", "activity", "confidence"],
    "additionalProperties": False,
}
"""What can be seen of a person. Nothing about sex, age, origin or who it is: who wants that says so with an own schema.

Every text and list has a bound, so that the answer of any model ends; each fact can be ``unknown``."""


def _check_schema(value: Any) -> Any:
    """A schema as it is, as JSON text (from the environment), or read from the file that a text names.

    Raises ValueError.
    """
    schema = _read_text(value) if isinstance(value, str | Path) else value
    if not isinstance(schema, Mapping):
        raise ValueError(f"a schema is an object, not {_kind(schema)}")
    try:
        text = json.dumps(schema, ensure_ascii=False, separators=(",", ":"))
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"it can't be written as JSON: {error}") from None
    if len(text.encode()) > MAX_SCHEMA_BYTES:
        raise ValueError(f"it takes {len(text.encode())} bytes as JSON; at most {MAX_SCHEMA_BYTES}")
    properties = _properties(schema)
    refused = _refusal(text)
    if refused:
        raise ValueError(f"it can't be enforced: {refused}")
    ordered = {WORDS: properties[WORDS], **properties}
    return {**json.loads(text), "properties": ordered}


def _properties(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """The properties of a schema that is about an object with words. Raises ValueError."""
    if schema.get("type") != "object":
        raise ValueError(f'"type" is {json.dumps(schema.get("type"))}, must be "object"')
    properties = schema.get("properties")
    if not isinstance(properties, Mapping) or not properties:
        raise ValueError('"properties" is missing')
    if len(properties) > MAX_PROPERTIES:
        raise ValueError(f"it has {len(properties)} properties, at most {MAX_PROPERTIES}")
    for name in properties:
        if not isinstance(name, str) or not 0 < len(name) <= MAX_NAME or ":" in name or "." in name:
            raise ValueError(
                f"{str(name)[:80]!r} is no name of an attribute: 1 to {MAX_NAME} characters, no : and no ."
            )
    words = properties.get(WORDS)
    if not isinstance(words, Mapping) or words.get("type") != "string":
        raise ValueError(f'"properties" needs {WORDS!r} of type string: the words of the event')
    required = schema.get("required")
    if not isinstance(required, list) or WORDS not in required:
        raise ValueError(f'"required" must list {WORDS!r}')
    return properties


def _refusal(text: str) -> str:
    """Why the grammar library can't enforce the schema; empty when it can, or where it isn't installed."""
    try:
        from llguidance import LLMatcher
    except ImportError:
        return ""
    schema = {**json.loads(text), "x-guidance": {"lenient": False}}
    reason: str = LLMatcher.validate_grammar(json.dumps({"grammars": [{"json_schema": schema}]}))
    return reason.splitlines()[0][:300] if reason else ""


def _read_text(value: str | Path) -> Any:
    """JSON that stands there itself, or a file of YAML, which JSON is a part of."""
    if isinstance(value, str) and value.lstrip().startswith("{"):
        return _parse(value, "the text")
    path = value
    try:
        with open(Path(path).expanduser(), encoding="utf-8") as file:
            text = file.read(MAX_SCHEMA_BYTES * 8 + 1)
    except OSError as error:
        raise ValueError(f"the file {path} can't be read: {error.strerror}") from None
    except ValueError:
        raise ValueError(f"the file {path} is not UTF-8") from None
    return _parse(text, f"the file {path}")


def _parse(text: str, name: str) -> Any:
    if len(text) > MAX_SCHEMA_BYTES * 8:
        raise ValueError(f"{name} is longer than {MAX_SCHEMA_BYTES * 8} characters")
    try:
        if any(isinstance(token, yaml.AliasToken) for token in yaml.scan(text, yaml.SafeLoader)):
            raise ValueError(f"{name} has aliases (*name): write it out, or use $defs and $ref")
        return yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f", line {mark.line + 1}" if mark is not None else ""
        raise ValueError(f"{name}{where} is neither YAML nor JSON") from None


def _kind(value: Any) -> str:
    return {list: "a list", str: "text", type(None): "nothing"}.get(type(value), type(value).__name__)


OutputSchema = Annotated[dict[str, Any], BeforeValidator(_check_schema)]
"""A schema, given as such or as the path of a YAML or JSON file."""
