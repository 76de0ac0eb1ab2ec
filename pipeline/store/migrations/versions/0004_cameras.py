"""What the API changed of the cameras."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "camera_changes",
        sa.Column("camera", sa.String(64), primary_key=True),
        sa.Column("settings", sa.JSON, nullable=False),
        sa.Column("whole", sa.Boolean, nullable=False),
        sa.Column("removed", sa.Boolean, nullable=False),
        sa.Column("revision", sa.BigInteger, nullable=False),
        sa.Column("updated", sa.Double, nullable=False),
    )
