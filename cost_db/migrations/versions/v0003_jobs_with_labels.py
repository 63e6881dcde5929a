"""Names, labels, notes, sample inputs and webhooks of jobs; uploaded models and what they became."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

_NAME_CHARACTERS = 200


def upgrade() -> None:
    for column in (
        sa.Column("name", sa.Text(), nullable=False, server_default=""),
        sa.Column("note", sa.Text()),
        sa.Column("inputs_sha256", sa.String(length=64)),
        sa.Column("normalized_sha256", sa.String(length=64)),
        sa.Column("parked_until", sa.Double()),
        sa.Column("webhook_url", sa.Text()),
        sa.Column("webhook_state", sa.String(length=16)),
        sa.Column("webhook_due", sa.Double()),
        sa.Column("webhook_tries", sa.Integer(), nullable=False, server_default="0"),
    ):
        op.add_column("jobs", column)
    op.create_index("ix_jobs_webhook_due", "jobs", ["webhook_due"])
    op.create_index("ix_jobs_inputs_sha256", "jobs", ["inputs_sha256"])
    op.create_table(
        "job_labels",
        sa.Column("job_id", sa.String(length=32), nullable=False),
        sa.Column("label", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(
            ["job_id"], ["jobs.id"], name="fk_job_labels_job_id_jobs", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("job_id", "label", name="pk_job_labels"),
    )
    op.create_index("ix_job_labels_label_job_id", "job_labels", ["label", "job_id"])
    op.create_table(
        "model_forms",
        sa.Column("sha256", sa.String(length=64), nullable=False),
        sa.Column("normalized_sha256", sa.String(length=64), nullable=False),
        sa.PrimaryKeyConstraint("sha256", "normalized_sha256", name="pk_model_forms"),
    )
    _fill_from_specs()


def _fill_from_specs() -> None:
    """Name and sample inputs stood in the specification alone."""
    jobs = sa.table(
        "jobs",
        sa.column("number", sa.Integer()),
        sa.column("spec", sa.JSON()),
        sa.column("name", sa.Text()),
        sa.column("inputs_sha256", sa.String()),
    )
    connection = op.get_bind()
    for row in connection.execute(sa.select(jobs.c.number, jobs.c.spec)).all():
        spec = row.spec if isinstance(row.spec, dict) else {}
        name, inputs = spec.get("name"), spec.get("inputs_sha256")
        values = {
            "name": name[:_NAME_CHARACTERS] if isinstance(name, str) else "",
            "inputs_sha256": inputs if isinstance(inputs, str) and len(inputs) == 64 else None,
        }
        connection.execute(sa.update(jobs).where(jobs.c.number == row.number).values(values))
