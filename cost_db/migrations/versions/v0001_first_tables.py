"""The first tables."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "blobs",
        sa.Column("sha256", sa.String(length=64), nullable=False),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False),
        sa.Column("media_type", sa.Text(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("sha256", name="pk_blobs"),
    )
    op.create_index("ix_blobs_created_at", "blobs", ["created_at"])
    op.create_table(
        "claims",
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("owner", sa.Text(), nullable=True),
        sa.Column("fence", sa.BigInteger(), nullable=False),
        sa.Column("lease_until", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("digest", name="pk_claims"),
    )
    op.create_index("ix_claims_owner", "claims", ["owner"])
    op.create_table(
        "costs",
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("sub_graph", sa.Text(), nullable=False),
        sa.Column("target", sa.Text(), nullable=False),
        sa.Column("backend", sa.Text(), nullable=False),
        sa.Column("backend_version", sa.Text(), nullable=False),
        sa.Column("hardware", sa.Text(), nullable=False),
        sa.Column("protocol", sa.Text(), nullable=False),
        sa.Column("outcome", sa.String(length=16), nullable=False),
        sa.Column("latency_us", sa.Double(), nullable=True),
        sa.Column("spread_us", sa.Double(), nullable=True),
        sa.Column("samples_us", sa.JSON(), nullable=False),
        sa.Column("node_times_us", sa.JSON(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("error", sa.Double(), nullable=True),
        sa.Column("compile_s", sa.Double(), nullable=True),
        sa.Column("peak_memory_bytes", sa.BigInteger(), nullable=True),
        sa.Column("yardstick_us", sa.Double(), nullable=True),
        sa.Column("host", sa.Text(), nullable=False),
        sa.Column("op_types", sa.Text(), nullable=False),
        sa.Column("node_count", sa.Integer(), nullable=False),
        sa.Column("model_sha256", sa.String(length=64), nullable=True),
        sa.Column("versions", sa.JSON(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.CheckConstraint(
            "(outcome = 'measured' AND latency_us > 0)"
            " OR (outcome = 'infeasible' AND latency_us IS NULL)",
            name="ck_costs_outcome",
        ),
        sa.PrimaryKeyConstraint("digest", name="pk_costs"),
    )
    op.create_index(
        "ix_costs_backend_backend_version_created_at_digest",
        "costs",
        ["backend", "backend_version", "created_at", "digest"],
    )
    op.create_index(
        "ix_costs_backend_version_created_at_digest",
        "costs",
        ["backend_version", "created_at", "digest"],
    )
    op.create_index("ix_costs_created_at_digest", "costs", ["created_at", "digest"])
    op.create_index(
        "ix_costs_hardware_created_at_digest", "costs", ["hardware", "created_at", "digest"]
    )
    op.create_index("ix_costs_host_created_at_digest", "costs", ["host", "created_at", "digest"])
    op.create_index(
        "ix_costs_model_sha256_created_at_digest", "costs", ["model_sha256", "created_at", "digest"]
    )
    op.create_index("ix_costs_outcome_created_at_digest", "costs", ["outcome", "created_at", "digest"])
    op.create_index("ix_costs_target_created_at_digest", "costs", ["target", "created_at", "digest"])
    op.create_table(
        "hardware",
        sa.Column("fingerprint", sa.Text(), nullable=False),
        sa.Column("description", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("fingerprint", name="pk_hardware"),
    )
    op.create_table(
        "queue_turns",
        sa.Column("owner", sa.Text(), nullable=False),
        sa.Column("turn", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("owner", name="pk_queue_turns"),
    )
    op.create_table(
        "tokens",
        sa.Column("id", sa.String(length=32), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("secret_sha256", sa.String(length=64), nullable=False),
        sa.Column("scopes", sa.Text(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("revoked_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("active_jobs", sa.Integer(), nullable=True),
        sa.Column("running_jobs", sa.Integer(), nullable=True),
        sa.Column("stored_bytes", sa.BigInteger(), nullable=True),
        sa.Column("requests_per_minute", sa.Integer(), nullable=True),
        sa.PrimaryKeyConstraint("id", name="pk_tokens"),
    )
    op.create_table(
        "cost_operators",
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("op_type", sa.Text(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["digest"], ["costs.digest"], name="fk_cost_operators_digest_costs", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("digest", "op_type", name="pk_cost_operators"),
    )
    op.create_index(
        "ix_cost_operators_op_type_created_at_digest",
        "cost_operators",
        ["op_type", "created_at", "digest"],
    )
    op.create_table(
        "jobs",
        sa.Column(
            "number",
            sa.BigInteger().with_variant(sa.Integer(), "sqlite"),
            autoincrement=True,
            nullable=False,
        ),
        sa.Column("id", sa.String(length=32), nullable=False),
        sa.Column("owner", sa.Text(), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("spec", sa.JSON(), nullable=False),
        sa.Column("model_sha256", sa.String(length=64), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("finished_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("worker", sa.Text(), nullable=True),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("lease_until", sa.Double(), nullable=True),
        sa.Column("cancel_requested", sa.Boolean(), nullable=False),
        sa.Column("event_count", sa.Integer(), nullable=False),
        sa.Column("progress", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("artifact_sha256", sa.String(length=64), nullable=True),
        sa.Column("report_sha256", sa.String(length=64), nullable=True),
        sa.Column("plan_sha256", sa.String(length=64), nullable=True),
        sa.CheckConstraint(
            "state IN ('queued', 'running', 'done', 'failed', 'cancelled')", name="ck_jobs_state"
        ),
        sa.ForeignKeyConstraint(
            ["artifact_sha256"], ["blobs.sha256"], name="fk_jobs_artifact_sha256_blobs"
        ),
        sa.ForeignKeyConstraint(["model_sha256"], ["blobs.sha256"], name="fk_jobs_model_sha256_blobs"),
        sa.ForeignKeyConstraint(["plan_sha256"], ["blobs.sha256"], name="fk_jobs_plan_sha256_blobs"),
        sa.ForeignKeyConstraint(
            ["report_sha256"], ["blobs.sha256"], name="fk_jobs_report_sha256_blobs"
        ),
        sa.PrimaryKeyConstraint("number", name="pk_jobs"),
        sa.UniqueConstraint("id", name="uq_jobs_id"),
    )
    op.create_index("ix_jobs_artifact_sha256", "jobs", ["artifact_sha256"])
    op.create_index("ix_jobs_model_sha256", "jobs", ["model_sha256"])
    op.create_index("ix_jobs_owner_number", "jobs", ["owner", "number"])
    op.create_index("ix_jobs_owner_state_number", "jobs", ["owner", "state", "number"])
    op.create_index("ix_jobs_plan_sha256", "jobs", ["plan_sha256"])
    op.create_index("ix_jobs_report_sha256", "jobs", ["report_sha256"])
    op.create_index("ix_jobs_state_lease_until", "jobs", ["state", "lease_until"])
    op.create_index("ix_jobs_state_number", "jobs", ["state", "number"])
    op.create_table(
        "models",
        sa.Column(
            "number",
            sa.BigInteger().with_variant(sa.Integer(), "sqlite"),
            autoincrement=True,
            nullable=False,
        ),
        sa.Column("sha256", sa.String(length=64), nullable=False),
        sa.Column("owner", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["sha256"], ["blobs.sha256"], name="fk_models_sha256_blobs"),
        sa.PrimaryKeyConstraint("number", name="pk_models"),
        sa.UniqueConstraint("owner", "sha256", name="uq_models_owner_sha256"),
    )
    op.create_index("ix_models_owner_number", "models", ["owner", "number"])
    op.create_index("ix_models_sha256", "models", ["sha256"])
    op.create_table(
        "idempotency_keys",
        sa.Column("owner", sa.Text(), nullable=False),
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("request_sha256", sa.String(length=64), nullable=False),
        sa.Column("job_id", sa.String(length=32), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["job_id"], ["jobs.id"], name="fk_idempotency_keys_job_id_jobs", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("owner", "key", name="pk_idempotency_keys"),
    )
    op.create_index("ix_idempotency_keys_created_at", "idempotency_keys", ["created_at"])
    op.create_index("ix_idempotency_keys_job_id", "idempotency_keys", ["job_id"])
    op.create_table(
        "job_events",
        sa.Column("job_id", sa.String(length=32), nullable=False),
        sa.Column("seq", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("data", sa.JSON(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["job_id"], ["jobs.id"], name="fk_job_events_job_id_jobs", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("job_id", "seq", name="pk_job_events"),
    )
