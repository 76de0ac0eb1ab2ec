"""Embeddings of descriptions, and the events whose words are nearest in meaning.

Exact: a query is compared with every vector, in memory (100,000 of 384 numbers are 154 MB and some ten milliseconds).
No extension of the database is needed; many builds of Python can't load SQLite's.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
from sqlalchemy import delete, exists, func, select
from sqlalchemy.orm import Session

from pipeline.store.database import Database
from pipeline.store.records import EventFilter
from pipeline.store.schema import EventRow, EventTextRow, EventVectorRow
from pipeline.store.search import query_of

Vector = npt.NDArray[np.float32]
_CHUNK = 500


class VectorMismatch(ValueError):
    """Vectors of another length than those that are stored for the same model."""


class Vectors:
    """Blocking: async callers use ``asyncio.to_thread``. Raises ``SQLAlchemyError``."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._lock = threading.Lock()
        self._model = ""
        self._last = 0
        self._ids: list[str] = []
        self._matrix: Vector = np.zeros((0, 0), np.float32)

    def lacking(self, model: str, limit: int) -> list[tuple[str, str]]:
        """(event, words) of described events without a vector of ``model``, newest first."""
        there = exists().where(EventVectorRow.event_id == EventRow.id, EventVectorRow.model == model)
        query = select(EventRow.id, EventRow.description).where(EventRow.description.is_not(None), ~there)
        query = query.order_by(EventRow.first_seen.desc()).limit(limit)
        return [(i, words or "") for i, words in self._database.read(lambda session: session.execute(query).all())]

    def add(self, model: str, words: Mapping[str, str], vectors: Mapping[str, Sequence[float]]) -> None:
        """Stores vectors by event, in place of others. Not for events that have other ``words`` by now, or are gone."""
        rows = {event_id: unit(vector).tobytes() for event_id, vector in vectors.items()}

        def work(session: Session) -> None:
            query = select(EventRow.id, EventRow.description).where(EventRow.id.in_(list(rows)))
            for event_id, now in session.execute(query.with_for_update()).all():
                if now == words[event_id]:
                    session.execute(delete(EventVectorRow).where(EventVectorRow.event_id == event_id))
                    session.add(EventVectorRow(event_id=event_id, model=model, vector=rows[event_id]))

        self._database.write(work)

    def nearest(self, model: str, query: Sequence[float], where: EventFilter, limit: int) -> list[tuple[str, float]]:
        """(event, cosine) of at most ``limit`` events that match ``where``, nearest first.

        Raises :class:`VectorMismatch`.
        """
        with self._lock:
            self._refresh(model)
            ids, matrix = self._ids, self._matrix
        if not ids:
            return []
        wanted = unit(query)
        if len(wanted) != matrix.shape[1]:
            raise VectorMismatch(f"the query has {len(wanted)} numbers, stored vectors have {matrix.shape[1]}")
        scores = matrix @ wanted
        order = np.argsort(-scores, kind="stable")
        found: list[tuple[str, float]] = []
        seen: set[str] = set()
        for start in range(0, len(order), _CHUNK):
            part = [int(n) for n in order[start : start + _CHUNK]]
            fitting = self._database.read(lambda session, part=part: _fitting(session, [ids[n] for n in part], where))  # type: ignore[misc]
            for n in part:
                if ids[n] in fitting and ids[n] not in seen:
                    seen.add(ids[n])
                    found.append((ids[n], float(scores[n])))
            if len(found) >= limit:
                break
        return found[:limit]

    def _refresh(self, model: str) -> None:
        """Reads what was added since; all of it when most of what is here has gone."""
        count = select(func.count()).select_from(EventVectorRow).where(EventVectorRow.model == model)
        there = self._database.read(lambda session: session.scalar(count)) or 0
        if model != self._model or len(self._ids) > 2 * there + _CHUNK:
            self._model, self._last, self._ids = model, 0, []
        query = select(EventVectorRow.number, EventVectorRow.event_id, EventVectorRow.vector)
        query = query.where(EventVectorRow.model == model, EventVectorRow.number > self._last)
        rows = self._database.read(lambda session: session.execute(query.order_by(EventVectorRow.number)).all())
        if not rows:
            return
        fresh = {event_id for _, event_id, _ in rows}
        kept = [n for n, event_id in enumerate(self._ids) if event_id not in fresh]
        added = np.stack([np.frombuffer(vector, np.float32) for _, _, vector in rows])
        self._matrix = np.concatenate([self._matrix[kept], added]) if kept else added
        self._ids = [*(self._ids[n] for n in kept), *(event_id for _, event_id, _ in rows)]
        self._last = rows[-1][0]


def unit(vector: Sequence[float]) -> Vector:
    """float32 ``[n]`` of length 1. Raises ValueError for one without a direction."""
    values = np.asarray(vector, np.float32)
    length = float(np.linalg.norm(values))
    if not np.isfinite(length) or length == 0.0:
        raise ValueError("an embedding has no direction")
    return values / length


def _fitting(session: Session, ids: list[str], where: EventFilter) -> set[str]:
    """Those of the events that are there, are described and match the filter."""
    query = select(EventRow.id).join(EventTextRow, EventTextRow.event_id == EventRow.id)
    query = query.where(EventRow.id.in_(ids), EventRow.description.is_not(None))
    for tag in query_of(where).tags:
        query = query.where(EventTextRow.tags.contains(tag, autoescape=True))
    if where.since is not None:
        query = query.where(EventRow.first_seen >= where.since)
    if where.until is not None:
        query = query.where(EventRow.first_seen < where.until)
    return set(session.scalars(query))
