"""Full-text search, zones and attributes, sizes of pictures, and the request behind each description."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

# FTS5's index over `event_texts`, whose words it doesn't copy ("external content"); triggers keep it in step, for
# which the deleting ones must hand over exactly what was indexed. Nothing is ranked, so sizes of rows aren't kept.
SQLITE = (
    """CREATE VIRTUAL TABLE event_search USING fts5(
        words, tags, content='event_texts', content_rowid='number', columnsize=0, prefix='2 3',
        tokenize="unicode61 remove_diacritics 2")""",
    """CREATE TRIGGER event_texts_inserted AFTER INSERT ON event_texts BEGIN
        INSERT INTO event_search(rowid, words, tags) VALUES (new.number, new.words, new.tags);
    END""",
    """CREATE TRIGGER event_texts_deleted AFTER DELETE ON event_texts BEGIN
        INSERT INTO event_search(event_search, rowid, words, tags)
        VALUES ('delete', old.number, old.words, old.tags);
    END""",
    """CREATE TRIGGER event_texts_updated AFTER UPDATE OF number, words, tags ON event_texts BEGIN
        INSERT INTO event_search(event_search, rowid, words, tags)
        VALUES ('delete', old.number, old.words, old.tags);
        INSERT INTO event_search(rowid, words, tags) VALUES (new.number, new.words, new.tags);
    END""",
)
# Words have the weight D and tags A, so that a word of a description can never be taken for a tag.
POSTGRESQL = (
    """ALTER TABLE event_texts ADD COLUMN search tsvector GENERATED ALWAYS AS (
        to_tsvector('simple'::regconfig, words) || setweight(to_tsvector('simple'::regconfig, tags), 'A')) STORED""",
    "CREATE INDEX event_texts_search ON event_texts USING gin (search)",
)


def upgrade() -> None:
    op.add_column("events", sa.Column("zones", sa.JSON))
    op.add_column("events", sa.Column("attributes", sa.JSON))
    op.add_column("crops", sa.Column("bytes", sa.Integer))
    op.add_column("crops", sa.Column("asked_again_until", sa.Double))
    op.create_index("crops_by_picture", "crops", ["sha256"])
    op.create_table(
        "prompts",
        sa.Column("hash", sa.String(64), primary_key=True),
        sa.Column("system", sa.Text, nullable=False),
        sa.Column("question", sa.Text, nullable=False),
        sa.Column("created", sa.Double, nullable=False),
    )
    for column in (
        sa.Column("attributes", sa.JSON),
        sa.Column("pictures", sa.JSON),
        sa.Column("options", sa.JSON),
        sa.Column("image_tokens", sa.Integer),
    ):
        op.add_column("descriptions", column)
    number = sa.BigInteger().with_variant(sa.Integer, "sqlite")  # what SQLite's own row ids are called
    op.create_table(
        "event_texts",
        sa.Column("number", number, primary_key=True, autoincrement=False),
        sa.Column(
            "event_id", sa.String(200), sa.ForeignKey("events.id", ondelete="CASCADE"), nullable=False, unique=True
        ),
        sa.Column("words", sa.Text, nullable=False),
        sa.Column("tags", sa.Text, nullable=False),
    )
    for statement in SQLITE if op.get_bind().dialect.name == "sqlite" else POSTGRESQL:
        op.execute(statement)
    # Rows of `event_texts` for events of before are made by the store when it opens: their form is its business.
