"""Create the tables for incidents, messages, and notifications.

Some databases already contain these tables, but no migration version.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Create the tables that are missing."""
    op.create_table(
        "incidents",
        sa.Column("id", sa.String(400), primary_key=True),
        sa.Column("run", sa.String(200), nullable=False),
        sa.Column("kind", sa.String(20), nullable=False),
        sa.Column("rule", sa.String(200), nullable=False),
        sa.Column("severity", sa.String(20), nullable=False),
        sa.Column("status", sa.String(20), nullable=False),
        sa.Column("episode", sa.Integer, nullable=False),
        sa.Column("opened_at", sa.Float, nullable=False),
        sa.Column("updated_at", sa.Float, nullable=False),
        sa.Column("resolved_at", sa.Float),
        sa.Column("payload", sa.JSON, nullable=False),
        if_not_exists=True,
    )
    op.create_index("incidents_by_run", "incidents", ["run", "opened_at"], if_not_exists=True)
    op.create_table(
        "messages",
        sa.Column("id", sa.Integer, primary_key=True, autoincrement=True),
        sa.Column("channel", sa.String(64), nullable=False),
        sa.Column("name", sa.String(300), nullable=False),
        sa.Column("run", sa.String(200), nullable=False),
        sa.Column("created_at", sa.Float, nullable=False),
        sa.Column("notice", sa.JSON, nullable=False),
        sa.Column("state", sa.String(12), nullable=False),
        sa.Column("attempts", sa.Integer, nullable=False),
        sa.Column("next_at", sa.Float, nullable=False),
        sa.Column("claimed_until", sa.Float, nullable=False),
        sa.Column("sent_at", sa.Float),
        sa.Column("reason", sa.String(1000), nullable=False),
        if_not_exists=True,
    )
    op.create_index("messages_by_channel", "messages", ["channel", "state", "id"], if_not_exists=True)
    op.create_index("messages_by_run", "messages", ["run", "id"], if_not_exists=True)
    op.create_table(
        "told",
        sa.Column("channel", sa.String(64), primary_key=True),
        sa.Column("key", sa.String(500), primary_key=True),
        sa.Column("at", sa.Float, nullable=False),
        if_not_exists=True,
    )
