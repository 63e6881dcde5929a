"""Files that nobody registered go in time, and no others."""

from __future__ import annotations

import os
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import sqlalchemy as sa

from collage.cost_db.tables import blobs, jobs, models
from collage.service.storage.blobs import Blob, BlobMissingError
from tests.service.conftest import RunningServer, post_job

_DAY_S = 86400.0


def _path(server: RunningServer, name: str) -> Path:
    return server.settings.data_dir / "blobs" / name[:2] / name


def _write(server: RunningServer, name: str, days_ago: float) -> Path:
    path = _path(server, name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"left")
    written = time.time() - days_ago * _DAY_S
    os.utime(path, (written, written))
    return path


def _is_older(server: RunningServer, days: float) -> None:
    """Let everything that the database knows be so old."""
    then = datetime.now(UTC) - timedelta(days=days)
    for table in (blobs, models, jobs):
        statement = sa.update(table).values(created_at=then)
        server.services.database.connections.write(
            lambda connection, statement=statement: connection.execute(statement)
        )


def test_files_without_a_row_go_after_a_day(server: RunningServer) -> None:
    used = post_job(server).json()["model_sha256"]
    _is_older(server, days=10)
    os.utime(_path(server, used), (0, time.time() - 2 * _DAY_S))
    old = _write(server, "aa" * 32, days_ago=2)
    arriving = _write(server, f"{'bb' * 32}.upload-x_1", days_ago=2)
    young = _write(server, "cc" * 32, days_ago=0.5)
    # Of another database, which had this folder before.
    foreign = _write(server, "dd" * 32, days_ago=20)
    stranger = _write(server, "README", days_ago=2)
    server.services.retention.tidy()
    assert not old.exists() and not arriving.exists()
    assert young.exists() and foreign.exists() and stranger.exists()
    assert _path(server, used).exists()


@pytest.mark.slow
def test_bytes_that_are_deleted_meanwhile_are_stored_again(server: RunningServer) -> None:
    files, retention = server.services.files, server.services.retention
    tries = []

    def store(lost: int) -> Blob:
        blob = files.keep_bytes(b"plan")
        tries.append(blob)
        if len(tries) <= lost:  # by a request that has seen no row yet
            files.delete(blob.sha256)
        return blob

    kept = retention.keep(lambda: store(lost=2), "application/json")
    assert files.read(kept.sha256) == b"plan" and len(tries) == 3
    with pytest.raises(BlobMissingError, match="try again"):
        retention.keep(lambda: store(lost=99), "application/json")


def test_a_new_database_removes_nothing(server: RunningServer) -> None:
    old = _write(server, "aa" * 32, days_ago=2)
    server.services.retention.tidy()
    assert old.exists()
