"""Options that could only fail later are refused at once, with the field."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.service.conftest import ENGINES, RunningServer, post_job

pytestmark = ENGINES

_PLAN = {
    "format": 1,
    "model_sha256": "0" * 64,
    "partitions": [{"target": "onnxruntime", "nodes": ["a"], "latency_us": 1.5}],
    "versions": {"onnxruntime": "1.31"},
    "lanes": 2,
}


def _plan(**changes: Any) -> dict[str, Any]:
    return {"plan": {**_PLAN, **changes}}


def _partition(**changes: Any) -> dict[str, Any]:
    return _plan(partitions=[{**_PLAN["partitions"][0], **changes}])  # type: ignore[index]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"dims": {"batch": -1}}, "options.dims.batch"),
        ({"dims": {"batch": 10**12}}, "options.dims.batch"),
        ({"dims": {"batch": 1.5}}, "options.dims.batch"),
        ({"dims": {"length": "9..1"}}, "options.dims.length"),
        ({"dims": {"length": "1,2,1"}}, "options.dims.length"),
        ({"dims": {"length": "1:0.5,2"}}, "options.dims.length"),
        ({"dims": {"length": "1" * 20_000}}, "options.dims.length"),
        ({"dims": {"length": None}}, "options.dims.length"),
        ({"dims": {"": 1}}, "options.dims"),
        ({"shapes": {"x": [1]}}, "options.shapes"),
        ({"shapes": [{"x": [1]}, {"x": [-1]}]}, "options.shapes.1"),
        ({"shapes": [{"x": "1"}]}, "options.shapes.0"),
        ({"shapes": [{"sizes": {"x": 1}, "weight": 0}]}, "options.shapes.0"),
        ({"shapes": [*[{"x": [1]}] * 1000, {"x": [-1]}]}, "options.shapes"),
        ({"dims": [1]}, "options.dims"),
        ({"seed": 10**30}, "options.seed"),
        ({"seed": -1}, "options.seed"),
        ({"seed": True}, "options.seed"),
        ({"wait_for_worker_s": 1e12}, "options.wait_for_worker_s"),
        ({"time_limit_s": 1e12}, "options.time_limit_s"),
        ({"time_limit_s": 0}, "options.time_limit_s"),
        ({"threads": 10**6}, "options.threads"),
        ({"tolerance": "0.1"}, "options.tolerance"),
        ({"evaluate": "top2", "max_drop": 0.01}, "options.evaluate"),
        ({"evaluate": 3, "max_drop": 0.01}, "options.evaluate"),
        ({"evaluate": "top1", "max_drop": "1%"}, "options.max_drop"),
        ({"evaluate": "top1", "max_drop": 0}, "options.max_drop"),
        ({"evaluate": "top1", "max_drop": 1.5}, "options.max_drop"),
        ({"evaluate": "top1"}, "options"),
        ({"evaluate": "top1", "max_drop": 0.1, "at_least": 0.5}, "options"),
        ({"max_drop": 0.1}, "options"),
        ({"pins": ["Conv"]}, "options.pins.0"),
        ({"pins": ["=mnn"]}, "options.pins.0"),
        ({"pins": ["a=mnn", "b=-x"]}, "options.pins.1"),
        ({"pins": "Conv=mnn"}, "options.pins"),
        ({"bans": ["Conv=mnn threads"]}, "options.bans.0"),
        ({"bans": [3]}, "options.bans.0"),
        ({"max_partitions": 10**20}, "options.max_partitions"),
        ({"fsat": True}, "options.fsat"),
        ({"plan": 3}, "options.plan"),
        ({"plan": {}}, "options.plan.format"),
        (_plan(format=2), "options.plan.format"),
        (_plan(model_sha256="x"), "options.plan.model_sha256"),
        (_plan(partitions=[]), "options.plan.partitions"),
        (_plan(partitions=[3]), "options.plan.partitions.0"),
        (_plan(lanes=0), "options.plan.lanes"),
        (_plan(color=1), "options.plan.color"),
        (_partition(nodes=[]), "options.plan.partitions.0.nodes"),
        (_partition(nodes=[1]), "options.plan.partitions.0.nodes.0"),
        (_partition(target="-x"), "options.plan.partitions.0.target"),
        (_partition(latency_us=-1), "options.plan.partitions.0.latency_us"),
        (_partition(color=1), "options.plan.partitions.0.color"),
    ],
)
def test_a_bad_option_is_refused_with_its_field(
    shared_server: RunningServer, options: dict[str, Any], field: str
) -> None:
    model = shared_server.http.post("/v1/models", files={"model": ("m", b"x")}).json()["sha256"]
    stored = {"model_sha256": model, "targets": ["onnxruntime"], "options": options}
    for answer in (
        post_job(shared_server, data={"options": json.dumps(options)}),
        shared_server.http.post("/v1/jobs", json=stored),
    ):
        assert answer.status_code == 422, answer.text
        wheres = [fault["where"] for fault in answer.json()["errors"]]
        assert any(where.startswith(field) for where in wheres), wheres
        assert field in answer.json()["detail"]
    assert shared_server.http.get("/v1/jobs").json()["items"] == []


def test_numbers_that_are_not_finite_are_refused(shared_server: RunningServer) -> None:
    for number in ("NaN", "Infinity", "-Infinity", "1e999"):
        answer = post_job(shared_server, data={"options": f'{{"time_limit_s": {number}}}'})
        assert answer.status_code == 422, number


@pytest.mark.slow
def test_good_options_are_kept_as_they_were_given(server: RunningServer) -> None:
    options = {
        "dims": {"batch": 0, "seq": "1..128"},
        "shapes": [{"sizes": {"x": [1, 16]}, "weight": 2.5}],
        "seed": 2**31 - 1,
        "time_limit_s": 60,
        "pins": ["Conv=openvino -precision=bf16", "a..b=onnxruntime"],
        "bans": ["/encoder/*=mnn"],
        **_plan(),
    }
    job = post_job(server, data={"options": json.dumps(options)})
    assert job.status_code == 201, job.text
    assert server.http.get(job.json()["links"]["self"]).json()["options"] == options
    (listed,) = server.http.get("/v1/jobs").json()["items"]
    assert listed["options"] == {name: value for name, value in options.items() if name != "plan"}
