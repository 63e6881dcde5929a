"""Which schema a database has, and how it gets the newest.

Invariant: a migration happens wholly or not at all, and one at a time.
"""

from __future__ import annotations

from pathlib import Path

import sqlalchemy as sa

from collage.cost_db.connections import Connections
from collage.cost_db.errors import SchemaError
from collage.cost_db.tables import SCHEMA_REVISION, VERSION_TABLE


def current_revision(connection: sa.Connection) -> str | None:
    """The revision of this database's tables, or None for a database without any of ours."""
    if not sa.inspect(connection).has_table(VERSION_TABLE):
        return None
    revision: str | None = connection.execute(
        sa.text(f"SELECT version_num FROM {VERSION_TABLE}")
    ).scalar_one_or_none()
    return revision


def upgrade(connections: Connections) -> bool:
    """Bring the tables to the newest revision; False where nothing had to change.

    Raises:
        SchemaError: the tables are newer than this program.
    """
    return connections.write(lambda connection: _upgrade(connections, connection))


def ensure(connections: Connections) -> None:
    """Make sure that the tables are those of this program: SQLite is upgraded, PostgreSQL only checked.

    Raises:
        SchemaError: the message says what to do.
    """
    revision = connections.read(current_revision)
    if revision == SCHEMA_REVISION:
        return
    if connections.is_sqlite:
        upgrade(connections)
        return
    if revision in known_revisions() | {None}:
        found = "no tables yet" if revision is None else f"tables of revision {revision}"
        raise SchemaError(
            f"database {connections.url} has {found}, and this program needs {SCHEMA_REVISION}: "
            "make a backup, then run 'collage db upgrade'"
        )
    raise _too_new(connections, revision)


def known_revisions() -> set[str | None]:
    """Every revision that this program has a migration for."""
    from alembic.script import ScriptDirectory  # only here: it takes long to import

    return {script.revision for script in ScriptDirectory(str(_folder())).walk_revisions()}


def _upgrade(connections: Connections, connection: sa.Connection) -> bool:
    connections.serialize(connection, "schema")
    revision = current_revision(
        connection
    )  # again, under the lock: another process may have been first
    if revision == SCHEMA_REVISION:
        return False
    if revision not in known_revisions() | {None}:
        raise _too_new(connections, revision)
    from alembic import command
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(_folder()).replace("%", "%%"))
    config.attributes["connection"] = connection
    command.upgrade(config, "head")
    return True


def _folder() -> Path:
    return Path(__file__).parent / "migrations"


def _too_new(connections: Connections, revision: str | None) -> SchemaError:
    return SchemaError(
        f"database {connections.url} has tables of revision {revision}, which this program "
        f"(revision {SCHEMA_REVISION}) does not know: upgrade collage-tuner"
    )
