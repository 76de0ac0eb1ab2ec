"""What became of every crop, from the journal, the database and Redis."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import redis

from benchmarks.queue_load.journal import Journal
from pipeline.queue import keys
from pipeline.reasons import Reason

EXPIRED = {
    Reason.DEADLINE.value,
    Reason.PICTURE_EXPIRED.value,
    Reason.ENGINE_DOWN.value,
    Reason.ENGINE_BUSY.value,
}


def described(database: Path) -> set[str]:
    """Crops that have a stored description."""
    return {row[0] for row in _query(database, "SELECT crop_id FROM descriptions")}


def _query(database: Path, text: str) -> list[tuple[Any, ...]]:
    if not database.exists():
        return []
    with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True, timeout=30)) as connection:
        return connection.execute(text).fetchall()


@dataclass(frozen=True)
class Book:
    """The accounts of a run that is over.

    Attributes:
        outcomes: crop -> what Redis says of it: described, queued, or a reason.
        described: crops with a stored description.
        stored: crop -> outcome in the database.
        counted: ``camera|reason`` -> sum in ``ww:drops``.
        open_events: events that are still active.
    """

    journal: Journal
    outcomes: dict[str, str]
    described: set[str]
    stored: dict[str, str]
    counted: dict[str, int]
    open_events: int

    @classmethod
    def close(cls, client: redis.Redis, database: Path, journal: Path) -> Book:
        outcomes = {}
        prefix = keys.outcome(keys.picture(""))
        for name in client.scan_iter(f"{prefix}*", count=1000):
            value = client.get(name)
            outcomes[name.decode().removeprefix(prefix)] = (value or b"").decode()
        counted = {name.decode(): int(n) for name, n in client.hgetall(keys.DROPS).items()}
        rows = _query(database, "SELECT crop_id, outcome FROM crops")
        active = _query(database, "SELECT count(*) FROM events WHERE state = 'active'")
        return cls(
            Journal.read(journal), outcomes, described(database), dict(rows), counted, active[0][0] if active else 0
        )

    def by_outcome(self) -> dict[str, int]:
        """How many crops ended how, of those that reached Redis."""
        return dict(Counter(self.outcomes.values()))

    def faults(self) -> Iterator[str]:
        """Everything that doesn't add up, in words."""
        yield from self._lost()
        for crop, outcome in self.outcomes.items():
            stored = self.stored.get(crop)
            if stored is None and crop in self.journal.doubted:
                continue  # it never reached Redis, and is counted
            if outcome == "queued":
                yield f"{crop} still waits"
            elif (outcome == "described") != (crop in self.described):
                yield f"{crop} is {outcome} in Redis, {stored} in the database"
            elif outcome in EXPIRED and stored != "expired":
                yield f"{crop} was dropped ({outcome}), {stored} in the database"
            elif outcome == Reason.POISON and stored != "failed":
                yield f"{crop} was put aside, {stored} in the database"
        for crop in self.described - set(self.outcomes):
            yield f"{crop} is described, and Redis never had it"
        yield from self._sums()

    def _lost(self) -> Iterator[str]:
        for crop in self.journal.answered - set(self.outcomes):
            yield f"{crop} was published and is lost"
        for crop in set(self.outcomes) - self.journal.made:
            yield f"{crop} came from nowhere"

    def _sums(self) -> Iterator[str]:
        """The sums by camera and reason. What a publisher's own buffer dropped without having tried to publish it is in
        the sums too, as far as the publisher lived to write it down."""
        ended = Counter(
            keys.drop_field(crop.partition(".")[0], outcome)
            for crop, outcome in self.outcomes.items()
            if outcome not in ("described", "queued")
        )
        for name in {*ended, *self.counted, *self.journal.buffer_drops}:
            least, most = ended[name], ended[name] + self.journal.buffer_drops[name]
            if not least <= self.counted.get(name, 0) <= most:
                yield f"{name} is counted {self.counted.get(name, 0)} times, {least} to {most} were dropped"
