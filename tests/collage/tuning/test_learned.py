"""A tuning that other models advise, on real runtimes; and what a tuning leaves for others."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest

from collage.backends.machine.hardware import hardware
from collage.backends.machine.process_policy import default_threads
from collage.backends.registry import canonical
from collage.cost_db.costs.observations import ObservationStore
from collage.cost_db.database import CostDatabase
from collage.learning.features import EDITION
from collage.partitioner.target import Target
from collage.runner import Runner
from collage.tuning.learned import without
from tests.collage.learning.stated import gained, observed
from tests.collage.stated_world import TARGETS, World
from tests.tuning import tuned

ORT, OPENVINO = Target("onnxruntime"), Target("openvino")
# On every model that was seen, OpenVINO takes three times as long.
STRENGTHS = {"onnxruntime": (1.0, 1.0, 1.0), "openvino": (3.0, 3.2, 2.9)}


def _model() -> onnx.ModelProto:
    steps = "  ".join(
        f"c{i} = Conv<pads = [1,1,1,1]>(v{i}, w)  v{i + 1} = Relu(c{i})" for i in range(6)
    )
    model = onnx.parser.parse_model(
        f"""<ir_version: 10, opset_import: ["" : 17]>
        g (float[1,32,48,48] v0) => (float[1,32,48,48] v6) {{ {steps} }}"""
    )
    weights = np.random.default_rng(0).standard_normal((32, 32, 3, 3)).astype(np.float32) * 0.05
    model.graph.initializer.append(onnx.numpy_helper.from_array(weights, "w"))
    return model


def _seen(folder: Path, models: int) -> None:
    """A database of this machine that has seen some models."""
    kinds = ("1x1", "3x3", "product")
    strengths = {name: dict(zip(kinds, of, strict=True)) for name, of in STRENGTHS.items()}
    texts = {t.backend: str(canonical(t, default_threads())) for t in (ORT, OPENVINO)}
    versions = {t.backend: Runner().facts(t).version for t in (ORT, OPENVINO)}
    rows = [
        replace(
            row,
            hardware=hardware().digest,
            target=texts[row.target],
            version=versions[row.target],
        )
        for row in observed(models, strengths=strengths)
    ]
    database = CostDatabase(f"sqlite:///{folder / 'c.db'}")
    store = ObservationStore(database.connections)
    store.keep(rows)
    for gain in gained(models, "onnxruntime", ", ".join(sorted(texts.values()))):
        store.keep_gain(replace(gain, hardware=hardware().digest))
    database.close()


@pytest.mark.slow
@pytest.mark.parametrize("models", [12, 8])
def test_a_target_that_was_slow_everywhere_is_not_measured(models: int, tmp_path: Path) -> None:
    pytest.importorskip("sklearn")
    _seen(tmp_path, models)
    report = tuned(_model(), ["openvino", "onnxruntime"], tmp_path, time_limit_s=90.0).report
    baselines = {baseline["target"]: baseline for baseline in report["baselines"]}
    enough = models == 12
    left_out = baselines["openvino"].get("infeasible", "").startswith("left out: it takes at least ")
    assert left_out is enough
    assert (report["learned"] is not None) is enough
    if enough:
        assert "latency_us" in baselines["onnxruntime"]
        assert any(text.startswith("openvino was left out") for text in report["warnings"])
        # On a busy machine the time may be up before that.
        ends = ("ended early: no other target is of use", "the time limit of ")
        assert any(text.startswith(ends) for text in report["warnings"])
        assert {part["target"].split()[0] for part in report["partitions"]} == {"onnxruntime"}
        assert {row["models"] for row in report["learned"]} == {12}


@pytest.mark.slow
def test_a_tuning_leaves_what_it_saw(tmp_path: Path) -> None:
    tuned(_model(), ["openvino", "onnxruntime"], tmp_path, time_limit_s=90.0)
    database = CostDatabase(f"sqlite:///{tmp_path / 'c.db'}")
    rows = ObservationStore(database.connections).newest(hardware().digest, EDITION)
    database.close()
    backends = {row.target.split()[0] for row in rows}
    assert backends == {"onnxruntime", "openvino"}
    for backend in backends:
        own = [row for row in rows if row.target.split()[0] == backend]
        assert sum(row.is_whole for row in own) >= 1
        # Parts that are alike are one.
        assert sum(not row.is_whole for row in own) >= 1


def test_candidates_of_targets_that_are_left_out_go() -> None:
    world = World(12, 0)
    assert without(world.model.index, world.candidates, ()) is world.candidates
    kept = without(world.model.index, world.candidates, {TARGETS[0]: "why"})
    assert {c.target for c in kept.candidates} == set(TARGETS[1:])
    assert len(kept) == sum(c.target != TARGETS[0] for c in world.candidates.candidates)
