"""Alembic's entry: migrate over the connection, and in the transaction, that the caller opened."""

from __future__ import annotations

from alembic import context

from cost_db.tables import VERSION_TABLE, metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    version_table=VERSION_TABLE,
    render_as_batch=True,  # SQLite can alter a table only by copying it
)
context.run_migrations()
