"""Small models of one operator: ONNX's own node tests, and operators that ONNX Runtime adds in `com.microsoft`."""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
from onnx.backend.test.loader import load_model_tests

from benchmarks.breadth.contrib import CONTRIB
from benchmarks.breadth.packages import Entry, sizes


def contrib_models(folder: Path) -> Iterator[Entry]:
    """A model for each operator of ONNX Runtime's own."""
    for name, inputs, outputs, weights, nodes in CONTRIB:
        text = f'<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]> m ({inputs}) => ({outputs}) {{ {nodes} }}'
        model = onnx.parser.parse_model(text)
        draw = np.random.default_rng(len(name))
        for written in filter(None, weights.split(";")):
            model.graph.initializer.append(_weight(written, draw))
        yield _saved(model, f"com.microsoft {name}", "contrib", folder)


def _weight(written: str, draw: np.random.Generator) -> onnx.TensorProto:
    name, shape, dtype = (*written.split(":"), "float32")[:3]
    sizes_ = [int(size) for size in shape.split(",") if size]
    if dtype == "one":
        return onnx.numpy_helper.from_array(np.array(1, np.int32), name)
    if np.dtype(dtype).kind in "iu":
        most = 255 if dtype == "uint8" else 100
        array = np.asarray(draw.integers(0, most, sizes_)).astype(dtype)
    else:
        array = np.asarray(draw.uniform(0.01, 0.2, sizes_)).astype(np.float32)
    return onnx.numpy_helper.from_array(array, name)


def zoo_models(folder: Path, count: int) -> Iterator[Entry]:
    """Evenly spread node tests of ONNX, each with its first inputs; all of them where `count` is 0."""
    with warnings.catch_warnings(), tempfile.TemporaryDirectory():
        warnings.simplefilter("ignore")  # the cases compute with infinities on purpose
        cases = sorted(load_model_tests(kind="node"), key=lambda case: case.name)
    step = max(1, len(cases) // count) if count else 1
    for case in cases[::step][: count or None]:
        if case.model is None:
            continue
        given = case.data_sets[0][0] if case.data_sets else ()
        names = [value.name for value in case.model.graph.input]
        inputs = {
            name: value
            for name, value in zip(names, given, strict=False)
            if isinstance(value, np.ndarray) and value.dtype.kind in "fiubU"
        }
        entry = _saved(case.model, case.name, "zoo", folder)
        yield Entry(
            entry.name,
            entry.source,
            entry.path,
            entry.dims,
            inputs if len(inputs) == len(names) else {},
        )


def _saved(model: onnx.ModelProto, name: str, source: str, folder: Path) -> Entry:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name.replace(' ', '-')}.onnx"
    onnx.save(model, path)
    return Entry(name, source, path, sizes(model))
