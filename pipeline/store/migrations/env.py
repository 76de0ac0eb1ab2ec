"""Run by Alembic: upgrades over the connection that the caller hands in (see :mod:`pipeline.store.migrate`)."""

from __future__ import annotations

from typing import Any

from alembic import context

from pipeline.store.schema import Base

SEARCH_TABLE = "event_search"
"""SQLite's full-text index. FTS5 keeps its data in shadow tables of that name and a suffix, which are its own."""
_RAW = {("event_texts", "search"), ("event_texts", "event_texts_search")}
"""Column and index that only PostgreSQL has; they are made by raw DDL."""


def include_name(name: str | None, kind: str, parents: Any) -> bool:
    """False hides what no model describes from comparisons, so that nobody drops an index's insides."""
    if kind == "table":
        return name is not None and not name.startswith(SEARCH_TABLE)
    return (parents.get("table_name"), name) not in _RAW


context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=Base.metadata,
    include_name=include_name,
    # SQLite can roll DDL back since we begin transactions ourselves; Alembic assumes the driver's habits.
    transactional_ddl=True,
)
with context.begin_transaction():
    context.run_migrations()
