"""What monitoring is told when the database's file goes away under a running server."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from collage.cost_db.errors import DatabaseUnavailableError
from tests.service.conftest import RunningServer, post_job


def _database(server: RunningServer) -> Path:
    return Path(server.settings.database_url.removeprefix("sqlite:///"))


@pytest.mark.slow
@pytest.mark.parametrize("how", ["deleted", "replaced"])
def test_a_database_file_that_goes_away_is_noticed(
    server: RunningServer, tmp_path: Path, server_log: Path, how: str
) -> None:
    job = post_job(server).json()["links"]["self"]
    file = _database(server)
    kept = tmp_path / "kept.db"
    file.rename(kept)
    if how == "replaced":
        shutil.copyfile(kept, file)
    assert server.http.get("/healthz").status_code == 200
    assert server.http.get("/readyz").status_code == 503
    for answer in (post_job(server), server.http.get(job), server.http.delete(job)):
        assert answer.status_code == 503 and answer.headers["Retry-After"]
        assert answer.json()["type"] == "urn:collage:problem:database-unavailable"
        assert str(tmp_path) not in answer.text
    assert f"was {how} while it was open" in server_log.read_text(encoding="utf-8")
    assert how == "replaced" or not file.exists(), "an empty database was made in its place"
    kept.replace(file)
    assert server.http.get("/readyz").status_code == 200
    assert server.http.get(job).json()["state"] == "queued"


def test_a_write_into_a_file_deleted_meanwhile_is_refused(server: RunningServer) -> None:
    file = _database(server)

    def work(connection: object) -> None:
        file.unlink()

    with pytest.raises(DatabaseUnavailableError):
        server.services.database.connections.write(work)
