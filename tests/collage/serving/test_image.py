"""The image of a package, as far as it can be checked without a container: its commands run here as well."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from collage.serving import health_check
from tests.collage.serving.conftest import Running
from tests.service.system.test_docker import COPIED

ROOT = Path(__file__).resolve().parents[3]
PATH = ROOT / "docker" / "package.Dockerfile"
DOCKERFILE = PATH.read_text(encoding="utf-8")
# What `pip install collage-tuner[serving]` leaves out; typer brings pydantic.
ABSENT = (
    "onnxscript",
    "sqlalchemy",
    "optuna",
    "httpx",
    "fastapi",
    "highspy",
    "orjson",
    "psutil",
)
# Runs a module as `python -m` does, where the tuner's libraries are absent.
WITHOUT_TUNER = f"""
import runpy, sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {ABSENT!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Absent())
sys.argv = sys.argv[1:]
runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
"""


def _command(word: str) -> list[str]:
    (found,) = re.findall(rf"^(?:    )?{word} (\[.*\])$", DOCKERFILE, re.MULTILINE)
    return [str(each) for each in json.loads(found)]


def test_image_runs_without_rights() -> None:
    body = DOCKERFILE.split("AS model\n")[1]
    assert "USER 10001:10001" in body and "HEALTHCHECK" in body
    assert body.index("USER 10001:10001") < body.index("ENTRYPOINT")
    assert re.findall(r"^FROM (\S+) AS base$", DOCKERFILE, re.MULTILINE) == [
        "python:3.11-slim-bookworm"
    ]


def test_hadolint_finds_nothing() -> None:
    hadolint = Path(sys.executable).parent / "hadolint"
    done = subprocess.run([hadolint, PATH], capture_output=True, encoding="utf-8", check=False)
    assert (done.returncode, done.stdout) == (0, "")


def test_image_is_built_from_what_a_wheel_is_built_from() -> None:
    copied = {
        source
        for line in re.findall(r"^COPY (?!--)(.+)$", DOCKERFILE, re.MULTILINE)
        for source in line.split()[:-1]
    }
    assert copied == COPIED


def test_ports_and_places_of_the_image_agree() -> None:
    words = _command("ENTRYPOINT")
    port = words[words.index("--port") + 1]
    assert re.findall(r"^EXPOSE (\S+)$", DOCKERFILE, re.MULTILINE) == [port]
    assert f"http://127.0.0.1:{port}" == health_check._URL
    body = DOCKERFILE.split("AS model\n")[1]
    places = re.findall(r"^COPY --from=(\S+) (\S+) (\S+)$", body, re.MULTILINE)
    assert places == [("install", "/opt/collage", "/opt/collage"), ("package", ".", words[3])]


@pytest.mark.slow
def test_image_installs_last_what_the_package_was_measured_with(rows_package: Path) -> None:
    copied = re.findall(r"^COPY --from=package (\S+) /source/(\S+)$", DOCKERFILE, re.MULTILINE)
    assert copied == [("requirements.txt", "package.txt")]
    lines = (rows_package / copied[0][0]).read_text(encoding="utf-8").split()
    assert lines and all(re.fullmatch(r"[A-Za-z0-9_.-]+==\S+", line) for line in lines)
    installs = re.findall(r"pip install .*", DOCKERFILE)
    assert installs[-1] == "pip install --no-cache-dir -r package.txt"
    assert all("--no-cache-dir" in line for line in installs)
    # pip leaves these versions as they are: they are what is installed here beside the extra.
    checked = [sys.executable, "-m", "pip", "install", "--dry-run", "--no-index", "--quiet", *lines]
    done = subprocess.run(checked, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_commands_of_the_image_serve_a_package_without_the_tuner(rows_package: Path) -> None:
    python, flag, module, *words = _command("ENTRYPOINT")
    assert (python, flag) == ("python", "-m")
    inside = {"/package": str(rows_package), "0.0.0.0": "127.0.0.1", "8080": "0"}
    here = [sys.executable, "-c", WITHOUT_TUNER, module, *(inside.get(word, word) for word in words)]
    server = Running(subprocess.Popen([*here, "--name", "resnet"], stderr=subprocess.PIPE, text=True))
    try:
        assert server.said("serves on "), server.lines
        url = next(each for each in server.lines if "serves on " in each).partition("serves on ")[2]
        base = url.partition("/v2/")[0]
        assert httpx.get(url).json()["name"] == "resnet"

        def health(where: str) -> int:
            python, flag, module = _command("CMD")
            assert (python, flag) == ("python", "-m")
            probe = [sys.executable, "-c", WITHOUT_TUNER, module, where]
            return subprocess.run(probe, timeout=60, check=False).returncode

        assert health(base) == 0
        assert health("http://127.0.0.1:1") == 1
        server.process.terminate()
        assert server.process.wait(30) == 0
        assert health(base) == 1
    finally:
        server.close()


@pytest.mark.slow
def test_server_that_still_loads_ends_on_a_signal() -> None:
    """The first process of a container gets no signal that it does not ask for."""
    code = """
import time
from dataclasses import replace
from pathlib import Path
from collage.serving import server
from tests.collage.serving.test_batches import TOLD

def load(*_):
    print("loads", flush=True)
    time.sleep(60)

server._opened = load
server.serve_model(Path("model"), replace(TOLD, host="127.0.0.1"))
"""
    words = [sys.executable, "-c", code]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(words, **pipes, text=True, cwd=ROOT) as server:
        assert server.stdout is not None and server.stderr is not None
        assert server.stdout.readline() == "loads\n"
        server.terminate()
        assert server.wait(30) == 128 + signal.SIGTERM
        assert server.stderr.read() == "collage: SIGTERM: ends at once\n"


@pytest.mark.slow
@pytest.mark.parametrize("module", ["starlette", "typer", "prometheus_client"])
def test_missing_extra_is_one_line_that_says_what_installs_it(module: str) -> None:
    block = WITHOUT_TUNER.replace(repr(ABSENT), repr((module,)))
    assert block != WITHOUT_TUNER
    words = [sys.executable, "-c", block, "collage.serving", "absent", "--port", "0"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert done.stderr == f"collage: {module} is not installed: pip install 'collage-tuner[serving]'\n"
