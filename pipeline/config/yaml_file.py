"""The YAML file with the line of every value, and with ``${NAME}`` filled in from the environment."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path as FilePath
from typing import Any

import yaml

from pipeline.config.problems import ConfigProblem, Path, Problem, dotted
from pipeline.config.raw import RawConfig, read_variable

_REFERENCE = re.compile(r"\$\$\{|\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}")
_MAX_DEPTH = 20
_MAX_VALUES = 100_000


def read_yaml(path: FilePath, environ: Mapping[str, str], raw: RawConfig) -> None:
    """Fills ``raw`` from the file. Raises ConfigProblem where there is nothing to go on with, else notes problems."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigProblem(str(path), [Problem("", error.strerror or type(error).__name__)]) from None
    except UnicodeDecodeError:
        raise ConfigProblem(str(path), [Problem("", "is not UTF-8 text")]) from None
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        value = _Builder(raw, environ).build(node, ()) if node is not None else None
    except yaml.MarkedYAMLError as error:
        where = f"line {error.problem_mark.line + 1}" if error.problem_mark else ""
        raise ConfigProblem(str(path), [Problem(where, f"not valid YAML: {error.problem}")]) from None
    except (yaml.YAMLError, ValueError):
        raise ConfigProblem(str(path), [Problem("", "not valid YAML")]) from None
    if value is None:
        value = {}
    if not isinstance(value, dict):
        raise ConfigProblem(str(path), [Problem("line 1", "must be sections with keys, such as 'cameras:'")])
    raw.tree = value


class _Builder:
    """Turns YAML nodes into plain values; bounded, because a few lines of aliases can stand for millions of values."""

    def __init__(self, raw: RawConfig, environ: Mapping[str, str]) -> None:
        self._raw = raw
        self._environ = environ
        self._values = 0
        self._scalars = yaml.SafeLoader("")

    def build(self, node: yaml.Node, path: Path) -> Any:
        self._values += 1
        if len(path) > _MAX_DEPTH or self._values > _MAX_VALUES:
            raise yaml.MarkedYAMLError(problem="too deep or too large", problem_mark=node.start_mark)
        self._raw.lines[path] = node.start_mark.line + 1
        if isinstance(node, yaml.MappingNode):
            return self._build_mapping(node, path)
        if isinstance(node, yaml.SequenceNode):
            return [self.build(child, (*path, index)) for index, child in enumerate(node.value)]
        value = self._scalars.construct_object(node)
        return self._interpolate(value, path) if isinstance(value, str) else value

    def _build_mapping(self, node: yaml.MappingNode, path: Path) -> dict[str, Any]:
        own: dict[str, Any] = {}
        merged: dict[str, Any] = {}
        for key_node, value_node in node.value:
            if key_node.tag == "tag:yaml.org,2002:merge":
                for part in value_node.value if isinstance(value_node, yaml.SequenceNode) else [value_node]:
                    values = self.build(part, path)
                    merged = {**(values if isinstance(values, dict) else {}), **merged}
                continue
            key = str(key_node.value)
            child, line = (*path, key), key_node.start_mark.line + 1
            if key in own:
                self._raw.problems.append(Problem(f"line {line}", f"{dotted(child)} is given twice"))
            own[key] = self.build(value_node, child)
            self._raw.lines[child] = line
        return {**merged, **own}

    def _interpolate(self, text: str, path: Path) -> str:
        def replace(match: re.Match[str]) -> str:
            if match[0] == "$${":
                return "${"
            name, default = match[1], match[2]
            self._raw.origins[path] = f"${{{name}}}"
            try:
                value = read_variable(self._environ, name)
            except (OSError, ValueError):
                self._raw.refuse(path, f"the file that {name}_FILE names can't be read")
                return ""
            if value is None and default is None:
                self._raw.refuse(path, f"neither {name} nor {name}_FILE is set in the environment")
            return value if value is not None else default or ""

        return _REFERENCE.sub(replace, text)
