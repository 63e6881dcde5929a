"""A budget in a metric of the task, from samples and labels to a plan that is proven.

The reduced target is simulated: it rounds values to bfloat16 and states its cost, and the exact one
states that it is slow, so that reducing pays wherever the metric allows it.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import onnx_ir as ir
import pytest

import collage
from collage.accuracy.task import Task, TaskJudge, TaskProof, TaskSamples, task_of
from collage.accuracy.task_errors import search_task
from collage.backends.numerics.reference import reference_session, run_session
from collage.backends.numerics.tensor_files import write_samples
from collage.backends.testing.simulated import round_values
from collage.cli.summary import evaluation_text
from collage.events import ignore
from collage.metrics.drop import Bound
from collage.metrics.intervals import share_upper
from collage.metrics.names import parse_metric
from collage.model.sampling import Sampling
from collage.options import TuneOptions
from collage.partitioner.errors import BadInputError
from collage.partitioner.graph.model import Model
from collage.partitioner.ingest.normalize import normalize
from collage.partitioner.tensor import TensorSpec
from collage.refinement.comparisons import Comparisons
from collage.timing.standings import Standings
from collage.timing.timed_plan import TimedPlan
from tests.collage.accuracy.test_mix_runner import WIDTH, layers

EXACT, REDUCED = "simulated -precision=f32 -speedup=0.15", "simulated -precision=bf16 -speedup=1"
COUNT = 80


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of random layers, samples, and the classes that it gives them."""
    path = tmp_path_factory.mktemp("task")
    model = layers(path)
    random = np.random.default_rng(3)
    samples = random.standard_normal((COUNT, 4, WIDTH)).astype(np.float32)
    np.savez(path / "inputs.npz", r0=samples)
    session = reference_session(model)
    outputs = [run_session(session, {"r0": sample}, ["r6"])["r6"] for sample in samples]
    np.save(path / "labels.npy", np.array(outputs).argmax(axis=-1))
    return path


def _tune(folder: Path, **options: Any) -> collage.Artifact:
    return collage.tune(
        folder / "layers.onnx",
        [EXACT, REDUCED],
        output=folder / "tuned.onnx",
        database=f"sqlite:///{folder / 'costs.db'}",
        **{"inputs": folder / "inputs.npz", "time_limit_s": 12.0, "evaluate": "top1", **options},
    )


def _reduced(artifact: collage.Artifact) -> int:
    return sum(len(p["nodes"]) for p in artifact.report["partitions"] if "bf16" in p["target"])


@pytest.mark.slow
def test_a_wide_bound_is_spent_and_a_tight_one_kept(folder: Path) -> None:
    wide = _tune(folder, max_drop=0.5)
    assert _reduced(wide) == 12
    found = wide.report["evaluation"]
    assert found["metric"] == "top1" and found["truth"] == "reference"
    assert found["samples"] == COUNT // 2 and found["proven"]
    tight = _tune(folder, max_drop=1e-4)
    assert tight.report["evaluation"]["drop"] <= 1e-4
    assert _reduced(tight) < 12


@pytest.mark.slow
@pytest.mark.parametrize("passes", [True, False])
def test_a_whole_model_that_is_proven_ends_the_search(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, passes: bool
) -> None:
    """No estimate promises more, as stated here; where it fails the proof, mixes are searched all the same."""
    said = "ended early: stated"
    monkeypatch.setattr("collage.tuning.early_end.reason_to_mix_nothing", lambda *known: said)
    monkeypatch.setattr(TimedPlan, "ran_in_quiet", True)  # whatever else runs here
    with np.load(folder / "inputs.npz") as stored:
        samples = stored["r0"]
    if not passes:  # searched samples that bf16 gives the same classes
        samples = np.concatenate([np.repeat(_unmoved(folder, samples)[None], 40, axis=0), samples[:40]])
    np.savez(tmp_path / "inputs.npz", r0=samples)
    told: list[str] = []
    artifact = _tune(
        folder,
        inputs=tmp_path / "inputs.npz",
        max_drop=0.5 if passes else 1e-4,
        fresh=True,
        on_event=lambda event: told.append(event.message),
    )
    ended = any("ended early" in text for text in artifact.report["warnings"])
    assert ended is passes
    assert any("mixes of" in text for text in told) is not passes
    assert (_reduced(artifact) == 12) is passes
    assert (artifact.report["evaluation"]["proof_attempts"] == 1) is passes


def _unmoved(folder: Path, samples: np.ndarray) -> np.ndarray:
    """The first sample of which the plain model and the rounded one give the same classes."""
    model = Model.open(normalize(folder / "layers.onnx", folder / "rounded", {}).path)
    round_values(model.ir, ir.DataType.BFLOAT16)
    ir.save(model.ir, folder / "rounded.onnx")
    plain, rounded = (reference_session(folder / name) for name in ("layers.onnx", "rounded.onnx"))

    def classes(session: Any, sample: np.ndarray) -> np.ndarray:
        return run_session(session, {"r0": sample}, ["r6"])["r6"].argmax(axis=-1)

    return next(s for s in samples if (classes(plain, s) == classes(rounded, s)).all())


@pytest.mark.slow
def test_labels_give_the_same_truth_in_a_file_or_beside_inputs(folder: Path) -> None:
    apart = _tune(folder, max_drop=0.5, labels=folder / "labels.npy")
    with np.load(folder / "inputs.npz") as stored:
        np.savez(folder / "both.npz", labels=np.load(folder / "labels.npy"), **stored)
    beside = _tune(folder, max_drop=0.5, inputs=folder / "both.npz", fresh=True)
    for artifact in (apart, beside):
        found = artifact.report["evaluation"]
        assert found["truth"] == "labels" and found["reference_score"] == 1.0


@pytest.mark.slow
def test_what_is_not_proven_says_how_many_samples_are_needed(folder: Path) -> None:
    artifact = _tune(folder, max_drop=0.01, time_limit_s=3.0)
    found = artifact.report["evaluation"]
    assert not found["proven"] and found["samples_needed"] > found["samples"]
    assert any("is not proven" in text for text in artifact.report["warnings"])


def _task(
    folder: Path, work_dir: Path, samples: np.ndarray, labels: Path | None = None, **options: Any
) -> Task:
    """The task of a run with these samples."""
    np.savez(work_dir / "inputs.npz", r0=samples)
    info = normalize(folder / "layers.onnx", work_dir / "normalized", {})
    asked = TuneOptions.from_json({"evaluate": "top1", **options})
    inputs, model = work_dir / "inputs.npz", Model.open(info.path)
    sampling = Sampling(
        model=model, info=info, options=asked, work_dir=work_dir, inputs=inputs, hold_out=True,
        listener=ignore, cancel=None,
    )  # fmt: skip
    task = task_of(asked, sampling, inputs, labels)
    assert task is not None
    return task


@pytest.mark.slow
@pytest.mark.parametrize(("count", "searched"), [(81, 41), (260, 100)])
def test_all_but_a_hundred_samples_prove(
    folder: Path, tmp_path: Path, count: int, searched: int
) -> None:
    samples = np.random.default_rng(4).standard_normal((count, 4, WIDTH)).astype(np.float32)
    task = _task(folder, tmp_path, samples, max_drop=0.1)
    assert (task.searched.count, task.proof.count) == (searched, count - searched)
    (first, *_) = task.proof.inputs()
    np.testing.assert_array_equal(first["r0"], samples[searched])


@pytest.mark.slow
def test_a_bound_of_the_score_allows_one_drop_on_both_halves(folder: Path, tmp_path: Path) -> None:
    """The model has 0.7 on the searched samples by chance, and 0.8 on the others: both may lose 0.05."""
    with np.load(folder / "inputs.npz") as stored:
        samples = stored["r0"]
    labels = np.load(folder / "labels.npy")
    for wrong in (slice(0, 12), slice(40, 48)):
        labels[wrong] = (labels[wrong] + 1) % WIDTH
    np.save(tmp_path / "labels.npy", labels)
    task = _task(folder, tmp_path, samples, tmp_path / "labels.npy", at_least=0.75)
    for samples_of in (task.searched, task.proof):
        assert TaskJudge(task, samples_of).allowed == pytest.approx(0.05)
    told = search_task(task)
    assert told is not None and told.allowed == pytest.approx(0.05)
    (tmp_path / "more").mkdir()
    with pytest.raises(BadInputError, match=r"the model itself has 0\.8"):
        _task(folder, tmp_path / "more", samples, tmp_path / "labels.npy", at_least=0.85)


class _Session:
    """A plan that gives the reference's outputs, some rows of which are moved."""

    def __init__(self, outputs: np.ndarray, moved: int) -> None:
        self.inputs = (TensorSpec("x", "float32", (1,)),)
        self.outputs = (TensorSpec("y", "float32", (1, 4)),)
        self._made = [y[:, ::-1] if i < moved else y for i, y in enumerate(outputs)]
        self._alive: list[weakref.ref[np.ndarray]] = []
        self.most_alive = 0  # outputs that somebody held at the same time

    def run(self, names: list[str], feed: dict[str, np.ndarray]) -> list[np.ndarray]:
        made = self._made[int(feed["x"][0])].copy()
        self._alive = [ref for ref in (*self._alive, weakref.ref(made)) if ref() is not None]
        self.most_alive = max(self.most_alive, len(self._alive))
        return [made]


def _one_hot(folder: Path, count: int) -> tuple[np.ndarray, TaskSamples]:
    """Outputs of a model of four classes, and its samples."""
    outputs = np.stack([np.eye(1, 4, i % 4, dtype=np.float32) for i in range(count)])
    write_samples(folder / f"x{count}", [{"x": np.array([i], np.float32)} for i in range(count)])
    write_samples(folder / f"y{count}", [{"y": y} for y in outputs])
    return outputs, TaskSamples(folder / f"x{count}", folder / f"y{count}", None, count)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("count", "moved", "is_exact", "passes"),
    [
        (100, 0, False, True),
        *((100, 1, False, False), (100, 1, True, True), (100, 2, True, False)),
        *((400, 0, False, True), (400, 3, False, False), (400, 3, True, True)),
        (1000, 3, False, True),
    ],
)
def test_a_plan_must_be_proven_or_show_no_harm(
    tmp_path: Path, count: int, moved: int, is_exact: bool, passes: bool
) -> None:
    """Within 1 %: of 100 samples none may be lost, for they prove nothing; three of 1000 are proven."""
    outputs, samples = _one_hot(tmp_path, count)
    task = Task(parse_metric("top1"), Bound(max_drop=0.01), "top1", samples, samples)
    judge = TaskJudge(task, samples, proves=True)
    session: Any = _Session(outputs, moved)
    reason = judge.refusal(session, is_exact)
    assert (reason is None) is passes, reason
    assert judge.latest is not None and judge.latest.worse == pytest.approx(moved / count)
    estimate = TaskJudge(task, samples)
    assert (estimate.refusal(session) is None) is (moved <= 0.01 * count)


@pytest.mark.slow
def test_each_plan_that_is_scored_leaves_less_doubt_for_the_next(tmp_path: Path) -> None:
    """The first has half of 5 %, the second a quarter, so all together are wrong in one of twenty runs."""
    outputs, samples = _one_hot(tmp_path, 1000)
    task = Task(parse_metric("top1"), Bound(max_drop=0.01), "top1", samples, samples)
    fresh, used = (TaskJudge(task, samples, proves=True) for _ in range(2))
    good, bad = (cast(Any, _Session(outputs, moved)) for moved in (3, 50))
    assert used.refusal(bad) is not None
    assert fresh.refusal(good) is None and used.refusal(good) is None
    first, second = fresh.report(), used.report()
    assert first is not None and second is not None
    assert first["drop"] == second["drop"] and first["drop_upper"] < second["drop_upper"]
    assert (first["proof_attempts"], second["proof_attempts"]) == (1, 2)
    assert first["drop_upper"] == pytest.approx(share_upper(3, 1000, 0.975))
    assert second["drop_upper"] == pytest.approx(share_upper(3, 1000, 0.9875))
    used.attempts = 2000
    assert used.refusal(bad) is not None


def test_a_plan_that_fails_where_plans_are_searched_is_not_proven(tmp_path: Path) -> None:
    (outputs, searched), (_, proof) = _one_hot(tmp_path, 100), _one_hot(tmp_path, 400)
    task = Task(parse_metric("top1"), Bound(max_drop=0.01), "top1", searched, proof)
    judge = TaskProof(task)
    assert "on 100 samples" in (judge.refusal(cast(Any, _Session(outputs, 2))) or "")
    assert judge.report() is None
    more, _ = _one_hot(tmp_path, 400)
    assert judge.refusal(cast(Any, _Session(more, 0))) is None
    report = judge.report()
    assert report is not None and report["proof_attempts"] == 1 and report["proven"]


def test_fewer_outputs_than_samples_are_no_score(tmp_path: Path) -> None:
    outputs, samples = _one_hot(tmp_path, 4)
    made = [{"y": y} for y in outputs[:3]]
    with pytest.raises(ValueError, match="longer than argument 1"):
        samples.items(parse_metric("top1"), made, samples.reference())


def test_outputs_of_a_plan_are_not_kept(tmp_path: Path) -> None:
    """Logits of a language model are megabytes a sample."""
    outputs, samples = _one_hot(tmp_path, 50)
    task = Task(parse_metric("top1"), Bound(max_drop=0.01), "top1", samples, samples)
    session = _Session(outputs, 0)
    assert TaskJudge(task, samples, proves=True).refusal(cast(Any, session)) is None
    assert 1 <= session.most_alive <= 2, session.most_alive


def test_the_summary_says_how_sure_it_is() -> None:
    found = {
        "metric": "top1", "score": 0.79, "reference_score": 0.8, "drop": 0.01, "drop_upper": 0.03,
        "allowed": 0.008, "samples": 150, "proven": False,
    }  # fmt: skip
    text = evaluation_text(found)
    assert "0.79 beside 0.8" in text and "not proven on 150 held-out samples" in text
    assert "no bound by" in evaluation_text({**found, "drop_upper": None})


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({}, "needs one bound"),
        ({"max_drop": 0.1, "at_least": 0.5}, "needs one bound"),
        ({"max_drop": 0.1, "inputs": None}, "give them with --inputs"),
        ({"evaluate": "top2", "max_drop": 0.1}, "known are top1"),
        ({"evaluate": None, "at_least": 0.5}, "give that too"),
        ({"at_least": 1.5}, "the model itself has"),
        ({"at_most": 1.5}, "at_least or max_drop"),
        ({"evaluate": "map", "max_drop": 0.1}, "six columns"),
        ({"evaluate": "top1@none", "max_drop": 0.1}, "no output 'none'"),
    ],
)
def test_bad_options_are_told_before_anything_is_measured(
    folder: Path, options: dict[str, Any], match: str
) -> None:
    with pytest.raises(BadInputError, match=match):
        _tune(folder, **options)


@pytest.mark.slow
def test_labels_of_other_samples_are_refused(folder: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "few.npy", np.zeros(3, int))
    with pytest.raises(BadInputError, match=f"3 labels, and there are {COUNT} samples"):
        _tune(folder, max_drop=0.1, labels=tmp_path / "few.npy")
    with pytest.raises(BadInputError, match="name it with evaluate"):
        _tune(folder, evaluate=None, labels=tmp_path / "few.npy")


@pytest.mark.slow
def test_without_time_there_is_an_exact_plan_where_all_others_fail(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only two whole models are timed; two that are less exact are faster."""
    monkeypatch.setattr(Comparisons, "fits_before_confirming", lambda *_: False)
    real = Comparisons.time

    def only_needed(self: Comparisons, plans: Sequence[TimedPlan], **more: Any) -> Standings:
        return real(self, plans[: more.get("needed") or None], **more)

    monkeypatch.setattr(Comparisons, "time", only_needed)
    artifact = collage.tune(
        folder / "layers.onnx",
        [EXACT, REDUCED, f"{REDUCED} -threads=1"],
        output=tmp_path / "tuned.onnx",
        inputs=folder / "inputs.npz",
        database=f"sqlite:///{tmp_path / 'costs.db'}",
        time_limit_s=2.0,
        evaluate="top1",
        max_drop=1e-4,
    )
    assert [p["target"].startswith(EXACT) for p in artifact.report["partitions"]] == [True]
