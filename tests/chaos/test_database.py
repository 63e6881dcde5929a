"""PostgreSQL dies in the middle of a job, and comes back soon, or late, or never in time."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.chaos.conftest import Start, on
from tests.chaos.machine import PLAN
from tests.postgres import Postgres

pytestmark = [pytest.mark.chaos, pytest.mark.slow]


@on("postgresql")
def test_a_job_outlives_its_database(start: Start, postgres: Postgres, tmp_path: Path) -> None:
    machine = start()
    job = machine.post()
    machine.until_measured(job, 2)
    before = machine.costs()
    postgres.crash()
    try:
        time.sleep(3.0)  # longer than the job's lease
        assert machine.http.get("/healthz").status_code == 200
        assert machine.http.get("/readyz").status_code == 503
    finally:
        postgres.start()
    ended = machine.until_ended(job)
    assert ended["state"] == "done", ended["reason"]
    after = machine.costs()
    assert {key: after[key] for key in before} == before
    assert machine.plan(job) == PLAN
    assert machine.http.get("/readyz").status_code == 200
