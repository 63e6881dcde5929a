"""The documentation keeps its word: every endpoint has its line, every example runs."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import httpx
import pytest

from collage.service.http.problems import _KINDS
from tests.service.conftest import RunningServer, StartServer, post_job, small_model

DOCS = Path(__file__).resolve().parents[2] / "docs"


def _blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", (DOCS / page).read_text(encoding="utf-8"), re.DOTALL)


@pytest.mark.slow
def test_every_endpoint_has_its_line(server: RunningServer) -> None:
    paths = server.http.get("/openapi.json").json()["paths"]
    served = {f"{method.upper()} {path}" for path, methods in paths.items() for method in methods}
    documented = set(
        re.findall(
            r"\| `((?:GET|POST|DELETE|PUT|PATCH) [^`]+)` \|",
            (DOCS / "api.md").read_text(encoding="utf-8"),
        )
    )
    assert documented == served


def test_every_kind_of_problem_is_listed() -> None:
    text = (DOCS / "api.md").read_text(encoding="utf-8")
    for _, _, kind in _KINDS:
        assert f"`{kind}`" in text, kind


def test_the_problem_shown_is_a_real_one(server: RunningServer) -> None:
    (shown,) = (json.loads(block) for block in _blocks("api.md", "json"))
    real = post_job(server, data={"targets": "foo"}).json()
    assert real.keys() == shown.keys()
    assert {**real, "request_id": "", "detail": ""} == {**shown, "request_id": "", "detail": ""}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "examples"
    made.mkdir()
    (made / "model.onnx").write_bytes(small_model())
    return made


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_every_curl_example_runs(start_server: StartServer, folder: Path) -> None:
    server = start_server(runners=1)
    done = server.http.post(
        "/v1/tune",
        files={"model": ("m.onnx", small_model())},
        data={"targets": "onnxruntime"},
        timeout=300,
    )
    job = done.headers["Location"].rsplit("/", 1)[1]
    environment = {**os.environ, "SERVER": server.url, "JOB": job}
    for block in _blocks("api.md", "bash"):
        script = block.replace("curl ", "curl --fail-with-body ")
        run = subprocess.run(
            ["bash", "-eu", "-c", script],
            cwd=folder,
            env=environment,
            capture_output=True,
            encoding="utf-8",
            timeout=300,
            check=False,
        )
        assert run.returncode == 0, f"{block}\n{run.stdout}\n{run.stderr}"
    assert (folder / "tuned.onnx").read_bytes() == httpx.get(
        f"{server.url}/v1/jobs/{job}/artifact"
    ).content
    assert (folder / "costs.jsonl").read_text(encoding="utf-8").count("\n") >= 1


@pytest.mark.slow
def test_the_python_example_runs(
    start_server: StartServer, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = start_server(runners=1)
    monkeypatch.chdir(folder)
    for block in _blocks("api.md", "python"):
        exec(block.replace("http://127.0.0.1:8000", server.url), {})
    assert (folder / "tuned.onnx").stat().st_size > 0
