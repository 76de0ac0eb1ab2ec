"""What the API changed of the cameras, in SQL. Blocking, like the rest of the store."""

from __future__ import annotations

from collections.abc import Callable

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from pipeline.clock import Clock
from pipeline.config.overlay import CameraChange, ChangeSet
from pipeline.store.database import Database
from pipeline.store.schema import CameraChangeRow

Revise = Callable[[CameraChange, ChangeSet], CameraChange]
"""From a camera's change as it is (one that says nothing, where there is none) and all of them to the new one."""


class CameraChanges:
    """The owner of the changes. Several serve processes may share one database."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    def read(self) -> ChangeSet:
        """All changes as they are now."""
        return self._database.read(_all_of)

    def revise(self, camera: str, work: Revise) -> ChangeSet:
        """Replaces a camera's change in one transaction; gives all of them. What ``work`` raises undoes everything."""

        def store(session: Session) -> ChangeSet:
            before = _all_of(session)
            change = work(before.cameras.get(camera, CameraChange()), before)
            row = session.get(CameraChangeRow, camera) or CameraChangeRow(camera=camera)
            row.settings, row.whole, row.removed = dict(change.settings), change.whole, change.removed
            row.revision, row.updated = before.revision + 1, self._clock.now()
            session.add(row)
            session.flush()
            return _all_of(session)

        return self._database.write(store)


def _all_of(session: Session) -> ChangeSet:
    rows = session.scalars(select(CameraChangeRow).order_by(CameraChangeRow.camera)).all()
    revision = session.scalar(select(func.max(CameraChangeRow.revision))) or 0
    return ChangeSet(revision, {row.camera: CameraChange(row.settings, row.whole, row.removed) for row in rows})
