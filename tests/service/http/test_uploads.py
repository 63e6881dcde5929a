"""Forms: what is accepted, and every way in which one can be bad."""

from __future__ import annotations

import pytest

from collage.cost_db.tokens import Quotas
from tests.service.conftest import ENGINES, RunningServer, StartServer, post_job

pytestmark = ENGINES


def _raw(
    server: RunningServer, body: bytes, kind: str = "multipart/form-data; boundary=b"
) -> tuple[int, str]:
    answer = server.http.post("/v1/jobs", content=body, headers={"Content-Type": kind})
    return answer.status_code, answer.json()["detail"]


def _part(name: str, value: str, file_name: str | None = None) -> str:
    file = f'; filename="{file_name}"' if file_name is not None else ""
    return f'--b\r\nContent-Disposition: form-data; name="{name}"{file}\r\n\r\n{value}\r\n'


_MODEL = _part("model", "bytes", "m.onnx")
_TARGETS = _part("targets", "onnxruntime")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("body", "said"),
    [
        (_TARGETS + "--b--\r\n", "'model' is missing"),
        (_MODEL + "--b--\r\n", "no target is given"),
        (_MODEL + _TARGETS, "ends too early"),
        (_MODEL + _MODEL + "--b--\r\n", "'model' is there twice"),
        (_part("model", "bytes") + "--b--\r\n", "must be a file"),
        (_MODEL + _part("color", "red") + "--b--\r\n", "unknown field 'color'; known: model, inputs"),
        (_MODEL + _part("targets", "[1]") + "--b--\r\n", "list of texts"),
        (_MODEL + _part("targets", "[") + "--b--\r\n", "not JSON"),
        (_MODEL + _TARGETS + _part("options", "[]") + "--b--\r\n", "must be a JSON object"),
        (
            _MODEL + _TARGETS + _part("options", '{"tolerance": NaN}') + "--b--\r\n",
            "it has NaN, which is no number",
        ),
        (
            _MODEL + _TARGETS + _part("options", '{"speed": 11}') + "--b--\r\n",
            "known options: tolerance",
        ),
        (_MODEL + _TARGETS + _part("options", '{"seed": "1"}') + "--b--\r\n", "seed"),
        (_MODEL + _part("targets", "gpu9000") + "--b--\r\n", "known are"),
        (_MODEL + _part("targets", "onnxruntime -rules=/etc/passwd") + "--b--\r\n", "names a file"),
        ("no form at all", "damaged"),
        ("", "ends too early"),
    ],
)
def test_a_bad_form_says_what_is_bad(shared_server: RunningServer, body: str, said: str) -> None:
    status, detail = _raw(shared_server, body.encode())
    assert status == 422
    assert said in detail


def test_other_media_types_are_refused(shared_server: RunningServer) -> None:
    assert _raw(shared_server, b"x", "text/plain")[0] == 415
    assert _raw(shared_server, b"x", "multipart/form-data")[0] == 415
    assert _raw(shared_server, b"{", "application/json")[0] == 422


def test_upload_that_is_too_large_is_refused(start_server: StartServer) -> None:
    server = start_server(max_upload_bytes=1000)
    answer = post_job(server, b"x" * 1001)
    assert answer.status_code == 413
    assert answer.json()["type"] == "urn:collage:problem:upload-too-large"
    assert post_job(server, b"x" * 1000).status_code == 201
    assert post_job(server, data={"options": "x" * (1 << 20) + "x"}).status_code == 422


@pytest.mark.slow
def test_uploads_stream_to_disk_and_leave_an_empty_spool(server: RunningServer) -> None:
    answer = post_job(server, b"x" * (5 << 20))
    assert answer.status_code == 201
    assert server.services.files.size_bytes(answer.json()["model_sha256"]) == 5 << 20
    assert not list(server.services.spool.path.iterdir())


def _stored(server: RunningServer) -> list[str]:
    return sorted(server.services.files.names())


@pytest.mark.slow
@pytest.mark.parametrize(
    "data",
    [
        {"targets": "nonsense"},
        {"labels": ",".join(map(str, range(21)))},
        {"note": "x" * 100_000},
        {"webhook": "http://nowhere.example.org"},
        {"options": '{"speed": 11}'},
    ],
)
def test_a_refused_request_leaves_nothing(server: RunningServer, data: dict[str, str]) -> None:
    form = {"targets": "onnxruntime", **data}
    files = {"model": ("m.onnx", b"x" * 1000), "inputs": ("x.npz", b"y" * 1000)}
    assert server.http.post("/v1/jobs", files=files, data=form).status_code == 422
    form["target"] = form.pop("targets")
    assert server.http.post("/v1/diagnoses", files=files, data=form).status_code == 422
    assert not _stored(server)
    assert not server.http.get("/v1/models").json()["items"]
    assert not list(server.services.spool.path.iterdir())


@pytest.mark.slow
def test_a_request_over_quota_leaves_nothing(start_server: StartServer) -> None:
    server = start_server(authentication="on")
    quotas = Quotas(stored_bytes=1500, active_jobs=1)
    secret = server.services.tokens.create("ann", ["tune"], quotas=quotas)[1]
    headers = {"Authorization": f"Bearer {secret}"}
    model = post_job(server, b"x" * 1000, headers=headers).json()["model_sha256"]
    assert post_job(server, b"small", headers=headers).status_code == 429  # of its jobs
    files = {"model": ("m.onnx", b"y" * 1000)}
    refused = server.http.post("/v1/models", files=files, headers=headers)
    assert refused.status_code == 429 and "may store" in refused.json()["detail"]
    assert _stored(server) == [model]
    models = server.http.get("/v1/models", headers=headers).json()["items"]
    assert [each["sha256"] for each in models] == [model]


@pytest.mark.slow
def test_a_key_that_comes_again_with_other_files_leaves_none(server: RunningServer) -> None:
    key = {"Idempotency-Key": "abc"}

    def post(model: bytes, inputs: bytes) -> int:
        files = {"model": ("m.onnx", model), "inputs": ("x.npz", inputs)}
        data = {"targets": "onnxruntime"}
        return server.http.post("/v1/jobs", files=files, data=data, headers=key).status_code

    assert post(b"model", b"inputs") == 201
    stored = _stored(server)
    assert len(stored) == 2
    assert [post(b"other", b"inputs"), post(b"model", b"other")] == [422, 422]
    assert post(b"model", b"inputs") == 201
    assert _stored(server) == stored


def test_the_bytes_of_a_removed_model_go_with_it(server: RunningServer) -> None:
    files = {"model": ("m.onnx", b"x" * 1000)}
    alone = server.http.post("/v1/models", files=files).json()["sha256"]
    used = post_job(server).json()["model_sha256"]
    for model in (alone, used):
        assert server.http.delete(f"/v1/models/{model}").status_code == 204
    assert _stored(server) == [used]


def test_a_file_name_is_only_a_name(server: RunningServer) -> None:
    files = {"model": ("../../etc/pass\u202ewd.onnx", b"x")}
    answer = server.http.post("/v1/jobs", files=files, data={"targets": "onnxruntime"})
    assert answer.json()["name"] == "passwd.onnx"
