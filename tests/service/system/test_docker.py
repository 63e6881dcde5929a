"""The container files, as far as they can be checked without a container: their commands run here as well."""

from __future__ import annotations

import json
import os
import re
import socket
import ssl
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from collage.service.container import database_url
from tests.service.conftest import small_model

ROOT = Path(__file__).resolve().parents[3]
DOCKERFILE = (ROOT / "docker" / "Dockerfile").read_text(encoding="utf-8")
# What the images are built from; a wheel is built from just these in tests/repository/test_wheel.py.
COPIED = {
    source
    for line in re.findall(r"^COPY (?!--)(.+)$", DOCKERFILE, re.MULTILINE)
    for source in line.split()[:-1]
}
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker" / "compose.yaml").read_text(encoding="utf-8"))


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
        [hadolint, ROOT / "docker" / "Dockerfile"], capture_output=True, encoding="utf-8", check=False
    )
    assert (done.returncode, done.stdout) == (0, "")


@pytest.mark.slow
def test_the_compose_file_keeps_to_the_compose_specification(tmp_path: Path) -> None:
    checker = Path(sys.executable).parent / "check-jsonschema"
    file = ROOT / "docker" / "compose.yaml"
    misspelled = tmp_path / "compose.yaml"
    misspelled.write_text(
        file.read_text(encoding="utf-8").replace("mem_limit:", "memory_limit:"), encoding="utf-8"
    )

    def check(path: Path) -> tuple[int, str]:
        command = [checker, "--builtin-schema", "vendor.compose-spec", path]
        done = subprocess.run(command, capture_output=True, encoding="utf-8", check=False)
        return done.returncode, done.stdout

    assert check(file)[0] == 0
    status, said = check(misspelled)
    assert status == 1 and "memory_limit" in said


def test_everything_copied_exists_and_every_package_is_copied() -> None:
    for source in COPIED:
        assert (ROOT / source).exists(), source
    assert {"partitioner", "backends", "cost_db", "collage", "service", "constraints.txt"} <= COPIED
    for link in (path for path in (ROOT / "collage").iterdir() if path.is_symlink()):
        assert link.resolve().name in COPIED, f"collage/{link.name} would lead nowhere in the image"


def test_compose_says_what_the_images_need() -> None:
    services = COMPOSE["services"]
    measuring = {"scheduler", "worker-1", "worker-2"}
    assert set(services) == {"database", "migrate", "certificates", "server", *measuring}
    for name, service in services.items():
        for secret in service.get("secrets", []):
            assert secret in COMPOSE["secrets"], f"{name}: {secret}"
        for volume in service.get("volumes", []):
            place = volume.split(":")[0]
            assert place in COMPOSE["volumes"] or place.startswith("./certificates"), (
                f"{name}: {volume}"
            )
        for needed in service.get("depends_on", {}):
            assert needed in services
        if "build" in service:
            assert f"AS {service['build']['target']}\n" in DOCKERFILE
    assert services["worker-1"]["cpuset"] != services["worker-2"]["cpuset"]
    assert [name for name, service in services.items() if "ports" in service] == ["server"]


def test_nobody_has_more_secrets_than_it_needs() -> None:
    services = COMPOSE["services"]
    made = services["certificates"]["entrypoint"][3:]
    for name in ("scheduler", "server", "worker-1", "worker-2"):
        own = [v for v in services[name]["volumes"] if v.startswith("./certificates")]
        assert own == [f"./certificates/{name}:/certificates:ro"] and name in made
    for name in ("scheduler", "worker-1", "worker-2"):
        assert "secrets" not in services[name] and "files:/data" not in services[name]["volumes"]


def test_the_password_comes_from_a_file(tmp_path: Path) -> None:
    secret = tmp_path / "password"
    secret.write_text("p@ss/word\n", encoding="utf-8")
    environment = {
        "COLLAGE_DATABASE_HOST": "database",
        "COLLAGE_DATABASE_PASSWORD_FILE": str(secret),
    }
    assert database_url(environment) == "postgresql://collage:p%40ss%2Fword@database/collage"
    assert database_url({}) is None


@pytest.mark.slow
def test_the_compose_files_commands_work_together(tmp_path: Path) -> None:
    """Certificates, scheduler, server and a worker as processes; a job over HTTPS is measured by the worker."""
    scheduler_port, server_port = _free_port(), _free_port()

    def translated(name: str, text: str) -> str:
        places = {
            "tls://0.0.0.0:8786": f"tls://127.0.0.1:{scheduler_port}",
            "tls://scheduler:8786": f"tls://127.0.0.1:{scheduler_port}",
            "/certificates": str(tmp_path / "certificates" / ("" if name == "certificates" else name)),
        }
        for inside, here in places.items():
            text = text.replace(inside, here)
        return text

    def given(name: str) -> dict[str, str]:
        """The environment that the image, the compose file and this test give to a service."""
        environment = COMPOSE["services"][name].get("environment", {})
        here = {
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "HOME": str(tmp_path),
            "COLLAGE_RUNTIME_DIR": str(tmp_path / "run"),
            "COLLAGE_DATA_DIR": str(tmp_path / "data"),
            "COLLAGE_WORKER_FOLDER": str(tmp_path / "worker"),
            "COLLAGE_PORT": str(server_port),
        }
        return {**{key: translated(name, text) for key, text in environment.items()}, **here}

    def words(name: str, key: str = "command") -> list[str]:
        return [translated(name, word) for word in COMPOSE["services"][name][key]]

    make = [*words("certificates", "entrypoint"), "--host", "127.0.0.1"]
    subprocess.run(make, env=given("certificates"), check=True, capture_output=True)
    environment = {**given("server"), "COLLAGE_HOST": "127.0.0.1"}
    environment |= {"COLLAGE_DATABASE_URL": f"sqlite:///{tmp_path / 'costs.db'}"}
    del environment["COLLAGE_DATABASE_HOST"]
    health, life = _commands("CMD")[0], _commands("CMD")[2]
    (tmp_path / "worker").mkdir()
    assert subprocess.run(life, env=given("worker-1"), capture_output=True, check=False).returncode == 1
    with (tmp_path / "log.txt").open("wb") as log:
        commands = [
            (words("scheduler"), given("scheduler")),
            (words("worker-1"), given("worker-1")),
            ([*COMPOSE["x-stored"]["entrypoint"], *words("server")], environment),
        ]
        running = [subprocess.Popen(c, env=e, stdout=log, stderr=log) for c, e in commands]
    try:
        for probe, where in ((life, given("worker-1")), (health, environment)):
            deadline = time.monotonic() + 120
            while subprocess.run(probe, env=where, capture_output=True, check=False).returncode:
                assert time.monotonic() < deadline, (tmp_path / "log.txt").read_text(encoding="utf-8")
                assert all(each.poll() is None for each in running), (tmp_path / "log.txt").read_text(
                    encoding="utf-8"
                )
                time.sleep(0.2)
        trust = ssl.create_default_context(cafile=tmp_path / "certificates" / "ca.crt")
        with httpx.Client(
            base_url=f"https://127.0.0.1:{server_port}", verify=trust, timeout=180
        ) as http:
            names = [worker["name"] for worker in http.get("/v1/workers").json()]
            assert "worker-1" in names
            form = {"targets": "onnxruntime", "options": '{"time_limit_s": 2}'}
            files = {"model": ("m.onnx", small_model())}
            done = http.post("/v1/tune", files=files, data=form)
            assert done.status_code == 200, done.text
    finally:
        for process in reversed(running):
            process.terminate()
            process.wait(30)
    assert not (tmp_path / "worker" / "alive").exists()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
