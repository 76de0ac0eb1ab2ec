"""The search index: kept in step with events, and asked for pages of them, newest first."""

from __future__ import annotations

from sqlalchemy import ColumnElement, column, exists, select, table, text
from sqlalchemy.orm import Session

from pipeline.store.database import Database
from pipeline.store.records import EventFilter
from pipeline.store.schema import EventRow, EventTextRow
from pipeline.store.search_text import (
    TIE_BITS,
    Query,
    attribute_tag,
    camera_tag,
    first_number,
    label_tag,
    read_query,
    rule_tag,
    state_tag,
    tags_of,
    text_of,
    time_number,
    zone_tag,
)

_BATCH = 500


def needs_index(where: EventFilter) -> bool:
    """Whether the index has to be asked; camera and time alone have indexes of their own on the events."""
    return bool(where.state or where.label or where.zone or where.rule or where.attributes or query_of(where).terms)


def query_of(where: EventFilter) -> Query:
    """Text and exact facts as one query."""
    tags = [attribute_tag(path, value) for path, value in where.attributes]
    if where.camera is not None:
        tags.append(camera_tag(where.camera))
    if where.state is not None:
        tags.append(state_tag(where.state.value))
    if where.label is not None:
        tags.append(label_tag(where.label))
    if where.zone is not None:
        tags.append(zone_tag(where.zone))
    if where.rule is not None:
        tags.append(rule_tag(where.rule))
    return read_query(where.text, tags)


def find_numbers(session: Session, where: EventFilter, before: int | None, limit: int) -> list[int]:
    """Numbers of the newest matching rows of ``event_texts``, newest first, those below ``before`` only."""
    query = query_of(where)
    number: ColumnElement[int]
    if session.get_bind().dialect.name == "sqlite":
        index = table("event_search", column("rowid"))
        number = index.c.rowid
        matches = text("event_search MATCH :query").bindparams(query=query.as_fts5())
        found = select(number).select_from(index).where(matches)
    else:
        number = EventTextRow.number.expression
        matches = text("event_texts.search @@ CAST(:query AS tsquery)").bindparams(query=query.as_tsquery())
        found = select(number).where(matches)
    if before is not None:
        found = found.where(number < before)
    if where.since is not None:
        found = found.where(number >= first_number(where.since))
    if where.until is not None:
        found = found.where(number < first_number(where.until))
    return list(session.scalars(found.order_by(number.desc()).limit(limit)))


def events_of(session: Session, numbers: list[int]) -> list[EventRow]:
    """The events behind the numbers, in their order."""
    rows = session.execute(
        select(EventTextRow.number, EventRow)
        .join(EventRow, EventRow.id == EventTextRow.event_id)
        .where(EventTextRow.number.in_(numbers))
    )
    by_number = {number: event for number, event in rows}
    return [by_number[number] for number in numbers if number in by_number]


def index_event(session: Session, event: EventRow) -> None:
    """Brings the event's row of the index in line with the event; writes nothing when it is."""
    words = text_of(event.description, event.attributes)
    tags = tags_of(event.camera, event.label, event.state, event.zones, event.attributes, event.rules)
    row = session.scalars(select(EventTextRow).where(EventTextRow.event_id == event.id)).one_or_none()
    if row is None:
        number = _free_number(session, event)
        session.add(EventTextRow(number=number, event_id=event.id, words=words, tags=tags))
        return
    row.words, row.tags = words, tags
    if first_number(event.first_seen) != row.number >> TIE_BITS << TIE_BITS:
        row.number = _free_number(session, event)


def index_missing(database: Database) -> int:
    """Indexes events that have no row: those of a database from before there was an index. Returns how many."""
    lacking = ~exists().where(EventTextRow.event_id == EventRow.id)

    def work(session: Session, after: str) -> tuple[int, str]:
        query = select(EventRow).where(lacking, EventRow.id > after).order_by(EventRow.id).limit(_BATCH)
        events = list(session.scalars(query))
        for event in events:
            index_event(session, event)
            session.flush()
        return len(events), events[-1].id if events else after

    if database.read(lambda session: session.scalar(select(EventRow.id).where(lacking).limit(1))) is None:
        return 0
    total, count, after = 0, _BATCH, ""
    while count == _BATCH:
        count, after = database.write(lambda session, after=after: work(session, after))  # type: ignore[misc]
        total += count
    return total


def _free_number(session: Session, event: EventRow) -> int:
    number = time_number(event.first_seen, event.id)
    while session.get(EventTextRow, number) is not None:
        number += 1
    return number
