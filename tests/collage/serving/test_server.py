"""The server as a process: errors, load, a full queue, its end, and what keeps it from starting."""

from __future__ import annotations

import gzip
import json
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from collage.backends.machine.process_policy import default_threads
from collage.deploy.package import write_package
from collage.serving.health_check import is_ready
from tests.collage.artifact.shaped_artifacts import shaped_artifact
from tests.collage.deploy.packages import edit
from tests.collage.serving.conftest import Running, Start, artifact_of
from tests.collage.shapes import models as shape_models

pytestmark = pytest.mark.slow
X = {"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [0.5, -1, 2, 0]}
GOOD: dict[str, Any] = {"inputs": [X]}
INFER = "/v2/models/rows/infer"


@pytest.mark.parametrize(
    ("method", "path", "status", "message"),
    [
        ("GET", "/v2/models/other", 404, "there is no model 'other'; this server has 'rows'"),
        ("GET", "/v2/models/rows/versions/2", 404, "has no version '2'"),
        ("POST", "/v2/models/other/infer", 404, "there is no model 'other'"),
        ("POST", "/v2/models/rows/versions/2/infer", 404, "has no version '2'"),
        ("GET", "/v2/models", 404, "Not Found"),
        ("GET", "/nothing", 404, "Not Found"),
        ("GET", INFER, 405, "Method Not Allowed"),
    ],
)
def test_unknown_paths_answer_in_the_protocols_form(
    http: httpx.Client, method: str, path: str, status: int, message: str
) -> None:
    answer = http.request(method, path, json=GOOD if method == "POST" else None)
    assert answer.status_code == status
    assert answer.json().keys() == {"error"} and message in answer.json()["error"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"inputs": [X | {"datatype": "INT32", "data": [1, 2, 3, 4]}]}, "must be FP32, not INT32"),
        ({"inputs": [X | {"shape": [2, 2]}]}, "must have shape [1, 4], not [2, 2]"),
        ({"inputs": []}, "inputs missing: ['x']"),
        ({"inputs": [X, X]}, "given twice"),
        ({"inputs": [X], "outputs": [{"name": "w"}]}, "no output 'w'; the model has ['y', 'z']"),
    ],
)
def test_wrong_requests_answer_400(http: httpx.Client, content: Any, message: str) -> None:
    answer = http.post(INFER, json=content)
    assert answer.status_code == 400 and message in answer.json()["error"]
    assert http.post(INFER, json=GOOD).status_code == 200


@pytest.mark.parametrize(
    ("headers", "body", "status", "message"),
    [
        ({"Inference-Header-Content-Length": "-1"}, b"{}", 400, "must be a number"),
        ({"Inference-Header-Content-Length": "9" * 30}, b"{}", 400, "of a body of 2 bytes"),
        ({"Content-Encoding": "br"}, b"{}", 415, "use gzip, deflate or none"),
        ({"Content-Encoding": "gzip"}, b"{}", 400, "cannot be unpacked"),
        ({"Content-Encoding": "gzip"}, gzip.compress(b"{}") * 2, 400, "more follows its end"),
        ({}, b"", 400, "no JSON"),
    ],
)
def test_wrong_headers_are_told(
    http: httpx.Client, headers: dict[str, str], body: bytes, status: int, message: str
) -> None:
    answer = http.post(INFER, content=body, headers=headers)
    assert answer.status_code == status and message in answer.json()["error"]


def test_long_requests_are_refused_before_and_while_they_come(
    rows_artifact: Path, start: Start
) -> None:
    server = start(rows_artifact, "--max-request-mb", "1")
    with httpx.Client(base_url=server.url, timeout=30) as http:
        chunks = (b" " * 1024 for _ in range(2048))  # no Content-Length
        packed = gzip.compress(b" " * (2 << 20))
        for content, headers in (
            (b" " * (2 << 20), {}),
            (chunks, {}),
            (packed, {"Content-Encoding": "gzip"}),
        ):
            answer = http.post(INFER, content=content, headers=headers)
            assert answer.status_code == 413 and "--max-request-mb" in answer.json()["error"]


def test_metrics_count_requests_and_errors(rows_artifact: Path, start: Start) -> None:
    server = start(rows_artifact)
    with httpx.Client(base_url=server.url, timeout=30) as http:
        for content in (GOOD, GOOD, {}):
            http.post(INFER, json=content)
        answer = http.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    lines = dict(line.rsplit(" ", 1) for line in answer.text.splitlines() if line[0] != "#")
    assert lines['collage_model_requests_total{model="rows",status="200"}'] == "2.0"
    assert lines['collage_model_requests_total{model="rows",status="400"}'] == "1.0"
    assert lines['collage_model_request_seconds_count{model="rows"}'] == "3.0"
    assert lines['collage_model_compute_seconds_count{model="rows"}'] == "2.0"
    assert lines['collage_model_batch_rows_sum{model="rows"}'] == "2.0"
    assert lines['collage_model_queue_length{model="rows"}'] == "0.0"
    assert float(lines["process_resident_memory_bytes"]) > 1e6


def test_answers_on_one_connection_come_at_once(http: httpx.Client) -> None:
    """Small packets that wait for acknowledgments would take 40 ms each."""
    times = []
    for _ in range(30):
        start = time.perf_counter()
        assert http.post(INFER, json=GOOD).status_code == 200
        times.append(time.perf_counter() - start)
    assert min(times) < 0.03


@pytest.mark.parametrize("batches", [(), ("--max-batch-size", "8", "--max-delay-ms", "1")])
def test_load_from_32_threads_mixes_nothing_up(
    batch_artifact: Path, rows_artifact: Path, start: Start, batches: tuple[str, ...]
) -> None:
    server = start(batch_artifact if batches else rows_artifact, "--instances", "2", *batches)
    path = f"/v2/models/{server.model}/infer"

    def ask(number: int) -> None:
        rng = np.random.default_rng(number)
        rows = int(rng.integers(1, 5)) if batches else 1
        x = rng.normal(size=(rows, 4)).astype(np.float32)
        tensor: dict[str, Any] = {"name": "x", "datatype": "FP32", "shape": [rows, 4]}
        headers = {}
        if number % 2:
            tensor["data"] = x.ravel().tolist()
            content = json.dumps({"id": str(number), "inputs": [tensor]}).encode()
        else:
            tensor["parameters"] = {"binary_data_size": x.nbytes}
            head = json.dumps({"id": str(number), "inputs": [tensor]}).encode()
            headers["Inference-Header-Content-Length"] = str(len(head))
            content = head + x.tobytes()
        answer = clients[number % 32].post(path, content=content, headers=headers)
        assert answer.status_code == 200, answer.text
        found = answer.json()
        assert found["id"] == str(number)
        y, z = found["outputs"]
        np.testing.assert_allclose(np.reshape(y["data"], (rows, 4)), 3 * np.tanh(x), atol=1e-5)
        np.testing.assert_allclose(z["data"], x.sum(1), atol=1e-5)

    clients = [httpx.Client(base_url=server.url, timeout=120) for _ in range(32)]
    try:
        with ThreadPoolExecutor(32) as pool:
            assert len(list(pool.map(ask, range(960)))) == 960
        (stat,) = clients[0].get(f"/v2/models/{server.model}/stats").json()["model_stats"]
    finally:
        for client in clients:
            client.close()
    assert stat["inference_stats"]["success"]["count"] == 960
    assert (stat["execution_count"] < 960) == bool(batches)


def _slow_body() -> tuple[bytes, dict[str, str]]:
    x = np.full((1, 900, 900), 1 / 900, np.float32)
    tensor = {
        "name": "x",
        "datatype": "FP32",
        "shape": [1, 900, 900],
        "parameters": {"binary_data_size": x.nbytes},
    }
    head = json.dumps({"inputs": [tensor], "parameters": {"binary_data_output": True}}).encode()
    return head + x.tobytes(), {"Inference-Header-Content-Length": str(len(head))}


def test_full_queue_answers_429_and_serves_the_others(slow_artifact: Path, start: Start) -> None:
    server = start(slow_artifact, "--queue", "2")
    body, headers = _slow_body()

    def ask(_: int) -> httpx.Response:
        return httpx.post(
            f"{server.url}/v2/models/slow/infer", content=body, headers=headers, timeout=120
        )

    with ThreadPoolExecutor(24) as pool:
        answers = list(pool.map(ask, range(24)))
    codes = [answer.status_code for answer in answers]
    assert set(codes) == {200, 429} and codes.count(200) >= 3
    refused = next(answer for answer in answers if answer.status_code == 429)
    assert int(refused.headers["Retry-After"]) >= 1 and "2 requests wait" in refused.json()["error"]


def test_sigterm_finishes_what_runs_and_refuses_what_comes(slow_artifact: Path, start: Start) -> None:
    server = start(slow_artifact)
    url = f"{server.url}/v2/models/slow/infer"
    body, headers = _slow_body()
    with httpx.Client(timeout=120) as warm:
        right = warm.post(url, content=body, headers=headers).content
    answers: list[httpx.Response] = []

    def ask() -> None:
        answers.append(httpx.post(url, content=body, headers=headers, timeout=120))

    threads = [threading.Thread(target=ask) for _ in range(12)]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + 60
    with httpx.Client(base_url=server.url, timeout=30) as http:
        while 'open_requests{model="slow"} 12.0' not in http.get("/metrics").text:
            assert time.monotonic() < deadline and len(answers) < 6, "the requests must overlap"
        server.process.send_signal(signal.SIGTERM)
        assert server.said("SIGTERM: no new requests")
        late = http.post("/v2/models/slow/infer", json=GOOD)
        assert late.status_code == 503 and "the server ends" in late.json()["error"]
        assert http.get("/v2/health/live").status_code == 200
        assert http.get("/v2/health/ready").status_code == 503
        assert http.get("/v2/models/slow/ready").json() == {"name": "slow", "ready": False}
    for thread in threads:
        thread.join(60)
    assert [answer.status_code for answer in answers] == [200] * 12
    assert all(answer.content == right for answer in answers)
    assert server.process.wait(30) == 0


def test_second_signal_ends_at_once(slow_artifact: Path, start: Start) -> None:
    server = start(slow_artifact)
    body, headers = _slow_body()

    def ask(_: int) -> int | None:
        url = f"{server.url}/v2/models/slow/infer"
        try:
            return httpx.post(url, content=body, headers=headers, timeout=120).status_code
        except httpx.TransportError:
            return None

    with ThreadPoolExecutor(40) as pool:
        asked = [pool.submit(ask, i) for i in range(40)]
        with httpx.Client(base_url=server.url, timeout=30) as http:
            while http.get("/v2/models/slow/stats").json()["model_stats"][0]["execution_count"] < 1:
                time.sleep(0.01)
        server.process.send_signal(signal.SIGTERM)
        assert server.said("SIGTERM: no new requests")
        server.process.send_signal(signal.SIGINT)
        assert server.process.wait(10) == 1
        assert server.said("ends with requests unanswered")
        codes = [each.result(30) for each in asked]
    assert set(codes) <= {200, 500, 503, None} and codes.count(200) < 40


def _refused(*words: object, command: tuple[str, ...] = ("-m", "collage", "serve-model")) -> str:
    """The one line of a server that does not start."""
    done = subprocess.run(
        [sys.executable, *command, *map(str, words)], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 2, done.stderr
    assert done.stderr.count("\n") == 1 and done.stderr.startswith("collage: "), done.stderr
    return done.stderr


def test_port_in_use_is_told_before_the_model_is_loaded(rows_artifact: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        for command in (("-m", "collage", "serve-model"), ("-m", "collage.serving")):
            said = _refused(rows_artifact, "--port", port, command=command)
            assert f"127.0.0.1:{port}: Address already in use" in said and "--port" in said


def test_what_is_no_model_is_told(tmp_path: Path) -> None:
    assert "is not there" in _refused(tmp_path / "absent.onnx", "--port", 0)
    assert "holds no package; write one with collage package" in _refused(tmp_path, "--port", 0)
    (tmp_path / "a.onnx").write_bytes(b"no model")
    assert "a.onnx" in _refused(tmp_path / "a.onnx", "--port", 0)


@pytest.mark.parametrize("host", ["a" * 70, "no.such.host.invalid", "::1%nothing"])
def test_host_that_is_none_is_told(rows_artifact: Path, host: str) -> None:
    assert "choose another with --host" in _refused(rows_artifact, "--port", 0, "--host", host)


def test_name_must_stand_in_a_path(rows_artifact: Path, start: Start) -> None:
    assert "give another --name, without /" in _refused(rows_artifact, "--port", 0, "--name", "a/b")
    server = start(rows_artifact, "--name", "my model é")
    assert server.model == "my%20model%20%C3%A9"
    described = httpx.get(f"{server.url}/v2/models/{server.model}", timeout=30).json()
    assert described["name"] == "my model é"


def test_server_is_ready_whatever_proxy_the_environment_names(
    rows_server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    assert is_ready(rows_server.url)
    assert not is_ready("http://127.0.0.1:9")


def test_batches_need_a_batch(rows_artifact: Path) -> None:
    said = _refused(rows_artifact, "--port", 0, "--max-batch-size", 4)
    assert "batches need one first dimension" in said and "leave out --max-batch-size" in said


def test_rows_that_depend_on_each_other_keep_the_server_from_starting(tmp_path: Path) -> None:
    mixed = """<ir_version: 8, opset_import: ["" : 20]>
        mixed (float[8, 4] x) => (float[8, 4] y)
        <int64[1] axis = {0}> { m = ReduceMean(x, axis) y = Sub(x, m) }"""
    said = _refused(artifact_of(mixed, tmp_path, "mixed"), "--port", 0, "--max-batch-size", 4)
    assert "'y' of a row depends on the other rows" in said


@pytest.mark.parametrize(
    ("batch", "said"),
    [
        ("1,2", "a call of 16 rows cannot be run: .*; give a smaller --max-batch-size"),
        ("2..16", "a call of 1 row cannot be run: .*batch is 1, .*; leave out --max-batch-size"),
    ],
)
def test_batches_beyond_the_range_keep_the_server_from_starting(
    batch: str, said: str, tmp_path: Path
) -> None:
    dims = {"batch": batch, "height": "8..9", "width": "8..9"}
    path = shaped_artifact(shape_models.image(), tmp_path, dims, [(None, ("onnxruntime",))])
    words = ("--port", 0, "--max-batch-size", 16)
    package = write_package(path, tmp_path / "package", threads=1).folder
    for command in (("-m", "collage", "serve-model"), ("-m", "collage.serving")):
        assert re.search(said, _refused(package, *words, command=command))
    assert re.search(said, _refused(path, *words))


def test_threads_beyond_the_cores_are_told(rows_package: Path, start: Start) -> None:
    cores = default_threads()
    server = start(rows_package, "--instances", str(cores + 1))
    assert server.said(f"{cores + 1} threads share {cores} cores")


def _edited(package: Path, folder: Path, **plan: object) -> Path:
    """A copy whose planned variant says something else, with right sums."""

    def change(manifest: dict[str, Any]) -> None:
        variants = manifest["components"]["model"]["variants"]
        variants[next(iter(variants))]["executor_info"]["collage"] |= plan

    return edit(shutil.copytree(package, folder), change)


def test_changed_package_is_not_served(rows_package: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(rows_package, tmp_path / "copy")
    with (copy / "plain" / "model.onnx").open("ab") as file:
        file.write(b"\0")
    said = _refused(copy, "--port", 0, "--fallback")
    assert "plain/model.onnx was changed; copy the package again" in said


@pytest.mark.parametrize(
    ("plan", "reason"),
    [
        ({"machine": {"features": ["avx9000"]}}, "this processor lacks avx9000"),
        ({"requirements": {"absent-runtime": "1.0"}}, "absent-runtime is not installed: pip install"),
    ],
)
def test_package_for_another_machine_needs_fallback(
    rows_package: Path, tmp_path: Path, start: Start, plan: dict[str, object], reason: str
) -> None:
    edited = _edited(rows_package, tmp_path / "edited", **plan)
    said = _refused(edited, "--port", 0)
    assert reason in said and "give --fallback to serve the plain model" in said
    server = start(edited, "--fallback")
    assert server.said("variant plain") and server.said(reason)
    assert httpx.post(f"{server.url}/v2/models/edited/infer", json=GOOD).status_code == 200


def test_package_of_another_version_is_built_anew_and_told(
    rows_package: Path, tmp_path: Path, start: Start
) -> None:
    server = start(_edited(rows_package, tmp_path / "edited", requirements={"onnxruntime": "1.0"}))
    assert server.said("not 1.0; it was built anew, and its outputs are right")
    assert httpx.post(f"{server.url}/v2/models/edited/infer", json=GOOD).status_code == 200


def test_package_has_its_threads(rows_package: Path) -> None:
    said = _refused(rows_package, "--port", 0, "--threads", 2)
    assert "write it again with collage package --threads" in said
