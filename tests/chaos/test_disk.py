"""The disk is full: the job ends with that reason, the server lives, and works again with free disk space."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chaos.conftest import Start
from tests.chaos.machine import PLAN
from tests.postgres import Postgres

pytestmark = [pytest.mark.chaos, pytest.mark.slow]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 8 MiB."""
    if os.geteuid() != 0:
        pytest.skip("only root may mount a small disk")
    disk = tmp_path / "disk"
    disk.mkdir()
    options = ["mount", "-t", "tmpfs", "-o", "size=8m", "none", str(disk)]
    done = subprocess.run(options, capture_output=True, encoding="utf-8", check=False)
    if done.returncode:
        pytest.skip(f"no disk can be mounted here: {done.stderr.strip()}")
    yield disk
    subprocess.run(["umount", "--lazy", str(disk)], check=True)


@pytest.fixture
def database_url(postgres: Postgres) -> str:
    """Elsewhere, so that the job's end can be written down although the disk is full."""
    return postgres.new_database()


def test_a_full_disk_ends_a_job_and_not_the_server(start: Start, small_disk: Path) -> None:
    machine = start(DATA_DIR=small_disk / "data")
    job = machine.post()
    machine.until_measured(job, 2)
    before = machine.costs()
    filler = small_disk / "filler"
    with filler.open("wb", buffering=0) as file, pytest.raises(OSError, match="No space left"):
        while True:
            file.write(bytes(4096))
    refused = machine.http.post("/v1/models", files={"model": ("m.onnx", bytes(1 << 20))})
    assert refused.status_code == 507, refused.text
    assert "space" in refused.json()["detail"]
    ended = machine.until_ended(job)
    assert ended["state"] == "failed" and "No space left" in ended["reason"], ended["reason"]
    filler.unlink()
    again = machine.post()
    assert machine.until_ended(again)["state"] == "done"
    after = machine.costs()
    assert {key: after[key] for key in before} == before
    assert machine.plan(again) == PLAN
