"""Kinds of jobs, watched artifacts with their history, and a summary of costs that grows with them."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column(
        "jobs", sa.Column("kind", sa.String(length=16), nullable=False, server_default="tune")
    )
    op.create_index("ix_jobs_kind_number", "jobs", ["kind", "number"])
    _make_the_summary_anew()
    op.create_table(
        "watches",
        sa.Column("id", sa.String(length=32), nullable=False),
        sa.Column("owner", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("job_id", sa.String(length=32), nullable=False),
        sa.Column("artifact_sha256", sa.String(length=64)),
        sa.Column("targets", sa.JSON(), nullable=False),
        sa.Column("webhook_url", sa.Text()),
        sa.Column("due", sa.Double()),
        sa.Column("problem", sa.Text()),
        sa.ForeignKeyConstraint(
            ["artifact_sha256"], ["blobs.sha256"], name="fk_watches_artifact_sha256_blobs"
        ),
        sa.PrimaryKeyConstraint("id", name="pk_watches"),
    )
    op.create_index("ix_watches_owner", "watches", ["owner"])
    op.create_index("ix_watches_due", "watches", ["due"])
    op.create_index("ix_watches_artifact_sha256", "watches", ["artifact_sha256"])
    op.create_table(
        "watch_runs",
        sa.Column(
            "number",
            sa.BigInteger().with_variant(sa.Integer(), "sqlite"),
            autoincrement=True,
            nullable=False,
        ),
        sa.Column("watch_id", sa.String(length=32), nullable=False),
        sa.Column("job_id", sa.String(length=32), nullable=False),
        sa.Column("environment", sa.Text(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("verdict", sa.String(length=16), nullable=False),
        sa.Column("result", sa.JSON(), nullable=False),
        sa.Column("measured", sa.JSON(none_as_null=True)),
        sa.ForeignKeyConstraint(
            ["watch_id"], ["watches.id"], name="fk_watch_runs_watch_id_watches", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("number", name="pk_watch_runs"),
    )
    op.create_index("ix_watch_runs_watch_id_number", "watch_runs", ["watch_id", "number"])


def _make_the_summary_anew() -> None:
    """Empty tables; costs of an older database are counted later, some at a time."""
    op.create_index("ix_costs_sub_graph", "costs", ["sub_graph"])
    op.drop_table("atlas_cells")
    op.drop_table("atlas_state")
    op.create_table(
        "atlas_cells",
        sa.Column("hardware", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("shape_class", sa.Text(), nullable=False),
        sa.Column("dtype", sa.Text(), nullable=False),
        sa.Column("target", sa.Text(), nullable=False),
        sa.Column("regions", sa.Integer(), nullable=False),
        sa.Column("fastest", sa.Integer(), nullable=False),
        sa.Column("log_sum", sa.Double(), nullable=False),
        sa.Column("log_square_sum", sa.Double(), nullable=False),
        sa.Column("models", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint(
            "hardware", "kind", "shape_class", "dtype", "target", name="pk_atlas_cells"
        ),
    )
    op.create_table(
        "atlas_state",
        sa.Column("name", sa.String(length=16), nullable=False),
        sa.Column("counted_to", sa.Text(), nullable=False),
        sa.Column("is_whole", sa.Boolean(), nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_atlas_state"),
    )
    connection = op.get_bind()
    costs = sa.table("costs", sa.column("digest", sa.String()))
    state = sa.table(
        "atlas_state",
        sa.column("name", sa.String()),
        sa.column("counted_to", sa.Text()),
        sa.column("is_whole", sa.Boolean()),
    )
    is_empty = connection.execute(sa.select(costs.c.digest).limit(1)).first() is None
    values = {"name": "cells", "counted_to": "", "is_whole": is_empty}
    connection.execute(sa.insert(state).values(values))
