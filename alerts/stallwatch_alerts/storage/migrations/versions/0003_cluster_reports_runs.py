"""Add tables for the reports from a multi-host run's agents, and for the agent that merges the reports."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    """Add tables without changing existing data."""
    op.create_table(
        "cluster_reports",
        sa.Column("agent", sa.String(200), primary_key=True),
        sa.Column("key", sa.String(64), nullable=False),
        sa.Column("host_id", sa.String(64), nullable=False),
        sa.Column("attempt", sa.Integer, nullable=False),
        sa.Column("number", sa.BigInteger, nullable=False),
        sa.Column("version", sa.Integer, nullable=False),
        sa.Column("updated_at", sa.Float, nullable=False),
        sa.Column("report", sa.LargeBinary, nullable=False),
        sa.Column("refused", sa.String(1000), nullable=False, server_default=""),
    )
    op.create_index("cluster_reports_by_key", "cluster_reports", ["key", "updated_at"])
    op.create_table(
        "cluster_runs",
        sa.Column("key", sa.String(64), primary_key=True),
        sa.Column("merger", sa.String(200), nullable=False),
        sa.Column("session", sa.Integer, nullable=False),
        sa.Column("merged_at", sa.Float, nullable=False),
        sa.Column("reply", sa.LargeBinary),
    )
