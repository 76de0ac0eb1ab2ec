"""What a check found."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Level(StrEnum):
    """A PROBLEM means that it can't work; a WARNING that it works worse than it could, or only later."""

    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the table. ``text`` says what was found, and for a problem what to do; it holds no secret."""

    subject: str
    level: Level
    text: str


def ok(subject: str, text: str) -> Finding:
    return Finding(subject, Level.OK, text)


def warning(subject: str, text: str) -> Finding:
    return Finding(subject, Level.WARNING, text)


def problem(subject: str, text: str) -> Finding:
    return Finding(subject, Level.PROBLEM, text)
