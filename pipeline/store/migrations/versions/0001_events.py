"""Events, their crops and descriptions: the tables as they were before versions were kept."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "events",
        sa.Column("id", sa.String(200), primary_key=True),
        sa.Column("track", sa.String(200), nullable=False, unique=True),
        sa.Column("camera", sa.String(64), nullable=False),
        sa.Column("label", sa.String(100), nullable=False),
        sa.Column("state", sa.String(20), nullable=False),
        sa.Column("first_seen", sa.Double, nullable=False),
        sa.Column("last_seen", sa.Double, nullable=False),
        sa.Column("box", sa.JSON, nullable=False),
        sa.Column("score", sa.Double, nullable=False),
        sa.Column("end_reason", sa.String(40)),
        sa.Column("final_crop", sa.Boolean, nullable=False),
        sa.Column("gave_up", sa.Boolean, nullable=False),
        sa.Column("description_state", sa.String(20), nullable=False),
        sa.Column("description", sa.Text),
        sa.Column("reason", sa.String(40), nullable=False),
        sa.Column("announced_crop_id", sa.String(100)),
        sa.Column("best_crop_id", sa.String(100)),
        sa.Column("model", sa.String(300)),
        sa.Column("created", sa.Double, nullable=False),
        sa.Column("updated", sa.Double, nullable=False),
        sa.Column("touched", sa.Double, nullable=False),
    )
    op.create_index("events_newest", "events", ["first_seen", "id"])
    op.create_index("events_newest_of_camera", "events", ["camera", "first_seen", "id"])
    op.create_index("events_by_state", "events", ["state", "touched"])
    op.create_index("events_by_description_state", "events", ["description_state", "touched"])
    op.create_table(
        "crops",
        sa.Column("crop_id", sa.String(100), primary_key=True),
        sa.Column("event_id", sa.String(200), sa.ForeignKey("events.id", ondelete="CASCADE"), nullable=False),
        sa.Column("kind", sa.String(10), nullable=False),
        sa.Column("sha256", sa.String(64)),
        sa.Column("time", sa.Double, nullable=False),
        sa.Column("frame_id", sa.BigInteger, nullable=False),
        sa.Column("box", sa.JSON, nullable=False),
        sa.Column("score", sa.Double, nullable=False),
        sa.Column("quality", sa.Double, nullable=False),
        sa.Column("width", sa.Integer, nullable=False),
        sa.Column("height", sa.Integer, nullable=False),
        sa.Column("frame_width", sa.Integer, nullable=False),
        sa.Column("frame_height", sa.Integer, nullable=False),
        sa.Column("deadline", sa.Double, nullable=False),
        sa.Column("outcome", sa.String(20), nullable=False),
        sa.Column("reason", sa.String(40), nullable=False),
        sa.Column("created", sa.Double, nullable=False),
    )
    op.create_index("crops_of_event", "crops", ["event_id"])
    op.create_index("crops_by_outcome", "crops", ["outcome", "deadline"])
    op.create_table(
        "descriptions",
        sa.Column("crop_id", sa.String(100), sa.ForeignKey("crops.crop_id", ondelete="CASCADE"), primary_key=True),
        sa.Column("text", sa.Text, nullable=False),
        sa.Column("model", sa.String(300), nullable=False),
        sa.Column("prompt_hash", sa.String(64), nullable=False),
        sa.Column("finish_reason", sa.String(20), nullable=False),
        sa.Column("prompt_tokens", sa.Integer, nullable=False),
        sa.Column("cached_tokens", sa.Integer, nullable=False),
        sa.Column("output_tokens", sa.Integer, nullable=False),
        sa.Column("first_token_s", sa.Double, nullable=False),
        sa.Column("total_s", sa.Double, nullable=False),
        sa.Column("created", sa.Double, nullable=False),
    )
