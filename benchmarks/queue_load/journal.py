"""What a publisher did, line by line in a file that outlives it."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path


class JournalWriter:
    """Appends; each line is with the kernel before the call returns, so killing the process loses none."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def note(self, kind: str, what: str) -> None:
        os.write(self._fd, f"{kind} {what}\n".encode())


@dataclass
class Journal:
    """Read back.

    Attributes:
        made: crops that were handed to the publisher.
        answered: crops whose publish Redis answered.
        doubted: crops that the publisher's own buffer dropped after an attempt to publish them.
        buffer_drops: other crops that the publisher's own buffer dropped, by ``camera|reason``.
    """

    made: set[str] = field(default_factory=set)
    answered: set[str] = field(default_factory=set)
    doubted: set[str] = field(default_factory=set)
    buffer_drops: Counter[str] = field(default_factory=Counter)

    @classmethod
    def read(cls, path: Path) -> Journal:
        journal = cls()
        for line in path.read_text().splitlines() if path.exists() else ():
            kind, _, what = line.partition(" ")
            match kind:
                case "made":
                    journal.made.add(what)
                case "answered":
                    journal.answered.add(what)
                case "doubted":
                    journal.doubted.add(what)
                case "dropped":
                    journal.buffer_drops[what] += 1
        return journal
