"""PostgreSQL takes each word as one, whatever it looks like.

Its parser sees a number in the beginning of ``3e7x0`` and cuts it into ``3e7`` and ``x0``; no word that begins with a
letter is cut. So each is given one, in the index here and in queries (``Query.as_tsquery``).
"""

from __future__ import annotations

from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

POSTGRESQL = (
    "DROP INDEX event_texts_search",
    "ALTER TABLE event_texts DROP COLUMN search",
    r"""ALTER TABLE event_texts ADD COLUMN search tsvector GENERATED ALWAYS AS (
        to_tsvector('simple'::regconfig, regexp_replace(words, '(\S+)', 'w\1', 'g'))
        || setweight(to_tsvector('simple'::regconfig, tags), 'A')) STORED""",
    "CREATE INDEX event_texts_search ON event_texts USING gin (search)",
)


def upgrade() -> None:
    if op.get_bind().dialect.name == "postgresql":
        for statement in POSTGRESQL:
            op.execute(statement)
