"""Add message groups, pauses and rate limits of chats, silences, acknowledgements, and incident histories."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    """Add columns and tables without changing existing data."""
    for column in (
        sa.Column("not_before", sa.Float, nullable=False, server_default="0"),
        sa.Column("tried_at", sa.Float, nullable=False, server_default="0"),
        sa.Column("claim", sa.String(32), nullable=False, server_default=""),
        sa.Column("about", sa.String(400), nullable=False, server_default=""),
        sa.Column("escalation", sa.Integer, nullable=False, server_default="0"),
        sa.Column("group", sa.JSON),
        sa.Column("keys", sa.JSON),
    ):
        op.add_column("messages", column)
    op.create_index("messages_by_incident", "messages", ["about", "state"])
    op.create_table(
        "history",
        sa.Column("id", sa.Integer, primary_key=True, autoincrement=True),
        sa.Column("incident", sa.String(400), nullable=False),
        sa.Column("at", sa.Float, nullable=False),
        sa.Column("what", sa.String(20), nullable=False),
        sa.Column("who", sa.String(100), nullable=False),
        sa.Column("text", sa.String(1000), nullable=False),
    )
    op.create_index("history_by_incident", "history", ["incident", "id"])
    op.create_table(
        "acknowledgements",
        sa.Column("incident", sa.String(400), primary_key=True),
        sa.Column("opened_at", sa.Float, primary_key=True),
        sa.Column("at", sa.Float, nullable=False),
        sa.Column("who", sa.String(100), nullable=False),
    )
    op.create_table(
        "silences",
        sa.Column("id", sa.Integer, primary_key=True, autoincrement=True),
        sa.Column("starts_at", sa.Float, nullable=False),
        sa.Column("ends_at", sa.Float, nullable=False),
        sa.Column("run", sa.String(200), nullable=False),
        sa.Column("rule", sa.String(200), nullable=False),
        sa.Column("severity", sa.String(20), nullable=False),
        sa.Column("who", sa.String(100), nullable=False),
        sa.Column("comment", sa.String(1000), nullable=False),
    )
    op.create_table(
        "channels",
        sa.Column("channel", sa.String(64), primary_key=True),
        sa.Column("paused_until", sa.Float, nullable=False),
        sa.Column("paused_at", sa.Float, nullable=False),
        sa.Column("expired", sa.Integer, nullable=False),
    )
    op.create_table(
        "sends",
        sa.Column("id", sa.Integer, primary_key=True, autoincrement=True),
        sa.Column("channel", sa.String(64), nullable=False),
        sa.Column("at", sa.Float, nullable=False),
    )
    op.create_index("sends_by_channel", "sends", ["channel", "at"])
