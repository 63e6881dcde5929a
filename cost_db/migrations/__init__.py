"""Alembic's migrations, run by `collage.cost_db.schema.upgrade` and by nothing else."""
