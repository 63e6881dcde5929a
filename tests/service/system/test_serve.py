"""Settings that cannot be meant are one line on stderr, before anything listens."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import structlog.testing

from collage.backends.sandbox.run import protections
from collage.service.app import _tell_protections
from collage.service.settings import Settings, check_names, read_settings


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("TLS_KEY", "key", "COLLAGE_TLS_CERTIFICATE and COLLAGE_TLS_KEY need each other"),
        ("SERVER_CORES", "4096", "COLLAGE_SERVER_CORES is 4096, and of"),
        ("RUNERS", "2", "COLLAGE_RUNERS is no setting; COLLAGE_RUNNERS is probably meant"),
        ("ALLOWED_HOSTS", "tuner.example.org", "COLLAGE_ALLOWED_HOSTS: write a JSON list, such as"),
        ("ALLOWED_HOSTS", '["a.org:8000"]', "COLLAGE_ALLOWED_HOSTS: Value error, 'a.org:8000' is no"),
        ("RUNNERS", "many", "COLLAGE_RUNNERS: Input should be a valid integer"),
        ("HOST", "no.such.host.invalid", "cannot listen on no.such.host.invalid:"),
        ("DATABASE_URL", "mysql://a/b", "databases of kind 'mysql'"),
    ],
)
def test_a_wrong_setting_is_one_line(name: str, value: str, said: str, tmp_path: Path) -> None:
    environment = {**os.environ, **_data_in(tmp_path), f"COLLAGE_{name}": value}
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
    assert "serves on" not in done.stderr and "Traceback" not in done.stderr


@pytest.mark.slow
def test_a_port_in_use_is_one_line(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        done = subprocess.run(
            [sys.executable, "-m", "collage", "serve", "--port", port],
            env={**os.environ, **_data_in(tmp_path)},
            capture_output=True,
            encoding="utf-8",
            check=False,
        )
    assert done.returncode == 2
    assert f"collage: cannot listen on 127.0.0.1:{port}: Address already in use" in done.stderr
    assert "serves on" not in done.stderr and "Traceback" not in done.stderr


def _data_in(folder: Path) -> dict[str, str]:
    return {"COLLAGE_DATA_DIR": str(folder), "COLLAGE_DATABASE_URL": f"sqlite:///{folder / 'costs.db'}"}


def test_names_of_other_programs_are_no_mistakes() -> None:
    check_names({"COLLAGE_HOST_LABEL": "x", "COLLAGE_MY_OWN_THING": "x", "PATH": "x"})
    for name in Settings.model_fields:
        check_names({f"COLLAGE_{name.upper()}": "x"})


@pytest.mark.parametrize("names", ['["a.org", "[::1]", "10.0.0.1"]', "[]"])
def test_names_of_hosts_are_taken(names: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLLAGE_ALLOWED_HOSTS", names)
    assert list(read_settings().allowed_hosts) == json.loads(names)


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


def test_server_says_what_protects_its_children() -> None:
    with structlog.testing.capture_logs() as lines:
        _tell_protections()
    said = repr(lines)
    assert protections().holding() in said
    assert "GiB of memory" in said
    missing = protections().missing()
    assert missing is None or missing in said


def test_every_job_has_an_end_by_default() -> None:
    assert 0 < Settings().job_time_limit_s <= 24 * 3600
