"""No path and no code comes from a request: not in a target, not in an option, not in a plan."""

from __future__ import annotations

import re
import typing
from typing import Any

import pytest

from collage.backends.options import RULES
from collage.backends.registry import backends, options_of
from collage.options import TuneOptions
from collage.service.cluster.target_catalog import _FILE_OPTIONS
from tests.service.conftest import RunningServer, post_job

_RULES = "onnxruntime -rules=/etc/passwd"
_PLAN = {"format": 1, "model_sha256": "0" * 64, "partitions": [{"target": _RULES, "nodes": ["conv"]}]}

# Texts among the options: what they select or name was looked at, and is never opened or imported.
_HARMLESS_TEXTS = {
    "objective",
    "metric",
    "evaluate",
    "strategy",
    "pins",
    "bans",
    "dims",
    "pad_masks",
    "plan",
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("targets", "options", "kind", "said"),
    [
        ([_RULES], {}, "target", "-rules names a file; it works locally only"),
        (["onnxruntime"], {"plan": _PLAN}, "target", "-rules names a file; it works locally only"),
        (["onnxruntime"], {"evaluate": "os:system"}, "bad-input", "works locally only"),
        (["onnxruntime"], {"inputs": "/etc/passwd"}, "bad-input", "known options: tolerance"),
        (["onnxruntime"], {"work_dir": "/tmp"}, "bad-input", "known options: tolerance"),
    ],
)
def test_a_path_or_code_is_refused(
    shared_server: RunningServer, targets: list[str], options: dict[str, Any], kind: str, said: str
) -> None:
    http = shared_server.http
    sha256 = http.post("/v1/models", files={"model": ("m.onnx", b"bytes")}).json()["sha256"]
    wanted = {"model_sha256": sha256, "targets": targets, "options": options}
    answer = http.post("/v1/jobs", json=wanted)
    assert answer.status_code == 422
    assert answer.json()["type"] == f"urn:collage:problem:{kind}"
    assert said in answer.json()["detail"]
    assert http.get("/v1/jobs").json()["items"] == []


@pytest.mark.slow
def test_pins_and_limits_are_taken(server: RunningServer) -> None:
    options = '{"pins": ["Conv=openvino"], "bans": ["*=mnn"], "max_partitions": 3, "max_devices": 1}'
    job = post_job(server, data={"targets": "openvino,onnxruntime", "options": options})
    assert job.status_code == 201
    assert job.json()["options"]["pins"] == ["Conv=openvino"]


def test_no_other_option_of_a_target_takes_a_path() -> None:
    for backend in backends().values():
        for option in options_of(backend):
            free = not option.choices and re.fullmatch(option.pattern, "/etc/passwd")
            assert not free or option.name in _FILE_OPTIONS, f"{backend.name} -{option.name}"
    assert {RULES.name} == _FILE_OPTIONS


def test_every_option_that_is_a_text_was_looked_at() -> None:
    hints = typing.get_type_hints(TuneOptions)
    texts = {
        name
        for name in TuneOptions.model_fields
        if re.search(r"str|Mapping|Literal|Any|Plan", str(hints[name]))
    }
    assert texts == _HARMLESS_TEXTS, "may the new option name a file or code? See LOCAL_OPTIONS"
