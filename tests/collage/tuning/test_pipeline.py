"""The whole way on real models and real runtimes: tune, load, run, bench, explain."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

import collage
from collage.artifact.session import LoadError
from collage.backends.numerics.seeded import seeded_inputs
from collage.events import Event
from collage.partitioner.emit.annotate import read_plan
from collage.partitioner.errors import BadInputError, CancelledError, NoPlanError
from collage.partitioner.graph.model import Model
from collage.partitioner.ingest.normalize import normalize
from collage.partitioner.target import Target
from collage.report.bench import Bench, bench
from collage.report.explain import draw_artifact, explain
from collage.search.fixed_plans import single_plan
from collage.timing.plan_timer import PlanTimer
from collage.timing.timed_plan import TimedPlan
from tests.collage.tuning.test_control import control_model
from tests.models import MODELS
from tests.tuning import tuned

pytestmark = pytest.mark.slow
TARGETS = ["onnxruntime", "openvino"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tune")


@pytest.fixture(scope="module")
def database(folder: Path) -> str:
    return f"sqlite:///{folder / 'costs.db'}"


def _tune(folder: Path, database: str, name: str = "ppocr_cls", **options: Any) -> collage.Artifact:
    model = MODELS[name]
    return collage.tune(
        model.path,
        options.pop("targets", TARGETS),
        output=folder / f"{name}.collage.onnx",
        database=database,
        dims=dict(model.dims),
        **{"time_limit_s": 8.0, **options},
    )


@pytest.fixture(scope="module")
def artifact(folder: Path, database: str) -> collage.Artifact:
    return _tune(folder, database)


@pytest.fixture(scope="module")
def mixed(folder: Path, database: str) -> collage.Artifact:
    """A plan of several partitions, whatever this machine finds fastest."""
    source = folder / "normalized"
    source.mkdir()
    normalize(MODELS["ppocr_cls"].path, source, MODELS["ppocr_cls"].dims)
    ops = {node.op for node in Model.open(source / "model.onnx").index.nodes}
    pins = [f"{op}={'openvino' if op == 'Conv' else 'onnxruntime'}" for op in sorted(ops)]
    return _tune(folder / "mixed", database, strategy="manual", pins=pins)


@pytest.fixture(scope="module")
def tiny(folder: Path) -> collage.Artifact:
    """A plan of two partitions that takes microseconds."""
    (folder / "tiny").mkdir()
    pins = ["/encoder/*=openvino", "/head/*=onnxruntime"]
    return tuned(control_model(), TARGETS, folder / "tiny", strategy="manual", pins=pins)


def test_report_is_complete_and_no_slower_than_the_best_single(
    artifact: collage.Artifact,
) -> None:
    """The report has every field, and the result is never slower than the best single target."""
    report = artifact.report
    for field in (
        *("model_sha256", "targets", "partitions", "latency_us", "baselines", "greedy_latency_us"),
        *("speedup_over_best_single", "speedup_interval", "predicted_latency_us", "additive_error"),
        *("max_relative_error", "candidates", "search", "seconds"),
    ):
        assert field in report
    assert report["speedup_interval"][1] >= 1.0
    # The table and the ratio agree about the best single target.
    best_us = report["latency_us"] * report["speedup_over_best_single"]
    assert best_us in [pytest.approx(b["latency_us"]) for b in report["baselines"] if "latency_us" in b]
    assert report["max_relative_error"] <= report["tolerance"]
    counts = report["candidates"]
    # Where the search is left out, nobody counts keys.
    known = counts["measured"] + counts["from_cache"]
    assert counts["total"] >= (counts["unique"] or known) >= known > 0
    nodes = [name for part in report["partitions"] for name in part["nodes"]]
    assert len(nodes) == len(set(nodes))


def test_the_artifact_is_a_standard_model_that_computes_the_same(mixed: collage.Artifact) -> None:
    assert len(mixed.report["partitions"]) > 1
    onnx.checker.check_model(str(mixed.path), full_check=True)
    plain = onnxruntime.InferenceSession(str(mixed.path), providers=["CPUExecutionProvider"])
    with collage.load(mixed.path) as session:
        assert [i.name for i in session.get_inputs()] == [i.name for i in plain.get_inputs()]
        assert [i.type for i in session.get_inputs()] == [i.type for i in plain.get_inputs()]
        assert [o.name for o in session.get_outputs()] == [o.name for o in plain.get_outputs()]
        for seed in (7, 8):
            feed = seeded_inputs(session.inputs, seed)
            for ours, theirs in zip(session.run(None, feed), plain.run(None, feed), strict=True):
                np.testing.assert_allclose(ours, theirs, atol=1e-3 * np.abs(theirs).max())


def test_nodes_say_their_partition_and_target(mixed: collage.Artifact) -> None:
    model = onnx.load(mixed.path)
    marks = [{p.key: p.value for p in node.metadata_props} for node in model.graph.node]
    assert {mark["collage.target"] for mark in marks} == {"onnxruntime", "openvino"}
    count = len(read_plan(mixed.path).plan.partitions)
    assert {int(mark["collage.partition"]) for mark in marks} == set(range(count))


def test_known_costs_are_not_measured_again(
    folder: Path, database: str, artifact: collage.Artifact
) -> None:
    events: list[Event] = []
    again = _tune(folder / "again", database, on_event=events.append, strategy="single")
    assert again.report["candidates"]["measured"] == 0
    assert again.report["candidates"]["from_cache"] == len(TARGETS)


def test_a_plan_is_applied_again_without_searching(
    folder: Path, database: str, mixed: collage.Artifact
) -> None:
    again = _tune(folder / "given", database, plan=dict(mixed.plan))
    assert again.report["search"] is None
    assert [p["nodes"] for p in again.report["partitions"]] == [
        p["nodes"] for p in mixed.report["partitions"]
    ]


def test_bench_times_the_plan_against_every_single_target(mixed: collage.Artifact) -> None:
    found = bench(mixed.path, processes=1)
    assert found["latency_us"] > 0
    assert {b["target"] for b in found["baselines"]} == set(TARGETS)
    low, high = found["speedup_interval"]
    assert 0 < low <= found["speedup_over_best_single"] <= high


def test_bench_builds_what_is_far_behind_only_once(
    tiny: collage.Artifact, monkeypatch: pytest.MonkeyPatch
) -> None:
    timed: list[list[str]] = []
    really = PlanTimer.time

    def noted(timer: PlanTimer, plans: Sequence[TimedPlan], again: Sequence[TimedPlan] = ()) -> Any:
        timed.append([entry.name for entry in (*plans, *again)])
        return really(timer, plans, again)

    monkeypatch.setattr(PlanTimer, "time", noted)
    monkeypatch.setattr("collage.report.bench._FAR_BEHIND", 0.0)
    found = bench(tiny.path)
    everyone = ["ours", *(f"single {target}" for target in TARGETS)]
    assert timed == [everyone, ["ours"], ["ours"], ["ours"]]
    assert all(baseline["latency_us"] > 0 for baseline in found["baselines"])


@pytest.mark.parametrize(("wide", "expected"), [(0.0, 4), (1e9, 2)])
def test_bench_repeats_itself_while_the_interval_is_wide(
    tiny: collage.Artifact, monkeypatch: pytest.MonkeyPatch, wide: float, expected: int
) -> None:
    timed = []
    really = PlanTimer.time

    def noted(timer: PlanTimer, plans: Sequence[TimedPlan], again: Sequence[TimedPlan] = ()) -> Any:
        timed.append(len(plans) + len(again))
        return really(timer, plans, again)

    monkeypatch.setattr(PlanTimer, "time", noted)
    monkeypatch.setattr("collage.report.bench._FAR_BEHIND", 1e9)
    monkeypatch.setattr("collage.report.bench._WIDE", wide)
    bench(tiny.path, processes=2)
    assert timed == [1 + len(TARGETS)] * expected


def test_a_plan_is_timed_at_two_moments_that_count_together(
    tiny: collage.Artifact, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    timed = []
    really = PlanTimer.time

    def noted(timer: PlanTimer, plans: Sequence[TimedPlan], again: Sequence[TimedPlan] = ()) -> Any:
        timed.append(len(plans))
        return really(timer, plans, again)

    monkeypatch.setattr(PlanTimer, "time", noted)
    monkeypatch.setattr("collage.report.bench._WIDE", 1e9)
    beside = Bench(tiny.path, tmp_path)
    beside.time(processes=1)
    once = beside.found()
    beside.time(processes=2)
    assert timed == [1 + len(TARGETS), 0, 0]
    assert beside.found()["speedup_interval"] != once["speedup_interval"]


def test_explain_says_why_and_draws(folder: Path, mixed: collage.Artifact) -> None:
    found = explain(mixed.path, folder / "plan.svg")
    assert all(part["why"] for part in found["partitions"])
    svg = (folder / "plan.svg").read_text(encoding="utf-8")
    assert svg == draw_artifact(mixed.path, found)
    assert svg.count("<g>") == len(found["partitions"])
    assert "openvino" in svg and "onnxruntime" in svg


def test_run_refuses_wrong_inputs_clearly(mixed: collage.Artifact) -> None:
    with collage.load(mixed.path) as session:
        (spec,) = session.inputs
        good = seeded_inputs(session.inputs, 0)[spec.name]
        for feed, message in (
            ({}, "inputs missing"),
            ({spec.name: good, "more": good}, "unknown"),
            ({spec.name: good.astype(np.float64)}, "must be a numpy array of float32, not float64"),
            ({spec.name: good[:, :, :-1]}, "must have shape"),
            ({spec.name: good.tolist()}, "not list"),
        ):
            with pytest.raises(BadInputError, match=message):
                session.run(None, feed)
        with pytest.raises(BadInputError, match="unknown outputs"):
            session.run(["nothing"], {spec.name: good})
    with pytest.raises(BadInputError, match="closed"):
        session.run(None, {spec.name: good})


def test_load_finds_a_partition_that_computes_something_else(
    folder: Path, mixed: collage.Artifact
) -> None:
    model = onnx.load(mixed.path)
    largest = max(model.graph.initializer, key=lambda tensor: len(tensor.raw_data))
    largest.raw_data = bytes(len(largest.raw_data))
    plan = next(p for p in model.metadata_props if p.key == "collage.plan")
    changed = folder / "changed.onnx"
    onnx.save(model, changed)
    # The content hash alone refuses it; with a matching hash, verification must.
    with pytest.raises(BadInputError, match="another model"):
        collage.load(changed)
    content = json.loads(plan.value)
    content["model_sha256"] = Model.open(changed).sha256
    plan.value = json.dumps(content)
    onnx.save(model, changed)
    with pytest.raises(LoadError, match=r"partition \d+ on \w+ was compiled wrongly"):
        collage.load(changed)


def test_a_missing_target_is_an_error_or_the_named_fallback(
    folder: Path, mixed: collage.Artifact
) -> None:
    model = onnx.load(mixed.path)
    plan = next(p for p in model.metadata_props if p.key == "collage.plan")
    plan.value = plan.value.replace('"openvino"', '"onnxruntime -ep=coreml"')
    elsewhere = folder / "elsewhere.onnx"
    onnx.save(model, elsewhere)
    with pytest.raises(LoadError, match="cannot be used here"):
        collage.load(elsewhere)
    with collage.load(elsewhere, fallback="onnxruntime") as session:
        assert session.fallbacks
        assert set(session.targets) == {Target("onnxruntime")}
        feed = seeded_inputs(session.inputs, 3)
        with collage.load(mixed.path) as ours:
            np.testing.assert_allclose(session.run(None, feed)[0], ours.run(None, feed)[0], atol=1e-4)


def test_greedy_and_single_are_what_they_say(folder: Path, database: str) -> None:
    single = _tune(folder / "single", database, strategy="single")
    assert len(single.report["partitions"]) == 1
    # The plan is one of the single targets, so they are timed as one.
    again = bench(single.path, processes=1)
    times = {each["target"]: each["latency_us"] for each in again["baselines"]}
    assert times[single.report["partitions"][0]["target"]] == again["latency_us"]
    greedy = _tune(folder / "greedy", database, strategy="greedy")
    assert {p["target"] for p in greedy.report["partitions"]} == {TARGETS[0]}


def test_pins_are_respected_even_where_they_cost(folder: Path, database: str) -> None:
    pinned = _tune(folder / "pinned", database, pins=["Conv=onnxruntime"])
    by_op: dict[str, set[str]] = {}
    ops = {n.name: n.op for n in read_plan(pinned.path).model.index.nodes}
    for part in pinned.report["partitions"]:
        for name in part["nodes"]:
            by_op.setdefault(ops[name], set()).add(part["target"])
    # a pin to a backend leaves its options free, and a local move may have changed them
    assert {target.split()[0] for target in by_op["Conv"]} == {"onnxruntime"}


def test_cancel_stops_soon_and_keeps_what_was_measured(folder: Path) -> None:
    import threading
    import time

    cancel = threading.Event()
    seen: list[Event] = []
    stopped: list[float] = []

    def listen(event: Event) -> None:
        seen.append(event)
        if event.stage == "measure" and event.data.get("latency_us"):
            stopped.append(time.monotonic())
            cancel.set()

    url = f"sqlite:///{folder / 'cancelled.db'}"
    with pytest.raises(CancelledError):
        _tune(folder / "cancelled", url, on_event=listen, cancel=cancel)
    assert time.monotonic() - stopped[0] < 5.0
    again = _tune(folder / "cancelled", url, strategy="single")
    assert again.report["candidates"]["from_cache"] >= 1


def test_unknown_targets_and_options_are_named(folder: Path, database: str) -> None:
    with pytest.raises(BadInputError, match=r"unknown backend 'nonsense'.*onnxruntime"):
        _tune(folder, database, targets=["nonsense"])
    with pytest.raises(BadInputError, match=r"no option -speed.*threads"):
        _tune(folder, database, targets=["onnxruntime -speed=9"])
    with pytest.raises(BadInputError, match="known options"):
        _tune(folder, database, wrong=1)


def test_a_model_that_no_target_can_run_names_node_and_reasons(folder: Path, database: str) -> None:
    from onnx import TensorProto, helper

    node = helper.make_node("StringNormalizer", ["x"], ["y"], name="words", case_change_action="LOWER")
    text = TensorProto.STRING
    graph = helper.make_graph(
        [node],
        "g",
        [helper.make_tensor_value_info("x", text, [2])],
        [helper.make_tensor_value_info("y", text, [2])],
    )
    path = folder / "words.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    with pytest.raises((NoPlanError, BadInputError), match=r"words.*StringNormalizer.*openvino"):
        collage.tune(path, ["openvino"], output=folder / "words.collage.onnx", database=database)


def test_single_plan_is_the_whole_graph(mixed: collage.Artifact) -> None:
    model = read_plan(mixed.path).model
    assert single_plan(model, Target("mnn")).partitions[0].nodes == model.index.all_nodes
