"""Alert rules that events matched, and the outbox of messages about them."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("events", sa.Column("rules", sa.JSON))
    op.add_column("events", sa.Column("told", sa.JSON))
    op.create_table(
        "deliveries",
        sa.Column("target", sa.String(64), primary_key=True),
        sa.Column("event_id", sa.String(200), sa.ForeignKey("events.id", ondelete="CASCADE"), primary_key=True),
        sa.Column("sequence", sa.Integer, nullable=False),
        sa.Column("changes", sa.JSON, nullable=False),
        sa.Column("body", sa.Text),
        sa.Column("attempts", sa.Integer, nullable=False),
        sa.Column("since", sa.Double),
        sa.Column("due", sa.Double),
    )
    op.create_index("deliveries_due", "deliveries", ["target", "due"])
    op.create_index("deliveries_of_event", "deliveries", ["event_id"])
    op.create_table(
        "delivery_targets",
        sa.Column("name", sa.String(64), primary_key=True),
        sa.Column("owner", sa.String(200), nullable=False),
        sa.Column("lease_until", sa.Double, nullable=False),
        sa.Column("counts", sa.JSON, nullable=False),
        sa.Column("failures", sa.Integer, nullable=False),
        sa.Column("last_success", sa.Double),
        sa.Column("last_failure", sa.Double),
        sa.Column("error", sa.Text),
    )
    op.create_table(
        "alert_counts",
        sa.Column("rule", sa.String(64), primary_key=True),
        sa.Column("camera", sa.String(64), primary_key=True),
        sa.Column("last", sa.Double, nullable=False),
        sa.Column("matched", sa.Integer, nullable=False),
        sa.Column("cooled", sa.Integer, nullable=False),
    )
