"""Int8 in the file, all the way: tuned, emitted, opened by another runtime, loaded by another process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest

import collage
from collage.artifact.export import read_plan_file
from collage.artifact.session import LoadError
from collage.partitioner.candidate import Candidate, Plan
from collage.partitioner.emit.annotate import annotate, read_plan
from collage.partitioner.graph.model import Model
from collage.partitioner.ingest.normalize import normalize
from collage.partitioner.target import Target
from collage.report.bench import bench
from collage.report.explain import explain

INT8 = "onnxruntime -quant=dynamic_int8"
TOLERANCE = 0.1


def two_products(folder: Path, opset: int = 17) -> Path:
    """Two layers, wide enough that something is computed."""
    rng = np.random.default_rng(0)
    text = f"""
    <ir_version: 10, opset_import: ["" : {opset}]>
    g (float[8, 256] x) => (float[8, 128] y) {{
       [first] a = MatMul(x, w1)
       [norm] n = LayerNormalization(a, s, t)
       [act] r = Relu(n)
       [second] y = Gemm<transB: int = 1>(r, w2, b)
    }}
    """
    if opset < 17:
        text = text.replace("LayerNormalization(a, s, t)", "Add(a, t)")
    model = ir.from_onnx_text(text)
    arrays = {
        "w1": rng.standard_normal((256, 512)) / 16,
        "s": rng.uniform(0.5, 1.5, 512),
        "t": rng.standard_normal(512),
        "w2": rng.standard_normal((128, 512)) / 22,
        "b": rng.standard_normal(128),
    }
    values = {v.name: v for node in model.graph for v in node.inputs if v is not None}
    for name, array in arrays.items():
        if name in values:
            values[name].const_value = ir.tensor(array.astype(np.float32), name=name)
            model.graph.register_initializer(values[name])
    path = folder / "model.onnx"
    ir.save(model, path)
    return path


def plan_on(model: Model, target: str) -> dict[str, object]:
    names = [node.name for node in model.index.nodes]
    return {
        "format": 1,
        "model_sha256": model.sha256,
        "partitions": [
            {"target": target, "nodes": names[:1]},
            {"target": "onnxruntime", "nodes": names[1:3]},
            {"target": target, "nodes": names[3:]},
        ],
    }


def tuned(source: Path, target: str, folder: Path, tolerance: float = TOLERANCE) -> collage.Artifact:
    """The first and the last layer on a target, what is between on ONNX Runtime in float."""
    options = {"least_opset": 13} if "-quant" in target else {}
    info = normalize(source, folder / "normalized", {}, **options)
    return collage.tune(
        source,
        ["onnxruntime", target],
        output=folder / "tuned.onnx",
        database=f"sqlite:///{folder / 'costs.db'}",
        plan=plan_on(Model.open(info.path), target),
        tolerance=tolerance,
        time_limit_s=5,
        threads=1,
    )


def close(ours: np.ndarray, theirs: np.ndarray, limit: float) -> bool:
    return bool(np.abs(ours - theirs).max() <= limit * np.abs(theirs).max())


@pytest.mark.slow
@pytest.mark.parametrize(
    "target",
    [
        INT8,
        *("onnxruntime -quant=static_int8", "openvino -quant=static_int8"),
        "openvino -quant=weights_int8",
    ],
)
def test_the_artifact_is_int8_for_every_runtime(target: str, tmp_path: Path) -> None:
    source = two_products(tmp_path)
    artifact = tuned(source, target, tmp_path)
    onnx.checker.check_model(str(artifact.path), full_check=True)
    assert {node.domain for node in ir.load(artifact.path).graph} == {""}

    stored = read_plan(artifact.path)
    weights = stored.model.ir.graph.initializers.values()
    dtypes = {v.dtype for v in weights if len(v.shape or ()) == 2}
    assert dtypes == {ir.DataType.INT8}
    assert [str(p.target) for p in stored.plan.partitions] == [target, "onnxruntime", target]
    numbers = "int8 in the file"
    if "weights" in target:
        numbers = "int8: weights in the file, products inside the runtime"
    assert [note.numbers for note in stored.notes] == [numbers, "f32", numbers]
    assert (
        stored.notes[0].prepared.startswith(target.partition("=")[2]) and not stored.notes[1].prepared
    )
    assert explain(artifact.path)["partitions"][0]["numbers"] == numbers
    assert 0 < artifact.report["max_relative_error"] <= TOLERANCE
    assert any("calibrated" in w for w in artifact.report["warnings"]) == (target != INT8)

    x = np.random.default_rng(5).standard_normal((8, 256)).astype(np.float32)
    (plain,) = ort.InferenceSession(artifact.path).run(None, {"x": x})
    (exact,) = ort.InferenceSession(source).run(None, {"x": x})
    with collage.load(artifact.path, threads=1) as session:
        (ours,) = session.run(None, {"x": x})
    # Rounding may fall otherwise in another kernel, by one step of 255.
    assert close(ours, plain, 0.02) and close(ours, exact, TOLERANCE) and not close(ours, exact, 1e-4)

    np.save(tmp_path / "x.npy", x)
    code = (
        "import collage, numpy, sys\n"
        f"session = collage.load({str(artifact.path)!r}, threads=1)\n"
        f"numpy.save({str(tmp_path / 'y.npy')!r}, session.run(None, "
        f"{{'x': numpy.load({str(tmp_path / 'x.npy')!r})}})[0])\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
    assert close(np.load(tmp_path / "y.npy"), ours, 1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("runtime", ["onnxruntime", "openvino"])
def test_weights_in_blocks_are_read_by_both_runtimes(runtime: str, tmp_path: Path) -> None:
    source = two_products(tmp_path)
    target = f"{runtime} -quant=block_int4"
    artifact = tuned(source, target, tmp_path, tolerance=0.3)
    onnx.checker.check_model(str(artifact.path), full_check=True)
    stored = read_plan(artifact.path)
    assert [str(p.target) for p in stored.plan.partitions] == [target, "onnxruntime", target]
    assert stored.model.ir.opset_imports["com.microsoft"] == 1
    assert [node.op for node in stored.model.index.nodes].count("com.microsoft::MatMulNBits") == 2
    numbers = "int4: weights in the file, products inside the runtime"
    assert [note.numbers for note in stored.notes] == [numbers, "f32", numbers]
    assert not any("calibrated" in warning for warning in artifact.report["warnings"])
    assert 1e-4 < artifact.report["max_relative_error"] <= 0.3
    assert artifact.path.stat().st_size < source.stat().st_size / 4

    x = np.random.default_rng(5).standard_normal((8, 256)).astype(np.float32)
    (plain,) = ort.InferenceSession(artifact.path).run(None, {"x": x})
    with collage.load(artifact.path, threads=1) as session:
        (ours,) = session.run(None, {"x": x})
    assert close(ours, plain, 0.02)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("wide", "numbers"),
    [
        ("onnxruntime -quant=static_int8", "int8 and float in the file"),
        ("openvino -quant=static_int8", "int8 and float in the file"),
        (
            "openvino -quant=weights_int8",
            "int8 and float: weights in the file, products inside the runtime",
        ),
    ],
)
def test_an_artifact_may_have_both_in_one_partition(wide: str, numbers: str, tmp_path: Path) -> None:
    source = two_products(tmp_path)
    info = normalize(source, tmp_path / "normalized", {}, least_opset=13)
    runtime = wide.partition(" ")[0]
    model, target = Model.open(info.path), wide.replace(" ", " -float=0-2 ")
    names = [node.name for node in model.index.nodes]
    artifact = collage.tune(
        source,
        [runtime, wide],
        output=tmp_path / "tuned.onnx",
        database=f"sqlite:///{tmp_path / 'costs.db'}",
        plan={
            "format": 1,
            "model_sha256": model.sha256,
            "partitions": [{"target": target, "nodes": names}],
        },
        tolerance=TOLERANCE,
        threads=1,
    )
    onnx.checker.check_model(str(artifact.path), full_check=True)
    stored = read_plan(artifact.path)
    assert [str(p.target) for p in stored.plan.partitions] == [target]
    assert [note.numbers for note in stored.notes] == [numbers]
    matrices = [v for v in stored.model.ir.graph.initializers.values() if len(v.shape or ()) == 2]
    assert {v.dtype for v in matrices} == {ir.DataType.INT8, ir.DataType.FLOAT}
    assert 1e-5 < artifact.report["max_relative_error"] <= TOLERANCE
    x = np.random.default_rng(5).standard_normal((8, 256)).astype(np.float32)
    (plain,) = ort.InferenceSession(artifact.path).run(None, {"x": x})
    with collage.load(artifact.path, threads=1) as session:
        (ours,) = session.run(None, {"x": x})
    assert close(ours, plain, 0.02)


@pytest.mark.slow
def test_an_old_opset_is_raised_for_the_whole_model(tmp_path: Path) -> None:
    artifact = tuned(two_products(tmp_path, 11), INT8, tmp_path)
    assert read_plan(artifact.path).model.ir.opset_imports[""] == 13
    assert any("opset 11 converted to 13" in warning for warning in artifact.report["warnings"])
    assert artifact.plan["partitions"][0]["nodes"] == ["first"]


@pytest.mark.slow
def test_the_plan_alone_is_for_the_model_that_was_given(tmp_path: Path) -> None:
    source = two_products(tmp_path)
    first = tuned(source, INT8, tmp_path)
    again = collage.tune(
        source,
        ["onnxruntime", INT8],
        output=tmp_path / "again.onnx",
        database=f"sqlite:///{tmp_path / 'costs.db'}",
        plan=read_plan_file(first.path),
        tolerance=TOLERANCE,
        threads=1,
    )
    weights = [ir.load(path).graph.initializers for path in (first.path, again.path)]
    assert weights[0].keys() == weights[1].keys()


@pytest.mark.slow
def test_single_targets_are_timed_on_the_model_that_was_tuned(tmp_path: Path) -> None:
    source = two_products(tmp_path)
    artifact = tuned(source, INT8, tmp_path)
    alone = bench(artifact.path, processes=1)
    assert alone["latency_us"] and all("--model" in b["infeasible"] for b in alone["baselines"])
    exact, int8 = bench(artifact.path, source=source, processes=1)["baselines"]
    assert exact["max_relative_error"] < 1e-4 < int8["max_relative_error"] < TOLERANCE


def test_load_quantizes_nothing(tmp_path: Path) -> None:
    model = Model.open(normalize(two_products(tmp_path), tmp_path / "normalized", {}).path)
    plan = Plan((Candidate(model.index.all_nodes, Target.parse(INT8)),))
    verification = '{"seeds": [], "inputs": [], "values": [], "tolerance": {}}'
    path = annotate(model, plan, {"collage.verification": verification}, tmp_path / "a.onnx")
    with pytest.raises(LoadError, match="were not rewritten"):
        collage.load(path, threads=1)
