"""Whole models are timed rewritten where that changes much, and on one thread where a call is short."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

import collage
from collage.backends.numerics.reference import run_reference
from collage.cost_db.costs.queries import CostFilter
from collage.cost_db.database import CostDatabase
from collage.events import Event
from collage.learning.advice import NO_ADVICE, Advice
from collage.model.reference import ingest
from collage.partitioner.graph.model import Model
from collage.partitioner.rules.candidate_set import CandidateSet
from collage.partitioner.target import Target
from collage.refinement.local_moves import LocalMoves, Move
from collage.refinement.target_variants import (
    Inspection,
    beside_faster_forms,
    common_forms,
    offered_options,
    single_variants,
    worth_mixing,
)
from collage.search.fixed_plans import single_plan
from collage.timing.request import PlanTiming
from collage.timing.timed_plan import TimedPlan
from tests.channels_last import channels_last_model
from tests.models import seeded_input
from tests.tuning import tuned

ORT, OPENVINO, MNN = (Target.parse(name) for name in ("onnxruntime", "openvino", "mnn"))
Found = Callable[..., list[str]]
MOVED = OPENVINO.with_options(rewrite="on")


def _taken(proto: onnx.ModelProto, folder: Path) -> Model:
    onnx.save(proto, folder / "m.onnx")
    return ingest(folder / "m.onnx", folder)[0]


def _targets(entries: list[TimedPlan]) -> list[str]:
    assert all(len(entry.plan.partitions) == 1 for entry in entries)
    return [str(entry.plan.partitions[0].target) for entry in entries]


def test_every_target_is_tried_rewritten_where_most_layouts_cancel(tmp_path: Path) -> None:
    model = _taken(channels_last_model(), tmp_path)
    found = single_variants(Inspection(model), [ORT, OPENVINO, MNN], 2, {})
    assert _targets(found) == ["openvino -rewrite=on", "mnn -rewrite=on"]


def test_winograd_is_tried_where_convolutions_are_wide_enough(tmp_path: Path) -> None:
    model = _taken(channels_last_model(channels=64, size=24), tmp_path)
    rounds = OPENVINO.with_options(precision="bf16")
    found = _targets(single_variants(Inspection(model), [ORT, rounds, MNN], 2, {}))
    assert found[0] == "onnxruntime -rewrite=winograd" and found[-1] == "mnn -rewrite=on"
    assert not any("openvino" in target and "winograd" in target for target in found)


def test_one_axis_convolutions_are_a_reason_to_rewrite_for_all(tmp_path: Path) -> None:
    text = """<ir_version: 8, opset_import: ["" : 17]> g (float[1, 4, 40] x) => (float[1, 4, 36] y) {
        a = Conv(x, w)  b = Relu(a)  y = Conv(b, w)
    }"""
    proto = onnx.parser.parse_model(text)
    weights = np.ones((4, 4, 3), np.float32)
    proto.graph.initializer.append(onnx.numpy_helper.from_array(weights, "w"))
    found = single_variants(Inspection(_taken(proto, tmp_path)), [ORT, OPENVINO, MNN], 2, {})
    assert _targets(found) == [f"{t} -rewrite=on" for t in (ORT, OPENVINO, MNN)]


@pytest.mark.slow
@pytest.mark.parametrize(("channels", "tried"), [(32, True), (31, False)])
def test_single_product_of_a_broadcast_is_a_reason_to_rewrite(
    channels: int, tried: bool, tmp_path: Path
) -> None:
    text = f"""<ir_version: 8, opset_import: ["" : 17]> g (float[9, 4] x, float[1, {channels}] c) => (float[9, 6] y) {{
        s = Expand(c, shape)  j = Concat <axis = -1> (x, s)  p = MatMul(j, w)  y = Tanh(p)
    }}"""
    proto = onnx.parser.parse_model(text)
    constants = {"shape": np.array([9, 1]), "w": np.ones((4 + channels, 6), np.float32)}
    proto.graph.initializer.extend(
        onnx.numpy_helper.from_array(array, name) for name, array in constants.items()
    )
    found = single_variants(Inspection(_taken(proto, tmp_path)), [ORT, OPENVINO, MNN], 2, {})
    assert _targets(found) == [f"{t} -rewrite=on" for t in (ORT, OPENVINO, MNN) if tried]


def test_options_stated_by_the_user_stay(tmp_path: Path) -> None:
    model = _taken(channels_last_model(), tmp_path)
    assert (
        single_variants(Inspection(model), [OPENVINO.with_options(rewrite="off"), MOVED], 2, {}) == []
    )


def test_forms_are_offered_where_all_targets_of_a_runtime_may_have_them(tmp_path: Path) -> None:
    model = _taken(channels_last_model(channels=64, size=24), tmp_path)
    rounds = OPENVINO.with_options(precision="bf16")
    both = common_forms(Inspection(model), [OPENVINO, rounds], 2, {})
    assert both == [MOVED, rounds.with_options(rewrite="on")]
    alone = common_forms(Inspection(model), [OPENVINO], 2, {})
    assert alone == [MOVED, OPENVINO.with_options(rewrite="winograd")]


@pytest.mark.parametrize(
    ("forms_us", "slower"),
    [
        ((90, 40), {"openvino", "openvino -precision=bf16"}),
        ((110, 40), {"openvino", "openvino -precision=bf16"}),
        ((110, 60), {"openvino -rewrite=on", "openvino -precision=bf16 -rewrite=on"}),
    ],
)
def test_of_each_runtime_one_form_is_left(forms_us: tuple[float, float], slower: set[str]) -> None:
    rounds = OPENVINO.with_options(precision="bf16")
    given, forms = [ORT, OPENVINO, rounds], [MOVED, rounds.with_options(rewrite="on")]
    known = dict(zip(given, (100.0, 100.0, 60.0), strict=True)) | dict(
        zip(forms, forms_us, strict=True)
    )
    assert {str(target) for target in beside_faster_forms(given, known)} == slower
    assert beside_faster_forms([*given, *forms], known) == set()


@pytest.mark.slow
@pytest.mark.parametrize("layers", [0, 1])
def test_nothing_is_tried_for_few_or_for_those_that_stay(layers: int, tmp_path: Path) -> None:
    """Two Transposes are few; between sums along different axes four cancel no other."""
    text = """<ir_version: 10, opset_import: ["" : 18]> g (float[8, 8, 8] x) => (float[8, 8, 8] y) {
        a = Transpose <perm = [1, 2, 0]> (x)  b = CumSum(a, axis)  c = Transpose <perm = [0, 2, 1]> (b)
        d = CumSum(c, axis)  e = Transpose <perm = [2, 1, 0]> (d)  f = CumSum(e, axis)
        h = Transpose <perm = [1, 0, 2]> (f)  y = CumSum(h, axis)
    }"""
    proto = channels_last_model(layers) if layers else onnx.parser.parse_model(text)
    if not layers:
        proto.graph.initializer.append(onnx.numpy_helper.from_array(np.array(0), "axis"))
    assert single_variants(Inspection(_taken(proto, tmp_path)), [OPENVINO], 2, {}) == []


@pytest.mark.slow
@pytest.mark.parametrize(("swishes", "tried"), [(2, True), (1, False)])
def test_hard_swishes_in_pieces_are_a_reason_too(swishes: int, tried: bool, tmp_path: Path) -> None:
    steps, last = [], "x"
    for i in range(4):
        steps.append(f"g{i} = HardSigmoid <alpha: float = 0.16666667, beta: float = 0.5> ({last})")
        steps.append(f"y{i} = Mul({last if i < swishes else 'x'}, g{i})")
        last = f"y{i}"
    text = f"g (float[1, 8] x) => (float[1, 8] {last}) {{ {' '.join(steps)} }}"
    proto = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 12]> {text}')
    assert bool(single_variants(Inspection(_taken(proto, tmp_path)), [OPENVINO], 2, {})) == tried


def test_model_that_cannot_be_rewritten_is_reported_and_runs_unchanged(tmp_path: Path) -> None:
    model = _taken(channels_last_model(), tmp_path)
    model.path.write_bytes(b"damaged")
    events: list[Event] = []
    assert single_variants(Inspection(model, events.append), [OPENVINO], 2, {}) == []
    assert "not rewritten" in events[-1].message


def test_local_moves_rewrite_only_where_whole_models_were_timed_so(tmp_path: Path) -> None:
    model = _taken(channels_last_model(), tmp_path)
    plain, moved = (TimedPlan(single_plan(model, t), f"single {t}") for t in (OPENVINO, MOVED))
    assert "rewrite" not in offered_options([OPENVINO], 2, [plain])[OPENVINO]
    options = offered_options([OPENVINO], 2, [plain, moved])
    assert options[OPENVINO]["rewrite"] == ("on",)
    moves = LocalMoves(model.index, CandidateSet.build(model.index, []), [OPENVINO], tunable=options)
    back = moves.apply(moved.plan, Move("option", 0, 1, "node", OPENVINO, ("rewrite", "on")))
    assert back is not None and back.targets == (OPENVINO,)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ratios", "mixed"),
    [
        (
            {"openvino": 1.0, "openvino -rewrite=on": 0.95, "openvino -rewrite=winograd": 0.9},
            "winograd",
        ),
        ({"openvino": 1.0, "openvino -rewrite=on": 0.95, "openvino -rewrite=winograd": 1.2}, "on"),
        ({"openvino": 1.0, "openvino -rewrite=on": 0.99}, None),  # too little to count on
        ({"openvino": 4.0, "openvino -rewrite=on": 2.0, "onnxruntime": 1.0}, None),  # still far behind
        ({"openvino": 4.0, "openvino -rewrite=on": 1.4, "onnxruntime": 1.0}, "on"),
        ({"openvino -rewrite=on": 0.9}, None),  # as it is it cannot be run
        ({"openvino": 1.0, "openvino -snippets=off": 0.5}, None),  # a setting is left to local moves
    ],
)
def test_target_faster_rewritten_is_mixed_too(
    ratios: dict[str, float], mixed: str | None, tmp_path: Path
) -> None:
    model = _taken(channels_last_model(), tmp_path)
    entries = [TimedPlan(single_plan(model, Target.parse(text)), text) for text in ratios]
    for entry in entries:
        entry.timings[0] = PlanTiming((1000 * ratios[entry.name],) * 8, (), 0.0)
        entry.baseline_ratios[0] = (ratios[entry.name],) * 8
    assert [t.option("rewrite", "") for t in worth_mixing(entries, [ORT, OPENVINO])] == [mixed] * bool(
        mixed
    )


def _settings(model: Model, targets: list[Target], trials: int, advice: Advice) -> list[str]:
    alone_us = dict.fromkeys(targets, 9e3)
    entries = single_variants(Inspection(model), targets, 2, alone_us, advice=advice, trials=trials)
    return [name for name in _targets(entries) if "rewrite" not in name]


@pytest.mark.slow
def test_a_few_settings_of_the_fastest_target_are_tried(tmp_path: Path) -> None:
    model = _taken(channels_last_model(), tmp_path)
    assert _settings(model, [OPENVINO, ORT], 0, NO_ADVICE) == []
    tried = _settings(model, [OPENVINO, ORT], 2, NO_ADVICE)
    assert tried == ["openvino -partitioner=static", "openvino -partitioner=auto"]
    stated = OPENVINO.with_options(partitioner="own")
    assert _settings(model, [stated], 9, NO_ADVICE) == ["openvino -partitioner=own -snippets=off"]
    on_ort = _settings(model, [ORT, OPENVINO], 9, NO_ADVICE)
    assert set(on_ort) == {f"onnxruntime -{s}" for s in ("opt=extended", "prepack=off", "pool=off")}


def test_half_of_many_threads_is_tried_too(tmp_path: Path) -> None:
    model = _taken(channels_last_model(), tmp_path)
    entries = single_variants(Inspection(model), [OPENVINO], 8, {OPENVINO: 9e3}, trials=1)
    assert _targets(entries)[-1] == "openvino -threads=4"


@pytest.mark.slow
def test_settings_come_in_the_order_of_what_other_models_gained(tmp_path: Path) -> None:
    model = _taken(channels_last_model(), tmp_path)
    base = {f"model {i}": 100.0 for i in range(9)}
    wholes_us = {
        "onnxruntime": base,
        # Faster on each.
        "onnxruntime -pool=off": dict.fromkeys(base, 90.0),
        # Slower on each of enough models: never again.
        "onnxruntime -prepack=off": dict.fromkeys(base, 130.0),
        "onnxruntime -threads=1": dict.fromkeys(base, 130.0),
    }
    known = Advice(wholes_us=wholes_us)
    found = _settings(model, [ORT], 9, known)
    assert found == ["onnxruntime -pool=off", "onnxruntime -opt=extended"]
    short = {ORT: 500.0}
    entries = single_variants(Inspection(model), [ORT], 2, short, advice=NO_ADVICE)
    assert "onnxruntime -threads=1" in _targets(entries)
    entries = single_variants(Inspection(model), [ORT], 2, short, advice=known)
    assert "onnxruntime -threads=1" not in _targets(entries)
    # One model on which it was faster is a reason to try.
    wholes_us["onnxruntime -prepack=off"]["model 3"] = 80.0
    assert "onnxruntime -prepack=off" in _settings(model, [ORT], 9, Advice(wholes_us=wholes_us))


@pytest.fixture
def found(tmp_path: Path) -> Found:
    """The names of what is proposed for targets, which cover the model."""
    onnx.save(channels_last_model(), tmp_path / "m.onnx")
    model = ingest(tmp_path / "m.onnx", tmp_path)[0]

    def names(targets: list[Target], alone_us: dict[Target, float], threads: int = 2) -> list[str]:
        entries = single_variants(Inspection(model), targets, threads, alone_us)
        covered = [[p.nodes for p in entry.plan.partitions] for entry in entries]
        assert covered == [[model.index.all_nodes]] * len(entries)
        return [entry.name for entry in entries]

    return names


def test_short_calls_are_tried_in_the_order_of_the_targets(found: Found) -> None:
    alone_us = {ORT: 900.0, OPENVINO: 300.0, MNN: 2500.0}
    proposed = found([OPENVINO, MNN, ORT], alone_us)
    on_one_thread = ["single openvino -threads=1", "single onnxruntime -threads=1"]
    assert proposed == [*on_one_thread, "single openvino -rewrite=on", "single mnn -rewrite=on"]


@pytest.mark.slow
def test_stated_threads_stay_and_one_thread_for_all_stays(found: Found) -> None:
    stated = OPENVINO.with_options(threads="2", rewrite="off")
    alone_us = {ORT: 900.0, stated: 300.0}
    assert found([stated, ORT], alone_us) == ["single onnxruntime -threads=1"]
    assert found([stated, ORT], alone_us, threads=1) == []


def test_target_that_failed_alone_is_not_tried_on_one_thread(found: Found) -> None:
    assert found([ORT, MNN], {MNN: 100.0}) == ["single mnn -threads=1", "single mnn -rewrite=on"]


@pytest.mark.slow
def test_cost_of_a_rewritten_model_is_keyed_by_its_rewriting(tmp_path: Path) -> None:
    tuned(channels_last_model(), ["openvino -rewrite=on"], tmp_path, time_limit_s=5.0)
    with closing(CostDatabase(f"sqlite:///{tmp_path / 'c.db'}")) as database:
        rows = database.query(CostFilter()).items
    assert rows and all("-rewrite=on" in row.target for row in rows)
    version = onnxruntime.__version__
    assert all(row.backend_version.endswith(f"by onnxruntime {version}") for row in rows)


@pytest.mark.slow
def test_channels_last_model_is_timed_rewritten_and_its_plan_loads(tmp_path: Path) -> None:
    events: list[Event] = []
    # It takes half the time so, which is seen on a busy machine too.
    proto = channels_last_model(layers=12, channels=8, size=96)
    made = tuned(proto, ["openvino"], tmp_path, on_event=events.append, time_limit_s=20.0)
    timed = [e.data["latency_us"] for e in events if e.data and e.data.get("plan") == f"single {MOVED}"]
    assert timed and timed[0] is not None
    # Twenty-two of twenty-four Transposes go; were it not faster, it could not be returned.
    assert "openvino -rewrite=on" in {part["target"] for part in made.report["partitions"]}
    # So the search had it as a target of its own, whose costs are kept.
    with closing(CostDatabase(f"sqlite:///{tmp_path / 'c.db'}")) as database:
        measured = {row.target for row in database.query(CostFilter()).items}
    assert any("-rewrite=on" in target for target in measured)
    assert [b["target"] for b in made.report["baselines"]] == ["openvino"]
    given = seeded_input((1, 96, 96, 8), "float32", 5)
    wanted = run_reference(tmp_path / "m.onnx", {"x": given}, ["f11"])["f11"]
    with collage.load(made.path, cache_dir=tmp_path / "cache") as session:
        (found,) = session.run(["f11"], {"x": given})
    assert float(np.abs(found - wanted).max()) <= 1e-5 * float(np.abs(wanted).max())
    with collage.load(made.path, cache_dir=tmp_path / "cache") as session:
        (again,) = session.run(["f11"], {"x": given})
    assert np.array_equal(found, again)
