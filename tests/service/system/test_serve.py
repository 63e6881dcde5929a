"""Settings that cannot be meant are one line on stderr, before anything listens."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from collage.backends.sandbox.run import protections
from collage.service.app import _tell_protections
from collage.service.settings import Settings
from collage.service.telemetry import logs


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("TLS_KEY", "key", "COLLAGE_TLS_CERTIFICATE and COLLAGE_TLS_KEY need each other"),
        ("SERVER_CORES", "4096", "COLLAGE_SERVER_CORES is 4096, and of"),
    ],
)
def test_a_wrong_setting_is_one_line(name: str, value: str, said: str, tmp_path: Path) -> None:
    environment = {**os.environ, f"COLLAGE_{name}": value, "COLLAGE_DATA_DIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-m", "collage", "serve"],
        env=environment,
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
    assert done.returncode == 2
    last = done.stderr.splitlines()[-1]
    assert last.startswith(f"collage: {said}")


@pytest.mark.slow
def test_garbage_collector_skips_objects_that_live_with_the_server(tmp_path: Path) -> None:
    """In a process of its own: what is frozen there stays so for the life of the process."""
    program = (
        "import gc\n"
        "from starlette.testclient import TestClient\n"
        "from collage.service.app import _spare_collector, create_app\n"
        "from collage.service.settings import Settings\n"
        "before = gc.get_threshold()[0]\n"
        "with TestClient(create_app(Settings(), on_started=_spare_collector)):\n"
        "    assert gc.get_freeze_count() > 10_000, gc.get_freeze_count()\n"
        "    assert gc.get_threshold()[0] > before\n"
    )
    environment = {**os.environ, "COLLAGE_DATA_DIR": str(tmp_path), "COLLAGE_RUNNERS": "0"}
    environment["COLLAGE_DATABASE_URL"] = f"sqlite:///{tmp_path / 'costs.db'}"
    subprocess.run([sys.executable, "-c", program], env=environment, check=True)


def test_server_says_what_protects_its_children(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure("info", "text")
    _tell_protections()
    said = capsys.readouterr().err
    assert protections().holding() in said
    assert "GiB of memory" in said
    missing = protections().missing()
    assert missing is None or missing in said


def test_every_job_has_an_end_by_default() -> None:
    assert 0 < Settings().job_time_limit_s <= 24 * 3600
