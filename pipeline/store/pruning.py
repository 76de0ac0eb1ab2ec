"""Deleting events by age, label and size, and pictures that no event names.

What goes is decided first and is a list; nothing else is ever deleted. Each step is one short transaction, so that
whoever writes waits for a step at most.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from sqlalchemy import ColumnElement, CompoundSelect, and_, delete, exists, func, or_, select, union
from sqlalchemy.orm import Session

from pipeline.config.retention import RetentionConfig
from pipeline.messages import EventState
from pipeline.store.crop_files import Pictures, StoredFile, file_of
from pipeline.store.database import Database
from pipeline.store.outcome import CropOutcome
from pipeline.store.schema import CropPictureRow, CropRow, EventRow

GIB = 1024**3
DAY_S = 86_400.0
LEAVE = 0.95
"""Once over the size limit, events go until this share of it is used: else every new event would push one out."""
_LIST = 5000


class PruneReason(StrEnum):
    """Why an event goes."""

    AGE = "age"
    SIZE = "size"


@dataclass(frozen=True, slots=True)
class Doomed:
    """An event that is to go. ``bytes``: of its pictures; ``last_seen`` in seconds since the epoch."""

    id: str
    label: str
    last_seen: float
    bytes: int
    reason: PruneReason


@dataclass(frozen=True, slots=True)
class Pruned:
    """What a step deleted."""

    events: int
    bytes: int


class Pruner:
    """Blocking: async callers use ``asyncio.to_thread``. Raises ``SQLAlchemyError`` and ``OSError``."""

    def __init__(self, database: Database, files: Pictures) -> None:
        self._database = database
        self._files = files

    def plan(self, config: RetentionConfig, now: float) -> list[Doomed]:
        """What is to go at ``now``, oldest first. Reads only.

        Events that are active, or whose words are still being made, stay whatever the limits say.
        """
        doomed = list(self._too_old(config, now))
        if config.max_gib is not None:
            doomed += list(self._too_much(config.max_gib * GIB, now, doomed))
        return doomed

    def delete(self, ids: Sequence[str], now: float) -> Pruned:
        """Deletes these events in one transaction, but for those that have come to life since they were listed.

        Their rows go first: a crash in between leaves pictures that no row names, which :meth:`orphans` finds.
        """

        def work(session: Session) -> tuple[list[str], list[str]]:
            query = select(EventRow.id).where(EventRow.id.in_(ids), _may_go(now))
            going = list(session.scalars(query.with_for_update(skip_locked=True)))
            own = select(CropRow.sha256).where(CropRow.event_id.in_(going), CropRow.sha256.is_not(None))
            others = select(CropPictureRow.sha256).join(CropRow).where(CropRow.event_id.in_(going))
            names = [name for name in session.scalars(union(own, others)) if name is not None]
            session.execute(delete(EventRow).where(EventRow.id.in_(going)))  # the rest by cascade
            return going, names

        going, names = self._database.write(work)
        freed = self._files.delete_unused([file_of(name) for name in names], self._used)
        return Pruned(len(going), freed)

    def measure_pictures(self, limit: int) -> int:
        """Notes the size of up to ``limit`` pictures from before sizes were kept. Returns how many it looked at."""

        def missing(session: Session) -> list[tuple[str, str]]:
            query = select(CropRow.crop_id, CropRow.sha256).where(CropRow.sha256.is_not(None), CropRow.bytes.is_(None))
            return [(crop_id, name or "") for crop_id, name in session.execute(query.limit(limit))]

        sizes = {crop_id: self._files.size(name) or 0 for crop_id, name in self._database.read(missing)}
        if sizes:
            self._database.write(lambda session: _note_sizes(session, sizes))
        return len(sizes)

    def orphans(self) -> Iterator[list[StoredFile]]:
        """Pictures past the grace that no event names (a crash came between row and file), folder by folder (R69)."""
        for folder in self._files.folders():
            files = self._files.old_files(folder)
            used = self._used([file.sha256 for file in files if file.sha256 is not None])
            yield [file for file in files if file.sha256 not in used]

    def delete_orphans(self, files: Sequence[StoredFile]) -> int:
        """Deletes these files unless an event names them by now. Returns the bytes freed."""
        return self._files.delete_unused(files, self._used)

    def _too_old(self, config: RetentionConfig, now: float) -> Iterator[Doomed]:
        limits: list[ColumnElement[bool]] = []
        if config.days is not None:
            cutoff = now - config.days * DAY_S
            limits.append(and_(EventRow.label.not_in(list(config.labels)), EventRow.last_seen < cutoff))
        for label, days in config.labels.items():
            if days is not None:
                limits.append(and_(EventRow.label == label, EventRow.last_seen < now - days * DAY_S))
        if limits:
            yield from self._doomed(or_(*limits), now, PruneReason.AGE)

    def _too_much(self, limit: float, now: float, going: list[Doomed]) -> Iterator[Doomed]:
        total = self._database.read(
            lambda session: sum(session.scalar(select(func.sum(kind.bytes))) or 0 for kind in (CropRow, CropPictureRow))
        )
        total -= sum(event.bytes for event in going)
        if total <= limit:
            return
        known = {event.id for event in going}
        for event in self._doomed(exists().where(CropRow.event_id == EventRow.id), now, PruneReason.SIZE):
            if total <= limit * LEAVE:
                return
            if event.bytes > 0 and event.id not in known:
                total -= event.bytes
                yield event

    def _doomed(self, which: ColumnElement[bool], now: float, reason: PruneReason) -> Iterator[Doomed]:
        """Page by page, each a short read of its own, oldest first."""
        own = select(func.coalesce(func.sum(CropRow.bytes), 0)).where(CropRow.event_id == EventRow.id)
        others = select(func.coalesce(func.sum(CropPictureRow.bytes), 0)).join(
            CropRow, CropRow.crop_id == CropPictureRow.crop_id
        )
        others = others.where(CropRow.event_id == EventRow.id)
        size = own.scalar_subquery() + others.scalar_subquery()
        query = select(EventRow.id, EventRow.label, EventRow.first_seen, EventRow.last_seen, size)
        query = query.where(which, _may_go(now)).order_by(EventRow.first_seen, EventRow.id).limit(_LIST)
        page = query
        while True:
            rows = self._database.read(lambda session: session.execute(page).all())  # noqa: B023 (used at once)
            for event_id, label, _, last_seen, size_of in rows:
                yield Doomed(event_id, label, last_seen, int(size_of), reason)
            if len(rows) < _LIST:
                return
            event_id, _, first_seen, *_ = rows[-1]
            same = and_(EventRow.first_seen == first_seen, EventRow.id > event_id)
            page = query.where(EventRow.first_seen >= first_seen, or_(EventRow.first_seen > first_seen, same))

    def _used(self, names: list[str]) -> set[str]:
        own = select(CropRow.sha256).where(CropRow.sha256.in_(names))
        query: CompoundSelect[tuple[str]] = union(
            own, select(CropPictureRow.sha256).where(CropPictureRow.sha256.in_(names))
        )
        return set(self._database.read(lambda session: list(session.scalars(query))))


def _may_go(now: float) -> ColumnElement[bool]:
    """Over, and nobody is about to put it into words."""
    unfinished = CropRow.outcome.in_((CropOutcome.QUEUED.value, CropOutcome.RUNNING.value)) & (CropRow.deadline > now)
    busy = exists().where(CropRow.event_id == EventRow.id, or_(unfinished, CropRow.asked_again_until > now))
    return and_(EventRow.state != EventState.ACTIVE.value, ~busy)


def _note_sizes(session: Session, sizes: dict[str, int]) -> None:
    for crop in session.scalars(select(CropRow).where(CropRow.crop_id.in_(list(sizes)))):
        crop.bytes = sizes[crop.crop_id]
