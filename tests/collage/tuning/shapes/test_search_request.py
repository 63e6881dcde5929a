"""What is asked of the search at one shape of a range, and at which shape it is."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import onnx
import pytest

from collage.artifact.emit import TuneResult
from collage.options import TuneOptions
from collage.partitioner.candidate import Candidate, Plan
from collage.partitioner.emit.plan_json import encode_plan
from collage.partitioner.graph.model import Model
from collage.partitioner.target import Target
from collage.tuning.result import left_out
from collage.tuning.run import TuneRequest
from collage.tuning.shapes.tune import _for_one, _found, _is_late, _with_front
from collage.tuning.stages import Refined
from tests.collage.shapes import models as shape_models


def test_a_search_at_one_shape_tells_the_limit_of_the_caller() -> None:
    options = TuneOptions(time_limit_s=30.0)
    for_one = _for_one(TuneRequest(Path("m.onnx"), (), options))
    assert for_one.options.time_limit_s == pytest.approx(12.0)
    timer = SimpleNamespace(skipped=["the search"])
    refined = cast(Refined, SimpleNamespace(timer=timer, limit_s=12.0, request=for_one))
    assert left_out(refined)[0].startswith("the time limit of 30 s left out: the search;")


def test_plans_that_err_less_are_found_beside_the_fastest(tmp_path: Path) -> None:
    """At other shapes the fastest may err too much; three that err less are enough."""
    onnx.save(shape_models.chain(), tmp_path / "m.onnx")
    model = Model.open(tmp_path / "m.onnx")

    def plan(target: str) -> dict[str, Any]:
        return json.loads(encode_plan(model, Plan((Candidate(model.index.all_nodes, Target(target)),))))

    names = {
        "onnxruntime": 1e-6,
        "openvino": 2e-3,
        "mnn": 3e-3,
        "ncnn": 4e-3,
        "torch": 9e-3,
        "null": 2e-2,
    }
    front = [{"plan": plan(name), "max_relative_error": error} for name, error in names.items()]
    report = {"front": front, "max_relative_error": 9e-3}
    found = _found(model, TuneResult(Path(), report, plan("torch")))
    assert [str(one.targets[0]) for one in found] == ["torch", "openvino", "mnn", "ncnn"]
    found = _found(model, TuneResult(Path(), {**report, "front": None}, plan("torch")))
    assert [str(one.targets[0]) for one in found] == ["torch"]


@pytest.mark.parametrize(("options", "has_front"), [({}, False), ({"tolerance": 0.05}, True)])
def test_the_front_is_sought_where_there_is_a_budget(options: dict[str, Any], has_front: bool) -> None:
    request = TuneRequest(Path("m.onnx"), (), TuneOptions.from_json(options))
    assert _with_front(request, is_checked=False).options.pareto == has_front
    assert _with_front(request, is_checked=True).options.pareto


@pytest.mark.parametrize(
    ("limit_s", "read_s", "reference_s", "preparation", "is_late"),
    [
        (30.0, 4.0, 1.0, None, False),
        (30.0, 9.0, 2.0, None, True),
        (30.0, 4.0, 3.0, None, True),
        # Int8 is fitted at the size that counts most.
        (30.0, 9.0, 2.0, "static int8", False),
        (None, 900.0, 90.0, None, False),
    ],
)
def test_a_slow_model_leaves_no_time_for_a_search_at_its_size(
    limit_s: float | None, read_s: float, reference_s: float, preparation: Any, is_late: bool
) -> None:
    facts = [SimpleNamespace(preparation=None), SimpleNamespace(preparation=preparation)]
    runner = SimpleNamespace(check=lambda targets: facts)
    run = SimpleNamespace(clock=SimpleNamespace(total_s=read_s), runner=runner)
    request = TuneRequest(Path("m.onnx"), (), TuneOptions(time_limit_s=limit_s))
    sampling = SimpleNamespace(chosen_by=SimpleNamespace(seconds=reference_s))
    assert _is_late(cast(Any, run), request, cast(Any, sampling)) == is_late
