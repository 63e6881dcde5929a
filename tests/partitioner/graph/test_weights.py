"""Weights: what is written is what was read, in every type, inline and external, at any size."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import pytest

from collage.partitioner.errors import ModelError
from collage.partitioner.graph import weights


def _model(arrays: dict[str, np.ndarray]) -> ir.Model:
    """Every weight goes into a node of its own."""
    values = [
        ir.Value(
            name=name,
            const_value=(t := ir.tensor(array, name=name)),
            type=ir.TensorType(t.dtype),
            shape=t.shape,  # type: ignore[arg-type]
        )
        for name, array in arrays.items()
    ]
    nodes = [ir.node("Identity", [value], name=f"n_{value.name}") for value in values]
    for node, value in zip(nodes, values, strict=True):
        node.outputs[0].name, node.outputs[0].type = f"out_{value.name}", value.type
        node.outputs[0].shape = value.shape
    graph = ir.Graph(
        [],
        [n.outputs[0] for n in nodes],
        nodes=nodes,
        initializers=values,
        opset_imports={"": 25},
        name="g",
    )
    return ir.Model(graph, ir_version=13)


_DTYPES = [np.float32, np.float64, np.float16, np.int8, np.int64, np.bool_]
_ODD = [
    ml_dtypes.bfloat16,
    ml_dtypes.float8_e4m3fn,
    ml_dtypes.int4,
    ml_dtypes.uint4,
    ml_dtypes.float4_e2m1fn,
]


def _arrays(size: int) -> dict[str, np.ndarray]:
    made = {np.dtype(d).name: (np.arange(size) % 5).reshape(1, -1).astype(d) for d in (*_DTYPES, *_ODD)}
    return {**made, "scalar": np.array(3, np.int64), "empty": np.zeros((0, 4), np.float32)}


@pytest.mark.parametrize("size", [1, 3, 5000])
@pytest.mark.parametrize("limit", [0, 1 << 30])
def test_every_type_comes_back(tmp_path: Path, size: int, limit: int) -> None:
    arrays = _arrays(size)
    model = _model(arrays)
    path = tmp_path / "m.onnx"
    weights.write(weights.whole_structure(model), list(model.graph.initializers.values()), path, limit)
    onnx.checker.check_model(str(path))
    again = ir.load(path)
    assert list(again.graph.initializers) == list(arrays)
    for name, array in arrays.items():
        found = weights.data_of(again.graph.initializers[name]).numpy()
        assert found.dtype == array.dtype and found.shape == array.shape
        assert found.tolist() == array.tolist()
    assert weights.digest(again) == weights.digest(model)
    assert (tmp_path / "m.onnx.weights").exists() == (size == 5000 and limit == 0)
    assert not list(tmp_path.glob("*.partial"))


def test_strings_come_back(tmp_path: Path) -> None:
    model = _model({"s": np.array(["a", "", "é" * 900], dtype=object)})
    for limit in (0, 1 << 30):
        path = tmp_path / f"{limit}.onnx"
        weights.write(
            weights.whole_structure(model), list(model.graph.initializers.values()), path, limit
        )
        again = ir.load(path)
        found = onnx.numpy_helper.to_array(onnx.load(path).graph.initializer[0])
        assert found.tolist() == ["a", "", "é" * 900]
        assert weights.digest(again) == weights.digest(model)


def test_the_bytes_are_those_of_protobuf(tmp_path: Path) -> None:
    """The file is put together by hand: the protobuf library must see nothing unusual in it."""
    model = _model({"w": np.arange(70_000, dtype=np.float32)})
    path = tmp_path / "m.onnx"
    weights.write(weights.whole_structure(model), list(model.graph.initializers.values()), path)
    proto = onnx.load(path)
    assert len(proto.SerializeToString()) == path.stat().st_size
    assert np.array_equal(onnx.numpy_helper.to_array(proto.graph.initializer[0]), np.arange(70_000))


def test_a_model_of_two_operator_sets_is_one_for_openvino(tmp_path: Path) -> None:
    """It mistakes a file that names two before the graph for another format."""
    import openvino

    model = _model({"w": np.ones((2, 2), np.float32)})
    model.graph.opset_imports["ai.onnx.ml"] = 3
    path = tmp_path / "m.onnx"
    weights.write(weights.whole_structure(model), list(model.graph.initializers.values()), path)
    assert len(onnx.load(path).opset_import) == 2
    assert openvino.Core().read_model(path).outputs


def test_large_tensors_start_on_pages_and_small_ones_within(tmp_path: Path) -> None:
    model = _model({"a": np.ones(300, np.float32), "small": np.ones(3), "b": np.ones(5000, np.float32)})
    path = tmp_path / "m.onnx"
    weights.write(weights.whole_structure(model), list(model.graph.initializers.values()), path, 0)
    proto = onnx.load(path, load_external_data=False)
    places = {
        t.name: {e.key: e.value for e in t.external_data}.get("offset") for t in proto.graph.initializer
    }
    assert places == {"a": "0", "small": None, "b": "4096"}


def test_the_digest_sees_structure_and_data_but_not_our_marks() -> None:
    base = weights.digest(_model({"w": np.ones(4, np.float32)}))
    assert base == weights.digest(_model({"w": np.ones(4, np.float32)}))
    assert base != weights.digest(_model({"w": np.array([1, 1, 1, 2], np.float32)}))
    assert base != weights.digest(_model({"v": np.ones(4, np.float32)}))
    assert base != weights.digest(_model({"w": np.ones((2, 2), np.float32)}))
    marked = _model({"w": np.ones(4, np.float32)})
    marked.metadata_props["collage.plan"] = "x"
    marked.graph[0].metadata_props["collage.partition"] = "0"
    assert base == weights.digest(marked)
    marked.graph[0].name = "other"
    assert base != weights.digest(marked)


def test_external_data_that_ends_too_early_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "w.bin").write_bytes(bytes(100))
    tensor = ir.ExternalTensor(
        "w.bin", 0, 400, ir.DataType.FLOAT, shape=ir.Shape([100]), name="w", base_dir=str(tmp_path)
    )
    with pytest.raises(ModelError, match=r"'w' ends too early"):
        list(weights.chunks(tensor))


@pytest.mark.slow
def test_weights_over_2_gib_never_fill_the_memory(tmp_path: Path) -> None:
    """Ingest, open, extract and annotate a model of 2.4 GB: memory grows by less than 150 MB."""
    code = f"""
        import json, os, resource, sys
        from pathlib import Path
        import onnx
        from collage.partitioner.emit import annotate, extract
        from collage.partitioner.graph import weights
        from collage.partitioner.ingest import normalize
        from collage.partitioner.candidate import Candidate, Plan
        from collage.partitioner.graph.model import Model
        from collage.partitioner.target import Target

        folder = Path({str(tmp_path)!r})
        side, count = 8192, 9
        nodes, tensors = [], []
        for i in range(count):
            names = [f"h{{i}}", f"w{{i}}"], [f"h{{i + 1}}"]
            nodes.append(onnx.helper.make_node("MatMul", *names, name=f"n{{i}}"))
            tensor = onnx.TensorProto(name=f"w{{i}}", data_type=1, dims=[side, side], data_location=1)
            place = {{"location": "w.bin", "offset": i * side * side * 4, "length": side * side * 4}}
            for key, value in place.items():
                tensor.external_data.add(key=key, value=str(value))
            tensors.append(tensor)
        value = onnx.helper.make_tensor_value_info
        graph = onnx.helper.make_graph(
            nodes, "g", [value("h0", 1, [1, side])], [value(f"h{{count}}", 1, [1, side])], tensors
        )
        imports = [onnx.helper.make_opsetid("", 21)]
        proto = onnx.helper.make_model(graph, opset_imports=imports, ir_version=10)
        onnx.save(proto, folder / "m.onnx")
        with open(folder / "w.bin", "wb") as file:
            file.truncate(count * side * side * 4)

        def peak():
            return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10

        before = peak()
        info = normalize.normalize(folder / "m.onnx", folder / "n", {{}})
        (folder / "w.bin").unlink()
        model = Model.open(info.path)
        part = extract.extract(model, model.index.all_nodes, folder / "e")
        sizes = [(folder / "e" / "model.onnx").stat().st_size]
        (folder / "e" / "model.onnx.weights").unlink()
        plan = Plan((Candidate(model.index.all_nodes, Target.parse("onnxruntime")),))
        annotate.annotate(model, plan, {{}}, folder / "a.onnx")
        sizes.append((folder / "a.onnx").stat().st_size)
        annotate.read_plan(folder / "a.onnx")
        print(json.dumps([peak() - before, sizes, (folder / "a.onnx.weights").stat().st_size]))
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, encoding="utf-8", check=True
    )
    grown_mb, sizes, outside = json.loads(done.stdout)
    assert grown_mb < 150
    assert max(sizes) < 1 << 16
    assert outside > 1 << 31
