"""Writes docs/configuration.md from the models: ``python -m pipeline.config.reference > docs/configuration.md``."""

from __future__ import annotations

import types
from enum import Enum
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import SecretStr
from pydantic.fields import FieldInfo

from pipeline.config import WatchwordConfig
from pipeline.config.base import Section

_HEAD = """\
# Configuration

<!-- Made from the models in pipeline/config: python -m pipeline.config.reference > docs/configuration.md -->

One YAML file (`--config`), checked as a whole: an error names the line, the value, what is allowed, and for an unknown
key the nearest known one. Changes to `cameras` take effect while everything runs ([cameras.md](cameras.md)), others at
the next start. Ready files are in [configs/](../configs).
`watchword check --config FILE` reads it and tries everything in it.

- `${NAME}` and `${NAME:-default}` in any text of the file take an environment variable; `$${` is a literal `${`.
- `WATCHWORD_<SECTION>__<KEY>` overrides one value (`WATCHWORD_SERVER__PORT=9000`, `WATCHWORD_CAMERAS__0__URL=...`);
  lists and whole sections are JSON.
- Where `NAME` is not set but `NAME_FILE` is, the value is that file's content: Docker's and systemd's secrets work.
"""


def reference() -> str:
    """The whole page."""
    parts = [_HEAD]
    for name, field in WatchwordConfig.model_fields.items():
        section = _section_of(field.annotation)
        if section is None:
            continue
        parts += _section("##", name, field, section)
        for key, spec in section.model_fields.items():
            inner = _section_of(spec.annotation)
            if inner is not None:
                parts += _section("###", f"{name}.{key}", spec, inner)
    return "\n".join(parts)


def _section(level: str, name: str, field: FieldInfo, section: type[Section]) -> list[str]:
    many = get_origin(field.annotation) is tuple
    return [
        f"{level} `{name}`{' (a list)' if many else ''}\n",
        f"{_first_line(section)}\n",
        "| key | type | default | |\n|---|---|---|---|",
        *(_row(key, spec) for key, spec in section.model_fields.items()),
        "",
    ]


def _row(key: str, field: FieldInfo) -> str:
    cells = (f"`{key}`", _kind(field), _default(field), field.description or "")
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _kind(field: FieldInfo) -> str:
    limits = [text for item in field.metadata for text in _limit(item)]
    return _type_name(field.annotation) + (f", {' and '.join(limits)}" if limits else "")


def _limit(item: Any) -> list[str]:
    words = {"ge": "at least {}", "gt": "more than {}", "le": "at most {}", "lt": "less than {}"}
    words |= {"max_length": "at most {} characters", "pattern": "`{}`"}
    found = {name: getattr(item, name, None) for name in words}
    return [words[name].format(value) for name, value in found.items() if value is not None]


def _type_name(kind: Any) -> str:
    if kind is SecretStr:
        return "secret"
    if isinstance(kind, type) and issubclass(kind, Section):
        return "section"
    if get_origin(kind) is Annotated:
        return _type_name(get_args(kind)[0])
    if get_origin(kind) is Literal:
        return ", ".join(f"`{value}`" for value in get_args(kind))
    if get_origin(kind) in (Union, types.UnionType):
        return " or ".join(_type_name(k) for k in get_args(kind) if k is not type(None))
    if get_origin(kind) is tuple:
        return f"list of {_type_name(get_args(kind)[0])}"
    names = {"str": "text", "bool": "true or false", "int": "integer", "float": "number"}
    plain = getattr(get_origin(kind) or kind, "__name__", str(kind))
    return names.get(plain, plain.lower())


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    value = field.default
    if value is None or value in ("", ()):
        return ""
    if isinstance(value, Enum):
        value = value.value
    if isinstance(value, tuple):
        value = ", ".join(map(str, value))
    text = str(value).lower() if isinstance(value, bool) else str(value)
    return f"`{text}`" if len(text) <= 60 else "see the code"


def _section_of(kind: Any) -> type[Section] | None:
    inner = get_args(kind)[0] if get_origin(kind) is tuple else kind
    return inner if isinstance(inner, type) and issubclass(inner, Section) else None


def _first_line(section: type[Section]) -> str:
    return (section.__doc__ or "").strip().splitlines()[0]


if __name__ == "__main__":
    print(reference(), end="")
