"""Further pictures of a crop (first and last view of the person), and answers as the model wrote them."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "crop_pictures",
        sa.Column("crop_id", sa.String(100), sa.ForeignKey("crops.crop_id", ondelete="CASCADE"), primary_key=True),
        sa.Column("place", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("sha256", sa.String(64), nullable=False),
        sa.Column("bytes", sa.Integer, nullable=False),
    )
    op.create_index("crop_pictures_by_picture", "crop_pictures", ["sha256"])
    op.add_column("descriptions", sa.Column("raw", sa.Text))
    op.add_column("descriptions", sa.Column("form", sa.String(10)))
