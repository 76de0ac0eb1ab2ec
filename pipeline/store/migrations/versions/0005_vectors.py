"""Embeddings of descriptions, for search by meaning; the frames of further pictures."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("crop_pictures", sa.Column("frame_id", sa.BigInteger))
    op.create_table(
        "event_vectors",
        sa.Column("number", sa.Integer, primary_key=True, autoincrement=True),
        sa.Column(
            "event_id", sa.String(200), sa.ForeignKey("events.id", ondelete="CASCADE"), nullable=False, unique=True
        ),
        sa.Column("model", sa.String(300), nullable=False),
        sa.Column("vector", sa.LargeBinary, nullable=False),
        sqlite_autoincrement=True,
    )
