"""What parts of models took beside each other, and what searches gained, to learn from."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "observations",
        sa.Column("hardware", sa.Text(), nullable=False),
        sa.Column("target", sa.Text(), nullable=False),
        sa.Column("sub_graph", sa.Text(), nullable=False),
        sa.Column("version", sa.Text(), nullable=False),
        sa.Column("model", sa.String(length=64), nullable=False),
        sa.Column("is_whole", sa.Boolean(), nullable=False),
        sa.Column("latency_us", sa.Double(), nullable=False),
        sa.Column("edition", sa.Integer(), nullable=False),
        sa.Column("features", sa.JSON(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("hardware", "target", "sub_graph", name="pk_observations"),
    )
    op.create_index(
        "ix_observations_hardware_edition_created_at",
        "observations",
        ["hardware", "edition", "created_at"],
    )
    op.create_table(
        "gains",
        sa.Column("hardware", sa.Text(), nullable=False),
        sa.Column("model", sa.String(length=64), nullable=False),
        sa.Column("targets", sa.Text(), nullable=False),
        sa.Column("promised", sa.Double()),
        sa.Column("gained", sa.Double(), nullable=False),
        sa.Column("used", sa.JSON(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("hardware", "model", "targets", name="pk_gains"),
    )
