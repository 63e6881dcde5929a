"""A check of the caller's own over the plans of all shapes."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import onnx
import onnxruntime
import pytest

import collage
from collage.accuracy.evaluation import Check
from collage.events import ignore
from collage.options import TuneOptions
from collage.partitioner.errors import BadInputError, NoPlanError
from collage.partitioner.graph.model import Model
from collage.tuning.run import Run, TuneRequest
from collage.tuning.shapes.at_shape import AtShape
from collage.tuning.shapes.choice import ChosenClass, choose_classes
from collage.tuning.shapes.evaluate import Judge, MetricCheck, evaluated
from tests.collage.shapes import models
from tests.collage.tuning.shapes.stated import shapes
from tests.tuning import tuned

_ERRORS = {"null": 0.08, "simulated": 0.004, "onnxruntime": 0.0}


def _timed() -> list[AtShape]:
    """The faster a target is, the more it errs."""
    us = {"null": 10.0, "simulated": 20.0, "onnxruntime": 30.0}
    timed = shapes({16: 0.5, 512: 0.5}, lambda name, size: us[name], tolerance=1.0)
    for at in timed:
        for entry in (*at.dynamic, *at.fixed):
            error = _ERRORS[str(entry.plan.partitions[0].target)]
            for comparison, timing in list(entry.timings.items()):
                entry.timings[comparison] = replace(timing, error=error, exactness=error)
    return timed


def _evaluated(check: Check) -> str:
    timed = _timed()

    @contextlib.contextmanager
    def session(classes: Sequence[ChosenClass]) -> Iterator[Any]:
        yield SimpleNamespace(target=str(classes[0].plan.targets[0]))

    classes, _ = evaluated(
        Judge(check, timed, lambda: (choose_classes(timed), None), session).beside_exact()
    )
    return str(classes[0].plan.targets[0])


@pytest.mark.parametrize(
    ("check", "target"),
    [
        (Check(lambda session: 1.0, at_least=0.5), "null"),
        (Check(lambda session: 1 - _ERRORS[session.target], at_least=0.95), "simulated"),
        (Check(lambda session: _ERRORS[session.target], at_most=1e-3), "onnxruntime"),
        (Check(lambda session: 1 - _ERRORS[session.target], max_drop=0.05), "simulated"),
    ],
)
def test_the_fastest_plans_that_pass_are_returned(check: Check, target: str) -> None:
    assert _evaluated(check) == target


def _opened(classes: Sequence[ChosenClass]) -> Any:
    """A session that nobody runs."""
    return contextlib.nullcontext(SimpleNamespace())


def test_a_plan_without_errors_by_another_metric_is_not_exact() -> None:
    """By `--metric top1` an int8 plan errs by nothing, and is no measure for others."""
    timed = _timed()
    for at in timed:
        for entry in (*at.dynamic, *at.fixed):
            for comparison, timing in list(entry.timings.items()):
                entry.timings[comparison] = replace(timing, error=0.0)
    seen: list[bool] = []

    class Exactness:
        def refusal(self, session: Any, is_exact: bool = False) -> str | None:
            seen.append(is_exact)
            return None if is_exact else "it is not exact"

    judge = Judge(Exactness(), timed, lambda: (choose_classes(timed), None), _opened)
    classes, _ = evaluated(judge)
    assert str(classes[0].plan.targets[0]) == "onnxruntime" and seen == [False, False, True]


@pytest.mark.slow
def test_all_samples_but_a_hundred_prove_at_all_shapes(tmp_path: Path) -> None:
    check = _metric(tmp_path, samples=_samples(260))
    assert check.refusal(_session(tmp_path / "mean.onnx", 1)) is None
    assert check.findings["evaluation"]["samples"] == 160


def test_where_none_passes_each_value_is_told() -> None:
    with pytest.raises(NoPlanError, match=r"pass the evaluation: .*gave 0\.08.*gave 0\.004.*gave 0,"):
        _evaluated(Check(lambda session: _ERRORS[session.target], at_least=0.5))


def test_a_hot_plan_that_the_check_did_not_see_must_be_exact() -> None:
    timed = _timed()
    hot = timed[0].fixed[0].plan
    one = ChosenClass(None, timed[0].dynamic[2].plan, (0, 1), hot)

    def chosen(hot_target: int) -> Any:
        own = replace(one, hot=timed[0].fixed[hot_target].plan)
        check = Check(lambda session: 1.0, at_least=0.5)
        (found,), _ = evaluated(Judge(check, timed, lambda: ([own], None), _opened))
        return found.hot

    assert chosen(0) is None and chosen(1) is None and chosen(2) is not None


def _mean(folder: Path) -> Path:
    """Eight classes by the mean over any length."""
    text = """<ir_version: 8, opset_import: ["" : 17]>
        g (float[1, N, 8] x) => (float[1, 8] y) { [mean] y = ReduceMean<axes = [1], keepdims = 0>(x) }"""
    onnx.save(onnx.parser.parse_model(text), folder / "mean.onnx")
    return folder / "mean.onnx"


def _samples(count: int = 12) -> list[dict[str, np.ndarray]]:
    rng = np.random.default_rng(5)
    return [{"x": rng.standard_normal((1, 2 + i, 8)).astype(np.float32)} for i in range(count)]


def _metric(
    folder: Path,
    labels: Path | None = None,
    samples: Sequence[dict[str, np.ndarray]] | None = None,
) -> MetricCheck:
    path = _mean(folder)
    samples = samples or _samples()
    np.savez(folder / "x.npz", allow_pickle=False, **{f"{i}/x": s["x"] for i, s in enumerate(samples)})
    options = TuneOptions.from_json({"evaluate": "top1", "max_drop": 0.1})
    request = TuneRequest(path, (), options, inputs=folder / "x.npz", labels=labels)
    stated = {"listener": ignore, "cancel": None, "prepared_by_s": math.inf}
    run = cast(Run, SimpleNamespace(work_dir=folder, **stated))
    return MetricCheck(run, request, Model.open(path), samples)


def _session(path: Path, sign: int) -> Any:
    plain = onnxruntime.InferenceSession(path)
    model = Model.open(path).index
    return SimpleNamespace(
        inputs=[model.values["x"]],
        outputs=[model.values["y"]],
        run=lambda names, feed: [sign * value for value in plain.run(names, feed)],
    )


def test_a_metric_scores_samples_of_all_shapes(tmp_path: Path) -> None:
    check = _metric(tmp_path)
    assert "its top1 is 0 on 6 samples" in (check.refusal(_session(tmp_path / "mean.onnx", -1)) or "")
    reason = check.refusal(_session(tmp_path / "mean.onnx", 1))
    assert reason is None
    report = check.findings["evaluation"]
    assert (report["score"], report["samples"], report["truth"]) == (1.0, 6, "reference")


def test_labels_belong_to_samples_of_any_shape(tmp_path: Path) -> None:
    labels = np.array([s["x"].mean(axis=1).argmax() for s in _samples()])
    np.save(tmp_path / "y.npy", labels)
    check = _metric(tmp_path, tmp_path / "y.npy")
    assert check.refusal(_session(tmp_path / "mean.onnx", 1)) is None
    assert check.findings["evaluation"]["truth"] == "labels"
    np.save(tmp_path / "y.npy", labels[:5])
    (tmp_path / "again").mkdir()
    with pytest.raises(BadInputError, match="12"):
        _metric(tmp_path / "again", tmp_path / "y.npy")


@pytest.mark.slow
def test_tuning_keeps_a_metric_at_all_shapes(tmp_path: Path) -> None:
    np.savez(
        tmp_path / "x.npz", allow_pickle=False, **{f"{i}/x": s["x"] for i, s in enumerate(_samples())}
    )
    options: dict[str, Any] = {
        "dims": {"N": "2..13"},
        "time_limit_s": 2.0,
        "inputs": tmp_path / "x.npz",
    }
    options |= {"evaluate": "top1", "max_drop": 0.1}
    report = tuned(onnx.load(_mean(tmp_path)), ["onnxruntime"], tmp_path, **options).report
    assert report["evaluation"]["score"] == 1.0 and report["evaluation"]["samples"] == 6


@pytest.mark.slow
def test_the_session_of_a_check_takes_every_size(tmp_path: Path) -> None:
    onnx.save(models.chain(), tmp_path / "plain.onnx")
    plain = onnxruntime.InferenceSession(tmp_path / "plain.onnx")
    said: list[str] = []

    def worst_error(session: Any) -> float:
        errors = []
        for length in (2, 7, 12):
            x = np.random.default_rng(length).standard_normal((1, length, 8)).astype(np.float32)
            feed = {"x": x, "bias": np.ones(length, np.float32)}
            pairs = zip(session.run(None, feed), plain.run(None, feed), strict=True)
            errors += [float(np.abs(mine - other).max()) for mine, other in pairs]
        with pytest.raises(BadInputError) as raised:
            session.run(None, {"x": np.zeros((1, 13, 8), np.float32), "bias": np.ones(13, np.float32)})
        said.append(str(raised.value))
        return max(errors)

    options: dict[str, Any] = {"dims": {"batch": 1, "length": "2..12"}, "time_limit_s": 2.0}
    options["evaluate"] = worst_error
    path = tuned(models.chain(), ["onnxruntime"], tmp_path, at_most=1e-3, **options).path
    assert "input 'x', axis 1: length is 13, which is outside of 2..12" in said[0]
    with collage.load(path) as session:
        assert session.get_inputs()[1].shape == ("length",)
    with pytest.raises(
        NoPlanError, match="no plans for all sizes pass the evaluation: its evaluation gave"
    ):
        tuned(models.chain(), ["onnxruntime"], tmp_path, at_most=-1.0, **options)
