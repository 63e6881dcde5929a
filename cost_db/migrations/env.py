"""Alembic's entry: migrate over the connection, and in the transaction, that the caller opened."""

from __future__ import annotations

from alembic import context

from collage.cost_db.tables import VERSION_TABLE

# Without target_metadata: its naming convention would change the names that migrations spell out.
context.configure(
    connection=context.config.attributes["connection"],
    version_table=VERSION_TABLE,
    render_as_batch=True,  # SQLite can alter a table only by copying it
)
context.run_migrations()
