"""Control by the user through the API: the same words as on the command line and in Python."""

from __future__ import annotations

import json
from typing import Any

import onnx
import pytest

from tests.collage.tuning.test_control import control_model, placed_in
from tests.service.conftest import RunningServer, StartServer

ORT, OV = "onnxruntime", "openvino"
THREADS = ["onnxruntime -threads=1", "onnxruntime -threads=2"]


def _tune(server: RunningServer, targets: list[str], options: dict[str, Any]) -> tuple[str, str]:
    """Where the nodes went, and the job's address; or the problem's kind and words."""
    answer = server.http.post(
        "/v1/tune",
        files={"model": ("m.onnx", control_model().SerializeToString())},
        data={"targets": json.dumps(targets), "options": json.dumps({"time_limit_s": 2.0, **options})},
        timeout=300,
    )
    if answer.status_code != 200:
        problem = answer.json()
        return problem["type"], problem["detail"]
    return placed_in(onnx.load_from_string(answer.content)), answer.headers["Location"]


def _one_plan_everywhere(server: RunningServer, job: str, plan: dict[str, Any]) -> None:
    """The plan, the report, and the artifact's metadata and marks name the same partitions."""
    expected = [(part["target"], part["nodes"]) for part in plan["partitions"]]
    alone = server.http.get(f"{job}/plan").json()
    report = server.http.get(f"{job}/report").json()
    model = onnx.load_from_string(server.http.get(f"{job}/artifact").content)
    metadata = {entry.key: entry.value for entry in model.metadata_props}
    inside = json.loads(metadata["collage.plan"])
    assert inside == alone
    assert json.loads(metadata["collage.report"]) == report
    for said in (alone, report):
        assert [(part["target"], part["nodes"]) for part in said["partitions"]] == expected
    marks = [{entry.key: entry.value for entry in node.metadata_props} for node in model.graph.node]
    for node, mark in zip(model.graph.node, marks, strict=True):
        target, nodes = expected[int(mark["collage.partition"])]
        assert node.name in nodes and mark["collage.target"] == target


@pytest.mark.slow
def test_job_options_decide_targets_within_limits(start_server: StartServer) -> None:
    server = start_server(runners=1)
    cases: list[tuple[list[str], dict[str, Any], str]] = [
        ([ORT, OV], {"strategy": "manual", "pins": ["/encoder/*=openvino", "/head/*=o*x*"]}, "vvvooo"),
        ([ORT, OV], {"strategy": "manual", "pins": ["a..d=openvino", "[RNA]*=onnxruntime"]}, ""),
        ([OV, ORT], {"strategy": "priority", "bans": ["Sigmoid=openvino"]}, "vvvovv"),
        ([OV, ORT], {"strategy": "greedy", "pins": ["Tanh=openvino"], "max_devices": 1}, "vvvvvv"),
        # The limit is up when one target has run: that is then the one that may be returned.
        ([ORT, OV], {"strategy": "single", "bans": ["Abs=onnxruntime"], "time_limit_s": 0.1}, "vvvvvv"),
        (
            THREADS,
            {"strategy": "manual", "pins": ["/encoder/*=* -threads=1", "/head/*=* -threads=2"]},
            "111222",
        ),
    ]
    for targets, options, expected in cases:
        found, said = _tune(server, targets, options)
        if expected:
            assert found == expected, (options, said)
        else:
            assert found.endswith("bad-input"), (options, said)
    pins = {"pins": ["Tanh=openvino", "Relu=onnxruntime"], "max_partitions": 2}
    first, job = _tune(server, [ORT, OV], pins)
    assert (first[0], first[2:]) == ("o", "vvvv")
    _, least = _tune(server, [ORT, OV], {"pins": ["Tanh=openvino"], "min_partition_nodes": 3})
    report = server.http.get(f"{least}/report").json()
    assert min(len(part["nodes"]) for part in report["partitions"]) >= 3

    plan = server.http.get(f"{job}/plan").json()
    again, second = _tune(server, [], {"plan": plan})
    assert again == first
    assert {part["target"] for part in plan["partitions"]} == set(
        server.http.get(second).json()["targets"]
    )
    for made in (job, second):
        _one_plan_everywhere(server, made, plan)


@pytest.mark.slow
def test_contradictions_are_problems_of_the_request(start_server: StartServer) -> None:
    server = start_server(runners=1)
    for options, said in (
        ({"pins": ["Exp=openvino", "/encoder/*=onnxruntime"]}, "left without a target by pin"),
        ({"pins": ["Conv=openvino"]}, "no operator type"),
        ({"pins": ["Exp=openvino", "Abs=onnxruntime"], "max_partitions": 1}, "at least 2"),
        ({"pins": ["nowhere..d=openvino"]}, "nowhere"),
        ({"strategy": "best"}, "optimal"),
        ({"max_devices": 0}, "max_devices"),
    ):
        _, detail = _tune(server, [ORT, OV], options)
        assert said in detail
