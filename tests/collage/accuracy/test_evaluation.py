"""A user's own check: it gets a session, and its number decides which plan is returned."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

import collage
from collage.accuracy.evaluation import Check, Evaluation, PlanCheck, PlanSession, load_function
from collage.backends.numerics.reference import reference_session, run_session
from collage.backends.numerics.seeded import seeded_inputs
from collage.model.reference import ingest
from collage.model.sub_models import RegionFiles
from collage.options import TuneOptions
from collage.partitioner.errors import BadInputError, NoPlanError
from collage.partitioner.graph.model import Model
from collage.partitioner.ingest.normalize import normalize
from collage.partitioner.target import Target
from collage.search.fixed_plans import single_plan
from collage.timing.timed_plan import TimedPlan
from tests.collage.accuracy.test_mix_runner import WIDTH, layers
from tests.collage.refinement.stated_timers import StatedTimer
from tests.models import MODELS

_STATED = {"one": (0.30, 100), "two": (0.35, 200), "three": (0.02, 300), "fp32": (0.0, 1000)}
_PAGE = Path(__file__).resolve().parents[3] / "docs" / "accuracy.md"


def test_a_check_has_one_bound() -> None:
    for bounds in ({}, {"at_least": 1.0, "at_most": 2.0}):
        with pytest.raises(BadInputError, match="one bound"):
            Check(len, **bounds)
    with pytest.raises(BadInputError, match="give that too"):
        collage.tune(b"", ["onnxruntime"], at_least=1.0)


@pytest.mark.parametrize("text", ["nothing", "nothing:here", "math:nothing", ":", "math:"])
def test_a_function_that_is_not_there(text: str) -> None:
    with pytest.raises(BadInputError, match="module:function"):
        load_function(text)


def test_python_takes_a_function_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the command line does; only a server refuses it."""
    (tmp_path / "own_check.py").write_text("def wrong(session): return 1.0\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    with pytest.raises(BadInputError, match="module:function"):
        collage.tune(b"", ["onnxruntime"], evaluate="own_check:missing", at_least=1.0)
    with pytest.raises(BadInputError, match="one bound"):
        collage.tune(b"", ["onnxruntime"], evaluate="own_check:wrong")


def test_a_server_takes_no_function() -> None:
    with pytest.raises(BadInputError, match="no server takes it"):
        TuneOptions.from_json({"evaluate": "os:system"})


@pytest.mark.slow
def test_the_session_of_a_check_computes_what_load_computes(tmp_path: Path) -> None:
    model, _ = ingest(MODELS["ppocr_cls"].path, tmp_path, MODELS["ppocr_cls"].dims)
    (tmp_path / "calls").mkdir()
    plan = single_plan(model, Target.parse("onnxruntime"))
    with PlanSession(RegionFiles(model, tmp_path / "r"), plan, tmp_path / "calls", 1) as session:
        first, second = (seeded_inputs(session.inputs, seed) for seed in (0, 1))
        made = session.run(None, first)
        assert np.isfinite(made[0]).all()
        assert not np.array_equal(made[0], session.run(None, second)[0])
        np.testing.assert_array_equal(made[0], session.run([session.outputs[0].name], first)[0])
        with pytest.raises(BadInputError, match="must be float32"):
            session.run(None, {})


@pytest.mark.slow
@pytest.mark.parametrize("metric", ["max", "top1"])
def test_an_exact_plan_is_told_whatever_the_metric_is(tmp_path: Path, metric: str) -> None:
    """A relative bound is one of what fp32 gets; by `top1` a rounded plan may err by nothing, too."""
    path = layers(tmp_path)
    samples = [{"r0": np.full((4, WIDTH), 1 + i, np.float32)} for i in range(2)]
    np.savez(tmp_path / "inputs.npz", r0=np.stack([s["r0"] for s in samples]))
    reference = reference_session(path)
    wanted = [run_session(reference, sample, ["r6"])["r6"] for sample in samples]

    def worst(session: PlanSession) -> float:
        made = [session.run(None, sample)[0] for sample in samples]
        return 1.0 - max(
            float(np.abs(m - w).max() / w.max()) for m, w in zip(made, wanted, strict=True)
        )

    artifact = collage.tune(
        tmp_path / "layers.onnx",
        ["simulated -precision=f32 -speedup=0.15", "simulated -precision=bf16 -speedup=1"],
        output=tmp_path / "tuned.onnx",
        inputs=tmp_path / "inputs.npz",
        database=f"sqlite:///{tmp_path / 'costs.db'}",
        time_limit_s=3.0,
        metric=metric,
        evaluate=worst,
        max_drop=1e-4,
    )
    exact = "simulated -precision=f32 -speedup=0.15"  # with fewer threads it is as exact
    assert all(p["target"].startswith(exact) for p in artifact.report["partitions"])


@dataclass(frozen=True)
class Scored(Evaluation):
    """An evaluation that lets stated plans pass, and notes which it was asked for."""

    passing_plans: tuple[str, ...] = ()
    asked: list[str] = field(default_factory=list)

    def refusal(self, entry: TimedPlan) -> str | None:
        self.asked.append(entry.name)
        cast(Any, self.check).attempts += cast(Any, self.check).proves
        return None if entry.name in self.passing_plans else "it does not pass"


@pytest.mark.parametrize(
    ("proves", "passing", "asked"),
    [
        (True, ("two", "three", "fp32"), ["one", "three"]),
        (False, ("two", "three", "fp32"), ["one", "two"]),
        (True, ("fp32",), ["one", "three", "fp32"]),
    ],
)
def test_no_proof_is_spent_on_plans_that_err_as_much(
    proves: bool, passing: tuple[str, ...], asked: list[str], tmp_path: Path
) -> None:
    model, _ = ingest(layers(tmp_path), tmp_path / "taken")
    plan = single_plan(model, Target.parse("onnxruntime"))
    timer = StatedTimer({name: [float(us)] for name, (_, us) in _STATED.items()})
    timer.time([TimedPlan(plan, name) for name in _STATED])
    for entry in timer.entries:
        (number,) = entry.timings
        entry.timings[number] = replace(entry.timings[number], exactness=_STATED[entry.name][0])
    check = cast(PlanCheck, SimpleNamespace(attempts=0, proves=proves))
    judge = Scored(check, timer, cast(Any, None), cast(Any, None), passing)
    assert judge.passing(timer.entries[0]).name == asked[-1]
    assert judge.asked == asked


@pytest.mark.slow
def test_the_check_of_the_documentation_decides(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (code,) = re.findall(
        r"```python\n(import numpy.*?)```", _PAGE.read_text(encoding="utf-8"), re.DOTALL
    )
    (tmp_path / "my_check.py").write_text(code, encoding="utf-8")
    case = MODELS["ppocr_cls"]
    index = Model.open(normalize(case.path, tmp_path / "normalized", case.dims).path).index
    specs = [index.values[name] for name in index.inputs]
    samples = [seeded_inputs(specs, seed) for seed in range(3)]
    session = reference_session(tmp_path / "normalized" / "model.onnx")
    labels = [run_session(session, s, index.outputs)[index.outputs[0]].argmax() for s in samples]
    images = np.stack([sample[specs[0].name][0] for sample in samples])
    np.savez(tmp_path / "labeled.npz", images=images, labels=np.array(labels))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    accuracy = load_function("my_check:accuracy")

    def tune(**bounds: Any) -> collage.Artifact:
        return collage.tune(
            case.path,
            ["onnxruntime"],
            output=tmp_path / "tuned.onnx",
            dims=dict(case.dims),
            database=f"sqlite:///{tmp_path / 'costs.db'}",
            strategy="single",
            evaluate=accuracy,
            **bounds,
        )

    assert tune(at_least=1.0).path.exists()
    with pytest.raises(NoPlanError, match=r"its evaluation gave 1, and at most 0\.5"):
        tune(at_most=0.5)
