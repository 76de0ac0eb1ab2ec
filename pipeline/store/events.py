"""Events, their crops and their words: the only place that writes them.

Every method is one transaction and idempotent; news may come twice and in any order. Blocking: async callers use
``asyncio.to_thread``. Raises ``sqlalchemy.exc.SQLAlchemyError`` when the database fails, ``OSError`` when the disk
does.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from sqlalchemy import and_, delete, or_, select
from sqlalchemy.orm import Session

from pipeline.clock import Clock, SystemClock
from pipeline.config.engine import StoreConfig
from pipeline.messages import (
    CropMessage,
    DescriptionState,
    EventState,
    TrackMessage,
    TrackPhase,
    event_id_of,
)
from pipeline.reasons import Reason
from pipeline.store.again import Answer, Asking, mark_asked, refusal
from pipeline.store.cameras import CameraChanges
from pipeline.store.crop_files import CropFiles, Picture, Pictures
from pipeline.store.database import Database
from pipeline.store.deliveries import Deliveries
from pipeline.store.outcome import CropOutcome, judge
from pipeline.store.pruning import Pruner
from pipeline.store.records import (
    DescriptionMeta,
    DescriptionRecord,
    EventFilter,
    EventPage,
    EventRecord,
    UnknownCrop,
    View,
    cursor_of,
    read_cursor,
    read_search_cursor,
    search_cursor_of,
    views_before,
)
from pipeline.store.rows import crop_row_of, description_record_of, description_row_of, facts_of, record_of
from pipeline.store.schema import CropPictureRow, CropRow, DescriptionRow, EventRow, EventVectorRow, PromptRow
from pipeline.store.search import events_of, find_numbers, index_event, index_missing, needs_index
from pipeline.store.vectors import Vectors

if TYPE_CHECKING:
    from pipeline.store.outbox import Outbox

log = logging.getLogger(__name__)

MAX_PAGE = 500
EVERYTHING = EventFilter()
_INTERRUPTIONS = (Reason.SHUTDOWN, Reason.INTERRUPTED)
_UNFINISHED = (CropOutcome.QUEUED.value, CropOutcome.RUNNING.value)


class EventStore:
    """Where events are kept: SQL for facts and words, files under ``data_dir/crops`` or an S3 bucket for pictures."""

    def __init__(self, config: StoreConfig, clock: Clock | None = None, outbox: Outbox | None = None) -> None:
        """``outbox``: is told of each change within its transaction; None: nobody is to be told."""
        self._clock = clock or SystemClock()
        self._outbox = outbox
        self._database = Database(config)
        self._files = _pictures(config)
        self.pruner = Pruner(self._database, self._files)
        self.vectors = Vectors(self._database)
        self.deliveries = Deliveries(self._database, self._clock)
        self.cameras = CameraChanges(self._database, self._clock)
        if (count := index_missing(self._database)) > 0:
            log.info("%d events were added to the search index", count)

    def close(self) -> None:
        """Closes the connections to the database."""
        self._database.close()

    def apply_track(self, message: TrackMessage) -> EventRecord:
        """Notes a start, an update or an end of a track."""
        return self._database.write(lambda session: self._apply_track(session, message))

    def add_crop(self, message: CropMessage, jpeg: bytes | None, others: Sequence[View] = ()) -> EventRecord:
        """Notes a crop; its event too, when the crop is the first news of it.

        Args:
            message: the crop.
            jpeg: its picture; None: it had expired.
            others: further pictures of the same person, oldest first.
        """
        # Files come first: a row never names a file that isn't there.
        picture = self._files.add(jpeg) if jpeg is not None else None
        further = [(self._files.add(other.jpeg), other.frame_id) for other in others]
        return self._database.write(lambda session: self._add_crop(session, message, picture, further))

    def other_views(self, crop_id: str) -> list[View]:
        """The further pictures that were added with a crop and are still kept, oldest first."""
        query = select(CropPictureRow.sha256, CropPictureRow.frame_id).where(CropPictureRow.crop_id == crop_id)
        rows = self._database.read(lambda session: session.execute(query.order_by(CropPictureRow.place)).all())
        found = ((self._files.read(sha256), frame_id) for sha256, frame_id in rows)
        return [View(jpeg, frame_id) for jpeg, frame_id in found if jpeg is not None]

    def pictures(self, event_id: str) -> list[str]:
        """SHA-256 of every picture of an event, crop by crop, the pictures of each in the order of their frames."""

        def work(session: Session) -> list[str]:
            names: list[str] = []
            for crop in session.scalars(select(CropRow).where(CropRow.event_id == event_id).order_by(CropRow.time)):
                rows = select(CropPictureRow).where(CropPictureRow.crop_id == crop.crop_id)
                views = [(row.sha256, row.frame_id) for row in session.scalars(rows.order_by(CropPictureRow.place))]
                before = views_before([frame_id for _, frame_id in views], crop.frame_id)
                own = [crop.sha256] if crop.sha256 else []
                others = [sha256 for sha256, _ in views]
                names += [*others[:before], *own, *others[before:]]
            return list(dict.fromkeys(names))

        return self._database.read(work)

    def picture(self, event_id: str, sha256: str) -> bytes | None:
        """One of :meth:`pictures`; None when it is none of the event's, or no longer kept."""
        return self._files.read(sha256) if sha256 in self.pictures(event_id) else None

    def begin_description(self, crop_id: str) -> EventRecord | None:
        """Notes that a description is being made; None when there is one already and no other was asked for.

        Raises :class:`UnknownCrop`.
        """

        def work(session: Session) -> EventRecord | None:
            crop, event = self._find(session, crop_id)
            if crop.outcome == CropOutcome.DESCRIBED:
                # The words that are there stay until others take their place.
                return self._settled(session, event) if crop.asked_again_until is not None else None
            crop.outcome, crop.reason = CropOutcome.RUNNING.value, Reason.NONE.value
            return self._settled(session, event)

        return self._database.write(work)

    def finish_description(self, crop_id: str, text: str, meta: DescriptionMeta) -> EventRecord:
        """Stores the words for a crop; those that came first stay, unless others were asked for.

        Raises :class:`UnknownCrop`.
        """

        def work(session: Session) -> EventRecord:
            crop, event = self._find(session, crop_id)
            old, now = session.get(DescriptionRow, crop_id), self._clock.now()
            if old is not None and crop.asked_again_until is not None:
                session.delete(old)
                session.flush()
                old = None
            if old is None:
                session.add(description_row_of(crop, text, meta, now))
                if meta.question and session.get(PromptRow, meta.prompt_hash) is None:
                    prompt = PromptRow(hash=meta.prompt_hash, system=meta.system, question=meta.question, created=now)
                    session.add(prompt)
            crop.outcome, crop.reason, crop.asked_again_until = CropOutcome.DESCRIBED.value, Reason.NONE.value, None
            return self._settled(session, event)

        return self._database.write(work)

    def fail_description(self, crop_id: str, reason: Reason, *, expired: bool) -> EventRecord:
        """Notes that a crop gets no words and why: it came too late, or it failed. Raises :class:`UnknownCrop`."""

        def work(session: Session) -> EventRecord:
            crop, event = self._find(session, crop_id)
            if crop.outcome != CropOutcome.DESCRIBED:
                outcome = CropOutcome.EXPIRED if expired else CropOutcome.FAILED
                crop.outcome, crop.reason = outcome.value, reason.value
            crop.asked_again_until = None
            return self._settled(session, event)

        return self._database.write(work)

    def ask_description(self, event_id: str, deadline: float, *, force: bool) -> Asking | None:
        """Asks for words for an event's best picture until ``deadline``; with ``force`` also where there are some.

        When ACCEPTED the caller queues the message, or calls :meth:`withdraw_asking`. None: there is no such event.
        """

        def work(session: Session) -> Asking | None:
            event = session.get(EventRow, event_id, with_for_update=True)
            if event is None:
                return None
            crop = session.get(CropRow, event.best_crop_id, with_for_update=True) if event.best_crop_id else None
            now = self._clock.now()
            answer = refusal(crop, has_words=event.description is not None, force=force, now=now)
            if crop is None or crop.sha256 is None or answer is not None:
                return Asking(answer or Answer.NO_PICTURE, _records(session, [event])[0])
            jpeg = self._files.read(crop.sha256)
            if jpeg is None:
                return Asking(Answer.NO_PICTURE, _records(session, [event])[0])
            before = (crop.outcome, crop.reason)
            message = mark_asked(crop, event, now, deadline)
            return Asking(Answer.ACCEPTED, self._settled(session, event), message, jpeg, *before)

        return self._database.write(work)

    def withdraw_asking(self, asking: Asking) -> EventRecord | None:
        """Takes back what could not be queued. None: the event is gone."""
        if asking.message is None:
            return asking.event
        crop_id, deadline = asking.message.crop_id, asking.message.deadline

        def work(session: Session) -> EventRecord | None:
            crop = session.get(CropRow, crop_id, with_for_update=True)
            if crop is None:
                return None
            if crop.asked_again_until == deadline:
                crop.outcome, crop.reason, crop.asked_again_until = asking.outcome, asking.reason, None
            return self._settled(session, _locked(session, crop.event_id))

        return self._database.write(work)

    def interrupt_open_events(self, untouched_since: float) -> list[EventRecord]:
        """Ends the active events of which ingest had no news since then: whoever watched them is gone.

        Their ``last_seen`` stays the true one. News of one that comes nevertheless makes it active again.
        """

        def work(session: Session) -> list[EventRecord]:
            open_ones = select(EventRow).where(
                EventRow.state == EventState.ACTIVE.value, EventRow.touched < untouched_since
            )
            records = []
            for event in session.scalars(open_ones.with_for_update()):
                event.state, event.end_reason = EventState.INTERRUPTED.value, Reason.INTERRUPTED.value
                records.append(self._settled(session, event))
            return records

        return self._database.write(work)

    def expire_waiting(self, untouched_since: float, deadline_before: float) -> list[EventRecord]:
        """Stops waiting for words that can't come any more; says which events that changed.

        Crops in the making whose deadline was before ``deadline_before`` (Redis lost them, or their describer died),
        and crops that events without news since ``untouched_since`` still wait for (dropped while they were queued).
        """

        def work(session: Session) -> list[EventRecord]:
            late = select(CropRow).where(CropRow.outcome.in_(_UNFINISHED), CropRow.deadline < deadline_before)
            changed: dict[str, EventRow] = {}
            for crop in session.scalars(late.with_for_update()):
                crop.outcome, crop.reason = CropOutcome.EXPIRED.value, Reason.DEADLINE.value
                changed[crop.event_id] = _locked(session, crop.event_id)
            waiting = select(EventRow).where(
                EventRow.description_state.in_((DescriptionState.QUEUED.value, DescriptionState.DRAFT.value)),
                EventRow.state != EventState.ACTIVE.value,
                EventRow.touched < untouched_since,
                EventRow.gave_up.is_(False),
            )
            for event in session.scalars(waiting.with_for_update()):
                event.gave_up = True
                changed[event.id] = event
            return [self._settled(session, event) for event in changed.values()]

        return self._database.write(work)

    def list_events(self, where: EventFilter = EVERYTHING, *, before: str | None = None, limit: int = 50) -> EventPage:
        """A page of events, newest first. ``before`` is a page's ``next`` of the same filter.

        Raises :class:`BadCursor`, ValueError.
        """
        if not 1 <= limit <= MAX_PAGE:
            raise ValueError(f"limit is {limit}, allowed is 1 to {MAX_PAGE}")
        page = self._search_page if needs_index(where) else self._timeline_page
        return page(where, before, limit)

    def _timeline_page(self, where: EventFilter, before: str | None, limit: int) -> EventPage:
        query = select(EventRow).order_by(EventRow.first_seen.desc(), EventRow.id.desc()).limit(limit + 1)
        if where.camera is not None:
            query = query.where(EventRow.camera == where.camera)
        if where.since is not None:
            query = query.where(EventRow.first_seen >= where.since)
        if where.until is not None:
            query = query.where(EventRow.first_seen < where.until)
        if before is not None:
            first_seen, event_id = read_cursor(before)
            same = and_(EventRow.first_seen == first_seen, EventRow.id < event_id)
            # The first condition follows from the second; it is what the index is entered by.
            query = query.where(EventRow.first_seen <= first_seen, or_(EventRow.first_seen < first_seen, same))

        def work(session: Session) -> EventPage:
            rows = list(session.scalars(query))
            shown = rows[:limit]
            more = cursor_of(shown[-1].first_seen, shown[-1].id) if len(rows) > limit else None
            return EventPage(_records(session, shown), more)

        return self._database.read(work)

    def _search_page(self, where: EventFilter, before: str | None, limit: int) -> EventPage:
        start = read_search_cursor(before) if before is not None else None

        def work(session: Session) -> EventPage:
            numbers = find_numbers(session, where, start, limit + 1)
            more = search_cursor_of(numbers[limit - 1]) if len(numbers) > limit else None
            return EventPage(_records(session, events_of(session, numbers[:limit])), more)

        return self._database.read(work)

    def get_all(self, event_ids: Sequence[str]) -> list[EventRecord]:
        """These events, in this order; without those that are gone."""

        def work(session: Session) -> list[EventRecord]:
            rows = {row.id: row for row in session.scalars(select(EventRow).where(EventRow.id.in_(event_ids)))}
            return list(_records(session, [rows[i] for i in event_ids if i in rows]))

        return self._database.read(work)

    def get(self, event_id: str) -> EventRecord | None:
        """One event, None when there is none of that id."""

        def work(session: Session) -> EventRecord | None:
            event = session.get(EventRow, event_id)
            return None if event is None else _records(session, [event])[0]

        return self._database.read(work)

    def description(self, event_id: str) -> DescriptionRecord | None:
        """The description that is shown for an event with the exact request behind it; None without one."""

        def work(session: Session) -> DescriptionRecord | None:
            best = select(DescriptionRow).join(EventRow, EventRow.best_crop_id == DescriptionRow.crop_id)
            row = session.scalars(best.where(EventRow.id == event_id)).one_or_none()
            return None if row is None else description_record_of(row, session.get(PromptRow, row.prompt_hash))

        return self._database.read(work)

    def crop(self, event_id: str) -> str | None:
        """SHA-256 of the picture that is shown for an event, None when there is none."""

        def work(session: Session) -> str | None:
            best = select(CropRow.sha256).join(EventRow, EventRow.best_crop_id == CropRow.crop_id)
            return session.scalars(best.where(EventRow.id == event_id)).one_or_none()

        return self._database.read(work)

    def read_picture(self, sha256: str) -> bytes | None:
        """A picture by its SHA-256, which is only ever one from this store; None when it is no longer kept."""
        return self._files.read(sha256)

    def crop_path(self, event_id: str) -> Path | None:
        """The file of :meth:`crop`; None also when pictures are kept elsewhere than in files."""
        sha256 = self.crop(event_id)
        if sha256 is None or not isinstance(self._files, CropFiles):
            return None
        path = self._files.path(sha256)
        return path if path.exists() else None

    def _apply_track(self, session: Session, message: TrackMessage) -> EventRecord:
        event = session.get(EventRow, event_id_of(message.track), with_for_update=True)
        if event is None:
            event = self._new_event(session, message.track, message.camera, message.label, message.last_seen)
            event.box, event.score = list(message.box), message.score
        is_news = message.last_seen > event.last_seen
        if message.last_seen >= event.last_seen:
            event.box, event.score = list(message.box), message.score
        event.first_seen = min(event.first_seen, message.first_seen)
        event.last_seen = max(event.last_seen, message.last_seen)
        event.touched = self._clock.now()
        event.announced_crop_id = message.crop_id or event.announced_crop_id
        _note_zones(event, message.zones)
        if message.phase == TrackPhase.END:
            interrupted = message.reason in _INTERRUPTIONS
            event.state = (EventState.INTERRUPTED if interrupted else EventState.ENDED).value
            event.end_reason, event.final_crop = message.reason.value, message.final_crop
        elif event.end_reason == Reason.INTERRUPTED and is_news:
            # It had been given up for want of news, and here is some.
            event.state, event.end_reason, event.gave_up = EventState.ACTIVE.value, None, False
        return self._settled(session, event)

    def _add_crop(
        self,
        session: Session,
        message: CropMessage,
        picture: Picture | None,
        others: Sequence[tuple[Picture, int | None]],
    ) -> EventRecord:
        event = session.get(EventRow, event_id_of(message.track), with_for_update=True)
        if event is None:
            event = self._new_event(session, message.track, message.camera, message.label, message.time)
            event.box, event.score = list(message.box), message.score
        _note_zones(event, message.zones)
        crop = session.get(CropRow, message.crop_id)
        if crop is None:
            event.first_seen = min(event.first_seen, message.time)
            event.last_seen = max(event.last_seen, message.time)
            event.touched = self._clock.now()
            session.add(crop_row_of(message, event.id, picture, self._clock.now()))
        elif crop.sha256 is None and picture is not None:
            crop.sha256, crop.bytes = picture.sha256, picture.size
        session.flush()
        for place, (other, frame_id) in enumerate(others):
            if session.get(CropPictureRow, (message.crop_id, place)) is None:
                row = CropPictureRow(crop_id=message.crop_id, place=place, sha256=other.sha256, bytes=other.size)
                row.frame_id = frame_id
                session.add(row)
        return self._settled(session, event)

    def _new_event(self, session: Session, track: str, camera: str, label: str, seen: float) -> EventRow:
        now = self._clock.now()
        event = EventRow(
            id=event_id_of(track),
            track=track,
            camera=camera,
            label=label,
            state=EventState.ACTIVE.value,
            first_seen=seen,
            last_seen=seen,
            description_state=DescriptionState.QUEUED.value,
            reason=Reason.NONE.value,
            final_crop=False,
            gave_up=False,
            created=now,
            updated=now,
            touched=now,
        )
        session.add(event)
        return event

    def _find(self, session: Session, crop_id: str) -> tuple[CropRow, EventRow]:
        crop = session.get(CropRow, crop_id, with_for_update=True)
        if crop is None:
            raise UnknownCrop(crop_id)
        return crop, _locked(session, crop.event_id)

    def _settled(self, session: Session, event: EventRow) -> EventRecord:
        """Brings the event's description in line with its crops."""
        session.flush()
        rows = {crop.crop_id: crop for crop in session.scalars(select(CropRow).where(CropRow.event_id == event.id))}
        verdict = judge(
            [facts_of(crop) for crop in rows.values()],
            over=event.state != EventState.ACTIVE,
            final_announced=event.final_crop,
            gave_up=event.gave_up,
        )
        words = session.get(DescriptionRow, verdict.described_by) if verdict.described_by else None
        event.description_state = verdict.state.value
        if event.description is not None and (words is None or words.text != event.description):
            session.execute(delete(EventVectorRow).where(EventVectorRow.event_id == event.id))
        event.description = words.text if words else None
        event.model = words.model if words else None
        event.attributes = words.attributes if words else None
        event.reason = verdict.reason.value
        event.best_crop_id = verdict.best_crop
        event.updated = self._clock.now()
        if self._outbox is not None:
            self._outbox.note(session, event, event.updated)
        index_event(session, event)
        session.flush()
        session.expire(event, ["image_tokens"])
        return record_of(event, rows.get(verdict.best_crop or ""))


def _records(session: Session, rows: list[EventRow]) -> tuple[EventRecord, ...]:
    best = [row.best_crop_id for row in rows if row.best_crop_id is not None]
    crops = {crop.crop_id: crop for crop in session.scalars(select(CropRow).where(CropRow.crop_id.in_(best)))}
    return tuple(record_of(row, crops.get(row.best_crop_id or "")) for row in rows)


def _pictures(config: StoreConfig) -> Pictures:
    if config.crops_url is None:
        return CropFiles(config.data_dir / "crops")
    from pipeline.store.crop_objects import CropObjects

    return CropObjects(config.crops_url)


def _note_zones(event: EventRow, zones: Sequence[str]) -> None:
    """Zones that the person has been in; they only ever become more."""
    event.zones = list(dict.fromkeys([*(event.zones or ()), *zones])) or None


def _locked(session: Session, event_id: str) -> EventRow:
    return session.get_one(EventRow, event_id, with_for_update=True)
