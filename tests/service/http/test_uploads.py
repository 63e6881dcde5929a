"""Forms: what is accepted, and every way in which one can be bad."""

from __future__ import annotations

import pytest

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


def test_uploads_stream_to_disk_and_leave_an_empty_spool(server: RunningServer) -> None:
    answer = post_job(server, b"x" * (5 << 20))
    assert answer.status_code == 201
    assert server.services.files.size_bytes(answer.json()["model_sha256"]) == 5 << 20
    assert not list(server.services.spool.path.iterdir())


def test_a_file_name_is_only_a_name(server: RunningServer) -> None:
    files = {"model": ("../../etc/pass\u202ewd.onnx", b"x")}
    answer = server.http.post("/v1/jobs", files=files, data={"targets": "onnxruntime"})
    assert answer.json()["name"] == "passwd.onnx"
