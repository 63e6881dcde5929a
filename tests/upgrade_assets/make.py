"""Freeze the newest schema, full of rows, as SQLite file and PostgreSQL dump: once for a release."""

from __future__ import annotations

import sqlite3
from dataclasses import replace
from pathlib import Path

from collage.cost_db.costs.observations import Gain, Observation, ObservationStore
from collage.cost_db.database import CostDatabase
from collage.cost_db.jobs.jobs import JobResult, JobStore
from collage.cost_db.stored_models import BlobRegister, ModelStore
from collage.cost_db.tables import SCHEMA_REVISION
from collage.cost_db.tokens import Quotas, TokenStore
from collage.cost_db.tunings import TuningRecord, TuningStore
from tests.cost_db.builders import START, infeasible, key, measured, store_all
from tests.postgres import Postgres

COSTS = (infeasible(3, created_at=measured(3).created_at), measured(2), measured(1))  # newest first
SIZED = tuple(replace(row, structure="ab" * 32, work=0.1 + 0.2) for row in COSTS)
CLAIMED = key(4)
BLOB = "ef" * 32
TUNING = TuningRecord("cd" * 32, "hardware-a", 150.0, "{}", {"latency_us": 0.1 + 0.2}, START)

OBSERVATION = Observation(
    "hardware-a", "mnn", "ab" * 32, "3.6", "cd" * 32, False, 0.1 + 0.2, 1, (0.5, 20.0), START
)
GAIN = Gain("hardware-a", "cd" * 32, "mnn, openvino", 0.1, 0.02, ("mnn",), START)


def fill(url: str) -> None:
    """Write rows into every table, by the program itself."""
    database = CostDatabase(url)
    store_all(database, *SIZED)
    database.claim([CLAIMED], "dead owner", 0.0)
    TuningStore(database).keep(TUNING)
    ObservationStore(database.connections).keep([OBSERVATION])
    ObservationStore(database.connections).keep_gain(GAIN)
    token, _ = TokenStore(database).create("team", ["read", "tune"], quotas=Quotas(active_jobs=3))
    BlobRegister(database).add(BLOB, 1_000, "application/octet-stream")
    ModelStore(database).add(BLOB, token.id, "resnet50")
    jobs = JobStore(database)
    done = jobs.create({"targets": ["openvino"]}, token.id, "key-1", model_sha256=BLOB)
    jobs.next_queued("worker", 60.0)
    jobs.append_event(done.id, "progress", {"done": 1}, attempt=1, progress={"done": 1})
    jobs.finish(done.id, "done", attempt=1, result=JobResult(artifact=BLOB))
    jobs.create({"targets": ["mnn"]}, token.id, "key-2")
    database.close()


def main() -> None:
    folder = Path(__file__).parent
    file = folder / f"{SCHEMA_REVISION}.sqlite"
    dump = folder / f"{SCHEMA_REVISION}.postgresql.sql"
    if file.exists() or dump.exists():
        raise SystemExit(f"revision {SCHEMA_REVISION} is frozen already")
    fill(f"sqlite:///{file}")
    with sqlite3.connect(file) as connection:
        connection.execute("PRAGMA journal_mode = DELETE")  # one file, without a WAL beside it
    connection.close()
    postgres = Postgres()
    url = postgres.new_database()
    fill(url)
    # Lines with a backslash are commands of psql itself, not SQL.
    lines = postgres.dump(url).splitlines()
    dump.write_text(
        "\n".join(line for line in lines if not line.startswith("\\")) + "\n", encoding="utf-8"
    )
    postgres.close()


if __name__ == "__main__":
    main()
