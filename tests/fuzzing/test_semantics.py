"""Random graphs with random plans over the installed runtimes: values, types and shapes are the reference's.

100 graphs here; 3,000 others with `pytest --hypothesis-profile=nightly tests/fuzzing`.
"""

from __future__ import annotations

import random

import hypothesis
import numpy as np
import onnx
import pytest

from collage.partitioner.graph.model import Model
from collage.partitioner.graph.plan_check import check_plan
from collage.partitioner.ingest.normalize import normalize
from collage.partitioner.ingest.repairs.walk import nodes_of
from collage.partitioner.target import Target
from tests.fuzzing.check import difference
from tests.fuzzing.driver import outcomes
from tests.fuzzing.graphs import random_case
from tests.fuzzing.plans import HOME, random_plan

_NIGHTLY = hypothesis.settings.get_current_profile_name() == "nightly"
_GRAPHS = 3000 if _NIGHTLY else 100
# A case may be one that ONNX Runtime itself does not run; more would be a fault of the generator.
_MOST_UNUSABLE = 0.05
# A runtime may crash: a tuning does without it then.
_MOST_CRASHED = 0.01


@pytest.mark.slow
@pytest.mark.timeout(14400 if _NIGHTLY else 600)
def test_random_plans_compute_what_the_reference_does() -> None:
    first = random.SystemRandom().randrange(1 << 40) if _NIGHTLY else 0
    found = list(outcomes(range(first, first + _GRAPHS)))
    assert len(found) == _GRAPHS
    kinds = {
        kind: [o for o in found if o.kind == kind]
        for kind in ("failed", "refused", "crashed", "unusable")
    }
    assert not kinds["failed"] and not kinds["refused"], (
        "try one alone: python -m tests.fuzzing --count 1 --first SEED"
    )
    assert len(kinds["crashed"]) <= max(1, _MOST_CRASHED * _GRAPHS), kinds["crashed"]
    assert len(kinds["unusable"]) <= _MOST_UNUSABLE * _GRAPHS
    assert sum(o.partitions for o in found) > 3 * _GRAPHS
    targets = {part.split(":")[0].split()[0] for o in found for part in o.plan.split(" | ")}
    assert {"onnxruntime", "openvino"} <= targets


def test_a_number_gives_the_same_checked_model() -> None:
    for seed in range(40):
        case = random_case(seed)
        assert case == random_case(seed)
        onnx.checker.check_model(onnx.load_from_string(case.model))


@pytest.mark.slow
def test_models_have_nearly_all_operators_of_onnx() -> None:
    models = [onnx.load_from_string(random_case(seed).model) for seed in range(1500)]
    operators = {node.op_type for model in models for node in nodes_of(model.graph)}
    known = {
        s.name for s in onnx.defs.get_all_schemas_with_history() if not s.domain and not s.deprecated
    }
    # Those that draw random numbers are refused; of the others ONNX Runtime runs nearly all.
    assert len(known & operators) > 0.85 * len(known)
    assert {model.opset_import[0].version for model in models} >= {8, 13, 24}
    assert {model.ir_version for model in models} == {3, 8, 10}


def test_random_plans_can_run_and_mix_targets(tmp_path) -> None:  # type: ignore[no-untyped-def]
    mixed = 0
    for seed in (1, 3, 5, 8):
        case = random_case(seed)
        source = tmp_path / f"{seed}.onnx"
        source.write_bytes(case.model)
        free = {
            d.dim_param for v in onnx.load(source).graph.input for d in v.type.tensor_type.shape.dim
        }
        dims = {name: case.sizes[0] for name in free if name}
        index = Model.open(normalize(source, tmp_path / f"{seed}", dims).path).index
        plan = random_plan(index, [HOME, Target("openvino")], random.Random(seed))
        check_plan(index, plan)
        mixed += len(plan.targets) == 2
    assert mixed


def test_differences_are_seen() -> None:
    wanted = np.array([1, 2], np.float32)
    assert difference(wanted.copy(), wanted) == ""
    assert "error" in difference(wanted + np.float32(0.01), wanted)
    assert "float64" in difference(wanted.astype(np.float64), wanted)
    assert "(1, 2)" in difference(wanted[None], wanted)
    assert "NaN" in difference(wanted * np.float32("nan"), wanted)
    assert difference(np.array([1, 2]), np.array([1, 3])) == "1 of 2 values differ"
    assert difference(np.zeros((0, 2)), np.zeros((0, 5))) == ""
