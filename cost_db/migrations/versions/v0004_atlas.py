"""What measured sub-graphs are, and a summary of who is fast at what."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "regions",
        sa.Column("sub_graph", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("shape_class", sa.Text(), nullable=False),
        sa.Column("dtype", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("sub_graph", name="pk_regions"),
    )
    op.create_table(
        "atlas_cells",
        sa.Column("hardware", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("shape_class", sa.Text(), nullable=False),
        sa.Column("dtype", sa.Text(), nullable=False),
        sa.Column("target", sa.Text(), nullable=False),
        sa.Column("regions", sa.Integer(), nullable=False),
        sa.Column("models", sa.Integer(), nullable=False),
        sa.Column("fastest", sa.Integer(), nullable=False),
        sa.Column("log_sum", sa.Double(), nullable=False),
        sa.Column("log_square_sum", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint(
            "hardware", "kind", "shape_class", "dtype", "target", name="pk_atlas_cells"
        ),
    )
    op.create_table(
        "atlas_state",
        sa.Column("name", sa.String(length=16), nullable=False),
        sa.Column("known_until", sa.DateTime(timezone=True), nullable=False),
        sa.Column("made_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_atlas_state"),
    )
