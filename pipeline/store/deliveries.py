"""The outbox from the side of those who deliver: who delivers to a target, what is due, and how it went.

Blocking: async callers use ``asyncio.to_thread``. Raises ``sqlalchemy.exc.SQLAlchemyError``. Each method is one
transaction and may be repeated.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import Select, func, select, update
from sqlalchemy.orm import Session

from pipeline.clock import Clock
from pipeline.messages import EventState
from pipeline.reasons import Reason
from pipeline.store.database import Database
from pipeline.store.records import EventRecord
from pipeline.store.rows import record_of
from pipeline.store.schema import AlertRow, CropRow, DeliveryRow, EventRow, TargetRow

DELIVERED = "delivered"
FAILED = "failed"
"""Outcomes that are no drops: a message arrived; an attempt failed and there will be another."""

Write = Callable[[EventRecord, Sequence[str], int, float], str]
"""Event, changes, sequence and time -> the message's body as it goes out."""


@dataclass(frozen=True, slots=True)
class Delivery:
    """A message to deliver. ``body`` is the same for every attempt, ``attempts`` those that failed so far."""

    target: str
    event_id: str
    camera: str
    sequence: int
    body: str
    attempts: int


@dataclass(frozen=True, slots=True)
class TargetState:
    """How delivery to a target fares, over all processes and restarts.

    Attributes:
        waiting: events of which something is still to be told.
        oldest: when the oldest of that came about; None when nothing waits.
        counts: ``delivered``, ``failed`` (attempts) and every reason for a drop -> messages.
        failures: failed attempts in a row.
        error: of the last failure.
    """

    waiting: int = 0
    oldest: float | None = None
    counts: Mapping[str, int] | None = None
    failures: int = 0
    last_success: float | None = None
    last_failure: float | None = None
    error: str | None = None
    owner: str = ""


@dataclass(frozen=True, slots=True)
class AlertCount:
    """How often a rule matched, and how often it would have but for its cooldown."""

    rule: str
    camera: str
    matched: int
    cooled: int


class Deliveries:
    """One process at a time holds a target; it alone delivers to it, so that an event's messages go out in order."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    def hold(self, target: str, owner: str, seconds: float) -> bool:
        """Takes the target, or keeps it, for so long. False: another process has it."""

        def work(session: Session) -> bool:
            now, row = self._clock.now(), _target(session, target)
            if row.owner != owner and row.lease_until > now:
                return False
            row.owner, row.lease_until = owner, now + seconds
            return True

        return self._database.write(work)

    def release(self, target: str, owner: str) -> None:
        """Lets another process take the target at once."""

        def work(session: Session) -> None:
            row = _target(session, target)
            if row.owner == owner:
                row.lease_until = 0.0

        self._database.write(work)

    def due(self, target: str, limit: int, max_age: float, write: Write) -> list[Delivery]:
        """Messages whose time has come, at most one an event; those of events that wait longest first.

        What waits for longer than ``max_age`` seconds is dropped and counted. A message gets its body here and keeps
        it.
        """

        def work(session: Session) -> list[Delivery]:
            now = self._clock.now()
            late = select(DeliveryRow).where(DeliveryRow.target == target, DeliveryRow.since < now - max_age)
            expired = list(session.scalars(late.where(DeliveryRow.due.is_not(None)).with_for_update()))
            for row in expired:
                forget(row)
            count_outcome(session, target, Reason.DELIVERY_EXPIRED.value, len(expired))
            session.flush()
            ready = (
                select(DeliveryRow, EventRow)
                .join(EventRow, EventRow.id == DeliveryRow.event_id)
                .where(DeliveryRow.target == target, DeliveryRow.due <= now)
                .order_by(DeliveryRow.due, DeliveryRow.event_id)
                .limit(limit)
            )
            found = []
            for row, event in session.execute(ready.with_for_update(of=DeliveryRow)):
                if row.body is None:
                    row.sequence, row.attempts = row.sequence + 1, 0
                    row.body = write(_record(session, event), row.changes, row.sequence, now)
                    row.changes = []
                found.append(Delivery(target, event.id, event.camera, row.sequence, row.body, row.attempts))
            return found

        if not self._database.read(lambda session: session.scalar(self._any_due(target))):
            return []  # a look costs no writer's time
        return self._database.write(work)

    def next_due(self, target: str) -> float | None:
        """When the next message is due; None when none waits."""
        query = select(func.min(DeliveryRow.due)).where(DeliveryRow.target == target)
        return self._database.read(lambda session: session.scalar(query))

    def delivered(self, delivery: Delivery) -> None:
        """The message arrived. What came about meanwhile is due at once."""

        def work(session: Session) -> None:
            now, row, target = self._clock.now(), _row(session, delivery), _target(session, delivery.target)
            if row is not None and row.changes:
                row.body, row.attempts, row.since, row.due = None, 0, now, now
            elif row is not None:
                forget(row)
            _count(target, DELIVERED, 1)
            target.failures, target.last_success = 0, now

        self._database.write(work)

    def failed(self, delivery: Delivery, error: str, retry_at: float) -> None:
        """The attempt failed; the same message goes out again at ``retry_at``."""

        def work(session: Session) -> None:
            row, target = _row(session, delivery), _target(session, delivery.target)
            if row is not None:
                row.attempts, row.due = row.attempts + 1, retry_at
            _count(target, FAILED, 1)
            target.failures, target.last_failure, target.error = target.failures + 1, self._clock.now(), error

        self._database.write(work)

    def drop(self, delivery: Delivery, reason: Reason, error: str) -> None:
        """The message will never arrive; what is to be told after it is not kept from going out."""

        def work(session: Session) -> None:
            now, row, target = self._clock.now(), _row(session, delivery), _target(session, delivery.target)
            if row is not None and row.changes:
                row.body, row.attempts, row.since, row.due = None, 0, now, now
            elif row is not None:
                forget(row)
            _count(target, reason.value, 1)
            target.failures, target.last_failure, target.error = target.failures + 1, now, error

        self._database.write(work)

    def note_failure(self, target: str, error: str) -> None:
        """The target can't be reached, whatever is to be delivered."""

        def work(session: Session) -> None:
            row = _target(session, target)
            row.failures, row.last_failure, row.error = row.failures + 1, self._clock.now(), error

        self._database.write(work)

    def count(self, target: str, outcome: str) -> None:
        """Counts something besides messages."""
        self._database.write(lambda session: count_outcome(session, target, outcome, 1))

    def hurry(self, target: str) -> None:
        """The target works again: what was put off is due now."""
        now = self._clock.now()
        later = update(DeliveryRow).where(DeliveryRow.target == target, DeliveryRow.due > now).values(due=now)
        self._database.write(lambda session: session.execute(later))

    def forget_targets(self, known: Sequence[str]) -> int:
        """Drops what waits for targets that are not configured any more. Returns how many messages."""

        def work(session: Session) -> int:
            stray = select(DeliveryRow).where(DeliveryRow.target.not_in(known), DeliveryRow.due.is_not(None))
            rows = list(session.scalars(stray.with_for_update()))
            for row in rows:
                forget(row)
            return len(rows)

        return self._database.write(work)

    def state(self, target: str) -> TargetState:
        """How it fares."""

        def work(session: Session) -> TargetState:
            waiting = DeliveryRow.target == target, DeliveryRow.due.is_not(None)
            count, oldest = session.execute(select(func.count(), func.min(DeliveryRow.since)).where(*waiting)).one()
            row = session.get(TargetRow, target)
            if row is None:
                return TargetState(count, oldest, {})
            owner = row.owner if row.lease_until > self._clock.now() else ""
            return TargetState(
                count,
                oldest,
                dict(row.counts),
                row.failures,
                row.last_success,
                row.last_failure,
                row.error,
                owner,
            )

        return self._database.read(work)

    def alert_counts(self) -> list[AlertCount]:
        """Every rule's matches by camera."""
        query = select(AlertRow).order_by(AlertRow.rule, AlertRow.camera)
        return self._database.read(
            lambda session: [
                AlertCount(row.rule, row.camera, row.matched, row.cooled) for row in session.scalars(query)
            ]
        )

    def people(self) -> dict[str, int]:
        """Camera -> people in view, for cameras that have any."""
        query = select(EventRow.camera, func.count()).where(EventRow.state == EventState.ACTIVE.value)
        return self._database.read(
            lambda session: {camera: count for camera, count in session.execute(query.group_by(EventRow.camera))}
        )

    def last_described(self, camera: str) -> EventRecord | None:
        """The newest event of a camera that has words."""
        query = (
            select(EventRow)
            .where(EventRow.camera == camera, EventRow.description.is_not(None))
            .order_by(EventRow.first_seen.desc())
            .limit(1)
        )

        def work(session: Session) -> EventRecord | None:
            event = session.scalars(query).one_or_none()
            return None if event is None else _record(session, event)

        return self._database.read(work)

    def _any_due(self, target: str) -> Select[str]:
        return (
            select(DeliveryRow.event_id)
            .where(DeliveryRow.target == target, DeliveryRow.due <= self._clock.now())
            .limit(1)
        )


def count_outcome(session: Session, target: str, outcome: str, n: int) -> None:
    """Adds to a target's counter."""
    if n:
        _count(_target(session, target), outcome, n)


def forget(row: DeliveryRow) -> None:
    """Nothing waits any more."""
    row.body, row.changes, row.attempts, row.since, row.due = None, [], 0, None, None


def _count(row: TargetRow, outcome: str, n: int) -> None:
    row.counts = {**row.counts, outcome: row.counts.get(outcome, 0) + n}


def _target(session: Session, name: str) -> TargetRow:
    row = session.get(TargetRow, name, with_for_update=True)
    if row is None:
        row = TargetRow(name=name, owner="", lease_until=0.0, counts={}, failures=0)
        session.add(row)
        session.flush()
    return row


def _row(session: Session, delivery: Delivery) -> DeliveryRow | None:
    """The row while that message is still its newest; None when it was dropped meanwhile, or the event deleted."""
    row = session.get(DeliveryRow, (delivery.target, delivery.event_id), with_for_update=True)
    return row if row is not None and row.body is not None and row.sequence == delivery.sequence else None


def _record(session: Session, event: EventRow) -> EventRecord:
    return record_of(event, session.get(CropRow, event.best_crop_id) if event.best_crop_id else None)
