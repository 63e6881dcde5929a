"""The tables, as the newest migration leaves them.

costs             one row for a cost key; never changed, only stored, replaced or deleted; `structure` and `work`
                  relate a sub-graph to the same one at other sizes
cost_operators    which operator types a cost's sub-graph has, to filter by
regions           what a cost's sub-graph is, for people: operators, class of shapes, data type
atlas_cells       a summary of costs: who is fast at what; made again from costs at any time
atlas_state       which costs the summary has counted
hardware          what a hardware fingerprint stands for
tunings           plans that were found, with their reports; deleted with costs
observations      what parts of models took beside each other, with features to learn from; deleted with costs
gains             what searches promised and gained; deleted with costs
claims            who measures a key now; rows stay, so that fences only grow
jobs, job_events  what was asked for, and what happened
job_labels        words by which people find jobs again
model_forms       which normalized models an uploaded one became
queue_turns       when each owner's turn came last, for a fair queue
idempotency_keys  requests that were made, so that a repeated one is the same job
tokens            scopes and quotas; secrets only as hashes
blobs, models     which files exist, and who posted them
watches           artifacts that the server measures again and again
watch_runs        what each such measurement found

Times that people read are UTC with time zone. Leases are seconds of the database's own clock.
"""

from __future__ import annotations

from datetime import UTC, datetime

import sqlalchemy as sa
from sqlalchemy.engine.interfaces import Dialect

SCHEMA_REVISION = "0007"
VERSION_TABLE = "collage_schema"  # not Alembic's default: Optuna's tables may share the database

metadata = sa.MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s_%(referred_table_name)s",
        "pk": "pk_%(table_name)s",
    }
)


class UtcTime(sa.types.TypeDecorator[datetime]):
    """A moment with its time zone in Python on every engine (SQLite itself drops the zone)."""

    impl = sa.DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        return None if value is None else value.astimezone(UTC)

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


# SQLite numbers rows by itself only where the type is exactly INTEGER.
Number = sa.BigInteger().with_variant(sa.Integer(), "sqlite")

costs = sa.Table(
    "costs",
    metadata,
    sa.Column("digest", sa.String(64), primary_key=True),
    sa.Column("sub_graph", sa.Text, nullable=False),
    sa.Column("target", sa.Text, nullable=False),
    sa.Column("backend", sa.Text, nullable=False),
    sa.Column("backend_version", sa.Text, nullable=False),
    sa.Column("hardware", sa.Text, nullable=False),
    sa.Column("protocol", sa.Text, nullable=False),
    sa.Column("outcome", sa.String(16), nullable=False),
    sa.Column("latency_us", sa.Double),
    sa.Column("spread_us", sa.Double),
    sa.Column("samples_us", sa.JSON, nullable=False),
    sa.Column("node_times_us", sa.JSON, nullable=False),
    sa.Column("reason", sa.Text),
    sa.Column("error", sa.Double),
    sa.Column("compile_s", sa.Double),
    sa.Column("peak_memory_bytes", sa.BigInteger),
    sa.Column("yardstick_us", sa.Double),
    sa.Column("host", sa.Text, nullable=False),
    sa.Column("op_types", sa.Text, nullable=False),
    sa.Column("node_count", sa.Integer, nullable=False),
    sa.Column("model_sha256", sa.String(64)),
    sa.Column("versions", sa.JSON, nullable=False),
    sa.Column("created_at", UtcTime, nullable=False),
    sa.Column("structure", sa.String(64)),
    sa.Column("work", sa.Double),
    sa.CheckConstraint(
        "(outcome = 'measured' AND latency_us > 0) OR (outcome = 'infeasible' AND latency_us IS NULL)",
        name="outcome",
    ),
    # Each filter is an index that is already in the order of the pages (created_at, digest).
    sa.Index(None, "created_at", "digest"),
    sa.Index(None, "target", "created_at", "digest"),
    sa.Index(None, "backend", "backend_version", "created_at", "digest"),
    sa.Index(None, "backend_version", "created_at", "digest"),
    sa.Index(None, "hardware", "created_at", "digest"),
    sa.Index(None, "host", "created_at", "digest"),
    sa.Index(None, "model_sha256", "created_at", "digest"),
    sa.Index(None, "outcome", "created_at", "digest"),
    sa.Index(None, "sub_graph"),
    sa.Index(None, "structure", "target"),
)

cost_operators = sa.Table(
    "cost_operators",
    metadata,
    sa.Column(
        "digest", sa.String(64), sa.ForeignKey("costs.digest", ondelete="CASCADE"), primary_key=True
    ),
    sa.Column("op_type", sa.Text, primary_key=True),
    sa.Column("created_at", UtcTime, nullable=False),
    sa.Index(None, "op_type", "created_at", "digest"),
)

regions = sa.Table(
    "regions",
    metadata,
    sa.Column("sub_graph", sa.Text, primary_key=True),
    sa.Column("kind", sa.Text, nullable=False),
    sa.Column("shape_class", sa.Text, nullable=False),
    sa.Column("dtype", sa.Text, nullable=False),
)

atlas_cells = sa.Table(
    "atlas_cells",
    metadata,
    sa.Column("hardware", sa.Text, primary_key=True),
    sa.Column("kind", sa.Text, primary_key=True),
    sa.Column("shape_class", sa.Text, primary_key=True),
    sa.Column("dtype", sa.Text, primary_key=True),
    sa.Column("target", sa.Text, primary_key=True),
    sa.Column("regions", sa.Integer, nullable=False),
    sa.Column("fastest", sa.Integer, nullable=False),
    sa.Column("log_sum", sa.Double, nullable=False),
    sa.Column("log_square_sum", sa.Double, nullable=False),
    sa.Column("models", sa.JSON, nullable=False),
)

atlas_state = sa.Table(
    "atlas_state",
    metadata,
    sa.Column("name", sa.String(16), primary_key=True),
    sa.Column("counted_to", sa.Text, nullable=False),
    sa.Column("is_whole", sa.Boolean, nullable=False),
)

hardware = sa.Table(
    "hardware",
    metadata,
    sa.Column("fingerprint", sa.Text, primary_key=True),
    sa.Column("description", sa.JSON, nullable=False),
)

tunings = sa.Table(
    "tunings",
    metadata,
    sa.Column("digest", sa.String(64), primary_key=True),
    sa.Column("hardware", sa.Text, nullable=False),
    sa.Column("limit_s", sa.Double, nullable=False),
    sa.Column("plan", sa.Text, nullable=False),
    sa.Column("report", sa.JSON, nullable=False),
    sa.Column("created_at", UtcTime, nullable=False),
)

observations = sa.Table(
    "observations",
    metadata,
    sa.Column("hardware", sa.Text, primary_key=True),
    sa.Column("target", sa.Text, primary_key=True),
    sa.Column("sub_graph", sa.Text, primary_key=True),
    sa.Column("version", sa.Text, nullable=False),
    sa.Column("model", sa.String(64), nullable=False),
    sa.Column("is_whole", sa.Boolean, nullable=False),
    sa.Column("latency_us", sa.Double, nullable=False),
    sa.Column("edition", sa.Integer, nullable=False),
    sa.Column("features", sa.JSON, nullable=False),
    sa.Column("created_at", UtcTime, nullable=False),
    sa.Index(None, "hardware", "edition", "created_at"),
)

gains = sa.Table(
    "gains",
    metadata,
    sa.Column("hardware", sa.Text, primary_key=True),
    sa.Column("model", sa.String(64), primary_key=True),
    sa.Column("targets", sa.Text, primary_key=True),
    sa.Column("promised", sa.Double),
    sa.Column("gained", sa.Double, nullable=False),
    sa.Column("used", sa.JSON, nullable=False),
    sa.Column("created_at", UtcTime, nullable=False),
)

claims = sa.Table(
    "claims",
    metadata,
    sa.Column("digest", sa.String(64), primary_key=True),
    sa.Column("owner", sa.Text),
    sa.Column("fence", sa.BigInteger, nullable=False),
    sa.Column("lease_until", sa.Double, nullable=False),
    sa.Index(None, "owner"),
)

blobs = sa.Table(
    "blobs",
    metadata,
    sa.Column("sha256", sa.String(64), primary_key=True),
    sa.Column("size_bytes", sa.BigInteger, nullable=False),
    sa.Column("media_type", sa.Text, nullable=False),
    sa.Column("created_at", UtcTime, nullable=False),
    sa.Index(None, "created_at"),
)

models = sa.Table(
    "models",
    metadata,
    sa.Column("number", Number, primary_key=True, autoincrement=True),
    sa.Column("sha256", sa.String(64), sa.ForeignKey("blobs.sha256"), nullable=False),
    sa.Column("owner", sa.Text, nullable=False),
    sa.Column("name", sa.Text, nullable=False),
    sa.Column("created_at", UtcTime, nullable=False),
    sa.UniqueConstraint("owner", "sha256"),
    sa.Index(None, "sha256"),
    sa.Index(None, "owner", "number"),
)

tokens = sa.Table(
    "tokens",
    metadata,
    sa.Column("id", sa.String(32), primary_key=True),
    sa.Column("name", sa.Text, nullable=False),
    sa.Column("secret_sha256", sa.String(64), nullable=False),
    sa.Column("scopes", sa.Text, nullable=False),
    sa.Column("created_at", UtcTime, nullable=False),
    sa.Column("expires_at", UtcTime),
    sa.Column("revoked_at", UtcTime),
    sa.Column("active_jobs", sa.Integer),
    sa.Column("running_jobs", sa.Integer),
    sa.Column("stored_bytes", sa.BigInteger),
    sa.Column("requests_per_minute", sa.Integer),
)

jobs = sa.Table(
    "jobs",
    metadata,
    sa.Column("number", Number, primary_key=True, autoincrement=True),
    sa.Column("id", sa.String(32), nullable=False, unique=True),
    sa.Column("owner", sa.Text, nullable=False),
    sa.Column("kind", sa.String(16), nullable=False),
    sa.Column("state", sa.String(16), nullable=False),
    sa.Column("spec", sa.JSON, nullable=False),
    sa.Column("name", sa.Text, nullable=False),
    sa.Column("note", sa.Text),
    sa.Column("model_sha256", sa.String(64), sa.ForeignKey("blobs.sha256")),
    sa.Column("inputs_sha256", sa.String(64)),
    sa.Column("normalized_sha256", sa.String(64)),
    sa.Column("created_at", UtcTime, nullable=False),
    sa.Column("started_at", UtcTime),
    sa.Column("finished_at", UtcTime),
    sa.Column("worker", sa.Text),
    sa.Column("attempt", sa.Integer, nullable=False),
    sa.Column("lease_until", sa.Double),
    sa.Column("parked_until", sa.Double),
    sa.Column("webhook_url", sa.Text),
    sa.Column("webhook_state", sa.String(16)),
    sa.Column("webhook_due", sa.Double),
    sa.Column("webhook_tries", sa.Integer, nullable=False),
    sa.Column("cancel_requested", sa.Boolean, nullable=False),
    sa.Column("event_count", sa.Integer, nullable=False),
    sa.Column("progress", sa.JSON(none_as_null=True)),
    sa.Column("reason", sa.Text),
    sa.Column("artifact_sha256", sa.String(64), sa.ForeignKey("blobs.sha256")),
    sa.Column("report_sha256", sa.String(64), sa.ForeignKey("blobs.sha256")),
    sa.Column("plan_sha256", sa.String(64), sa.ForeignKey("blobs.sha256")),
    sa.CheckConstraint("state IN ('queued', 'running', 'done', 'failed', 'cancelled')", name="state"),
    sa.Index(None, "owner", "number"),
    sa.Index(None, "kind", "number"),
    sa.Index(None, "state", "number"),
    sa.Index(None, "owner", "state", "number"),
    sa.Index(None, "state", "lease_until"),
    sa.Index(None, "webhook_due"),
    sa.Index(None, "model_sha256"),
    sa.Index(None, "inputs_sha256"),
    sa.Index(None, "artifact_sha256"),
    sa.Index(None, "report_sha256"),
    sa.Index(None, "plan_sha256"),
)

job_labels = sa.Table(
    "job_labels",
    metadata,
    sa.Column("job_id", sa.String(32), sa.ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True),
    sa.Column("label", sa.Text, primary_key=True),
    sa.Index(None, "label", "job_id"),
)

model_forms = sa.Table(
    "model_forms",
    metadata,
    sa.Column("sha256", sa.String(64), primary_key=True),
    sa.Column("normalized_sha256", sa.String(64), primary_key=True),
)

job_events = sa.Table(
    "job_events",
    metadata,
    sa.Column("job_id", sa.String(32), sa.ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True),
    sa.Column("seq", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("kind", sa.Text, nullable=False),
    sa.Column("data", sa.JSON, nullable=False),
    sa.Column("created_at", UtcTime, nullable=False),
)

queue_turns = sa.Table(
    "queue_turns",
    metadata,
    sa.Column("owner", sa.Text, primary_key=True),
    sa.Column("turn", sa.BigInteger, nullable=False),
)

idempotency_keys = sa.Table(
    "idempotency_keys",
    metadata,
    sa.Column("owner", sa.Text, primary_key=True),
    sa.Column("key", sa.Text, primary_key=True),
    sa.Column("request_sha256", sa.String(64), nullable=False),
    sa.Column("job_id", sa.String(32), sa.ForeignKey("jobs.id", ondelete="CASCADE"), nullable=False),
    sa.Column("created_at", UtcTime, nullable=False),
    sa.Index(None, "created_at"),
    sa.Index(None, "job_id"),
)

watches = sa.Table(
    "watches",
    metadata,
    sa.Column("id", sa.String(32), primary_key=True),
    sa.Column("owner", sa.Text, nullable=False),
    sa.Column("name", sa.Text, nullable=False),
    sa.Column("created_at", UtcTime, nullable=False),
    sa.Column("job_id", sa.String(32), nullable=False),
    sa.Column("artifact_sha256", sa.String(64), sa.ForeignKey("blobs.sha256")),
    sa.Column("targets", sa.JSON, nullable=False),
    sa.Column("webhook_url", sa.Text),
    sa.Column("due", sa.Double),
    sa.Column("problem", sa.Text),
    sa.Index(None, "owner"),
    sa.Index(None, "due"),
    sa.Index(None, "artifact_sha256"),
)

watch_runs = sa.Table(
    "watch_runs",
    metadata,
    sa.Column("number", Number, primary_key=True, autoincrement=True),
    sa.Column(
        "watch_id", sa.String(32), sa.ForeignKey("watches.id", ondelete="CASCADE"), nullable=False
    ),
    sa.Column("job_id", sa.String(32), nullable=False),
    sa.Column("environment", sa.Text, nullable=False),
    sa.Column("created_at", UtcTime, nullable=False),
    sa.Column("verdict", sa.String(16), nullable=False),
    sa.Column("result", sa.JSON, nullable=False),
    sa.Column("measured", sa.JSON(none_as_null=True)),
    sa.Index(None, "watch_id", "number"),
)
