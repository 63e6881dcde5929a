"""Alembic's migrations, run by `cost_db.schema.upgrade` and by nothing else."""
