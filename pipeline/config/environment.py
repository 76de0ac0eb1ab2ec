"""Environment variables that override single values: ``WATCHWORD_<SECTION>__<KEY>``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

from pipeline.config import WatchwordConfig
from pipeline.config.problems import Path, Problem, dotted, is_composite, kind_at, nearest, unknown_key
from pipeline.config.raw import RawConfig, read_variable

PREFIX = "WATCHWORD_"


def apply_environment(environ: Mapping[str, str], raw: RawConfig) -> None:
    """Puts every override over ``raw.tree``; notes those that name nothing or don't fit."""
    for variable in sorted(environ):
        name = variable
        if _path_of(name) is None and variable.endswith("_FILE"):
            name = variable.removesuffix("_FILE")
            if name in environ:
                continue  # the plain variable wins
        path = _path_of(name)
        if path is None:
            _refuse_unknown(variable, name, raw)
            continue
        try:
            value = read_variable(environ, name)
        except (OSError, ValueError):
            raw.problems.append(Problem(variable, "the file that it names can't be read"))
            continue
        _override(path, value or "", variable, raw)


def _parts(name: str) -> Path:
    return tuple(int(part) if part.isdecimal() else part for part in name[len(PREFIX) :].lower().split("__"))


def _path_of(name: str) -> Path | None:
    """``WATCHWORD_SERVER__PORT`` -> ``("server", "port")`` when the schema has it."""
    if not name.startswith(PREFIX):
        return None
    path = _parts(name)
    return path if kind_at(WatchwordConfig, path) is not None else None


def _refuse_unknown(variable: str, name: str, raw: RawConfig) -> None:
    """Other variables with the prefix (WATCHWORD_CACHE) are none of ours: a double underline makes one an override."""
    if not name.startswith(PREFIX) or "__" not in name:
        return
    path, sections = _parts(name), WatchwordConfig.model_fields
    if path[0] in sections:
        text = unknown_key(WatchwordConfig, path)
    else:
        guess = nearest(str(path[0]), sections)
        text = f"unknown section {path[0]!r}" + (f"; did you mean {guess!r}?" if guess else "")
    raw.problems.append(Problem(variable, text))


def _override(path: Path, text: str, variable: str, raw: RawConfig) -> None:
    value: Any = text
    if text and is_composite(kind_at(WatchwordConfig, path)):
        try:
            value = json.loads(text)
        except json.JSONDecodeError:
            raw.problems.append(Problem(variable, f"{dotted(path)}: must be JSON here (a list or a section)"))
            return
    target: Any = raw.tree
    for part, following in pairwise(path):
        target = _step(target, part, following)
        if target is None:
            raw.problems.append(Problem(variable, f"{dotted(path)}: there is no list or section to put it in"))
            return
    for known in [known for known in raw.origins if known[: len(path)] == path]:
        del raw.origins[known]
    raw.origins[path] = raw.overrides[path] = variable
    last = path[-1]
    if isinstance(last, int):
        if last > len(target):
            raw.problems.append(Problem(variable, f"{dotted(path)}: the list has only {len(target)} entries"))
            return
        target[last : last + 1] = [value] if text else []
    elif text:
        target[last] = value
    else:
        target.pop(last, None)


def _step(target: Any, part: str | int, following: str | int) -> Any:
    """The list or section at ``part`` of ``target``, made where it is missing; None where it can't be."""
    if isinstance(part, int):
        if part > len(target):
            return None
        if part == len(target):
            target.append({})
    elif target.get(part) is None:
        target[part] = [] if isinstance(following, int) else {}
    child = target[part]
    return child if isinstance(child, list if isinstance(following, int) else dict) else None
