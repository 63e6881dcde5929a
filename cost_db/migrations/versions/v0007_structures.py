"""What sub-graphs are without their sizes, and how much work they are at these."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("costs", sa.Column("structure", sa.String(length=64)))
    op.add_column("costs", sa.Column("work", sa.Double()))
    op.create_index("ix_costs_structure_target", "costs", ["structure", "target"])
