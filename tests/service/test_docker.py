"""The container files, as far as they can be checked without a container: their commands run here as well."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from service.container import database_url

ROOT = Path(__file__).resolve().parents[2]
DOCKERFILE = (ROOT / "docker" / "Dockerfile").read_text()
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker" / "compose.yaml").read_text())


def _commands(word: str) -> list[list[str]]:
    return [
        json.loads(found)
        for found in re.findall(rf"^(?:    )?{word} (\[.*\])$", DOCKERFILE, re.MULTILINE)
    ]


def test_the_images_run_without_rights() -> None:
    for stage in ("server", "worker"):
        body = DOCKERFILE.split(f"AS {stage}\n")[1].split("\nFROM ")[0]
        assert "USER 10001:10001" in body and "HEALTHCHECK" in body
        assert body.index("USER 10001:10001") < body.rindex("CMD")


def test_hadolint_finds_nothing() -> None:
    hadolint = Path(sys.executable).parent / "hadolint"
    done = subprocess.run(
        [hadolint, ROOT / "docker" / "Dockerfile"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, "")


@pytest.mark.slow
def test_the_compose_file_keeps_to_the_compose_specification(tmp_path: Path) -> None:
    checker = Path(sys.executable).parent / "check-jsonschema"
    file = ROOT / "docker" / "compose.yaml"
    misspelt = tmp_path / "compose.yaml"
    misspelt.write_text(file.read_text().replace("mem_limit:", "memory_limit:"))

    def check(path: Path) -> tuple[int, str]:
        command = [checker, "--builtin-schema", "vendor.compose-spec", path]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        return done.returncode, done.stdout

    assert check(file)[0] == 0
    status, said = check(misspelt)
    assert status == 1 and "memory_limit" in said


def test_everything_copied_exists_and_every_package_is_copied() -> None:
    sources = {
        source
        for line in re.findall(r"^COPY (?!--)(.+)$", DOCKERFILE, re.MULTILINE)
        for source in line.split()[:-1]
    }
    for source in sources:
        assert (ROOT / source).exists(), source
    assert sources >= {"partitioner", "backends", "cost_db", "collage", "service", "constraints.txt"}


def test_compose_says_what_the_images_need() -> None:
    services = COMPOSE["services"]
    assert set(services) == {"database", "migrate", "server", "worker-1", "worker-2"}
    for name, service in services.items():
        for secret in service.get("secrets", []):
            assert secret in COMPOSE["secrets"], f"{name}: {secret}"
        for volume in service.get("volumes", []):
            assert volume.split(":")[0] in COMPOSE["volumes"], f"{name}: {volume}"
        for needed in service.get("depends_on", {}):
            assert needed in services
        if "build" in service:
            assert f"AS {service['build']['target']}\n" in DOCKERFILE
    assert services["worker-1"]["cpuset"] != services["worker-2"]["cpuset"]
    assert "ports" not in services["worker-1"] and "ports" not in services["database"]


def test_the_password_comes_from_a_file(tmp_path: Path) -> None:
    secret = tmp_path / "password"
    secret.write_text("p@ss/word\n")
    environment = {
        "COLLAGE_DATABASE_HOST": "database",
        "COLLAGE_DATABASE_PASSWORD_FILE": str(secret),
    }
    assert database_url(environment) == "postgresql://collage:p%40ss%2Fword@database/collage"
    assert database_url({}) is None


@pytest.mark.slow
def test_the_images_commands_run_in_a_plain_environment(tmp_path: Path) -> None:
    (health,) = {tuple(command) for command in _commands("CMD") if "service.health_check" in command}
    (serve,) = {tuple(command) for command in _commands("CMD") if "serve" in command}
    environment = {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "HOME": str(tmp_path),
        "COLLAGE_DATA_DIR": str(tmp_path / "data"),
        "COLLAGE_PORT": "18743",
        "COLLAGE_RUNNERS": "0",
        "COLLAGE_LOG_FORMAT": "json",
    }
    assert subprocess.run(health, env=environment, capture_output=True, check=False).returncode == 1
    wrapped = [*COMPOSE["x-collage"]["entrypoint"], *serve]
    server = subprocess.Popen(wrapped, env=environment, stderr=subprocess.PIPE)
    try:
        deadline = time.monotonic() + 60
        while subprocess.run(health, env=environment, capture_output=True, check=False).returncode:
            assert time.monotonic() < deadline and server.poll() is None
            time.sleep(0.2)
    finally:
        server.terminate()
        _, said = server.communicate(timeout=30)
    assert b"collage serves on http://127.0.0.1:18743" in said
