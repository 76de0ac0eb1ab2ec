"""The configuration before it is validated: plain values, each with where it came from."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pipeline.config.problems import Path, Problem, dotted

_SECRET_FILE_BYTES = 64 * 1024


@dataclass(slots=True)
class RawConfig:
    """A tree of plain values, and for messages the places they came from.

    Attributes:
        lines: path -> line of the file, from 1.
        origins: path -> the environment variable that gave (part of) the value; such values are never shown.
        overrides: path -> the variable that replaced what the file says.
    """

    tree: dict[str, Any] = field(default_factory=dict)
    lines: dict[Path, int] = field(default_factory=dict)
    origins: dict[Path, str] = field(default_factory=dict)
    overrides: dict[Path, str] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)

    def where(self, path: Path) -> str:
        """``line 7`` or a variable's name: of ``path`` itself, else of the nearest thing around it."""
        for length in range(len(path), -1, -1):
            if path[:length] in self.overrides:
                return self.overrides[path[:length]]
            if length and path[:length] in self.lines:
                return f"line {self.lines[path[:length]]}"
        return ""

    def refuse(self, path: Path, text: str) -> None:
        """Notes a problem with the value at ``path``."""
        self.problems.append(Problem(self.where(path), f"{dotted(path)}: {text}"))


def read_variable(environ: Mapping[str, str], name: str) -> str | None:
    """The variable ``name``, else the content of the file that ``name_FILE`` names, else None.

    A secret's file usually ends with a line break that is no part of the secret: it is cut off. Raises OSError, and
    ValueError for a file that is not UTF-8.
    """
    if name in environ:
        return environ[name]
    path = environ.get(f"{name}_FILE")
    return read_secret_file(path) if path else None


def read_secret_file(path: str | os.PathLike[str]) -> str:
    """The file's content without its closing line break. Raises OSError, ValueError (not UTF-8)."""
    with open(path, encoding="utf-8") as file:
        return file.read(_SECRET_FILE_BYTES).rstrip("\r\n")
