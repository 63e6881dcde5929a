"""Small models of one operator: ONNX's own node tests, and operators that ONNX Runtime adds in `com.microsoft`."""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
from onnx.backend.test.loader import load_model_tests

from benchmarks.breadth.packages import Entry, sizes

_X = "float[2, 4, 8] x"
_Q = "float s = {0.05}, uint8 z = {128}"

# Name, inputs, outputs, weights as `name: type[shape]` drawn at random, and the nodes.
_CONTRIB: tuple[tuple[str, str, str, str, str], ...] = (
    ("Gelu", _X, "float[2, 4, 8] y", "", "y = com.microsoft.Gelu(x)"),
    ("QuickGelu", _X, "float[2, 4, 8] y", "", "y = com.microsoft.QuickGelu(x)"),
    ("FastGelu", _X, "float[2, 4, 8] y", "b:8", "y = com.microsoft.FastGelu(x, b)"),
    ("BiasGelu", _X, "float[2, 4, 8] y", "b:8", "y = com.microsoft.BiasGelu(x, b)"),
    ("FusedMatMul", _X, "float[2, 4, 6] y", "w:6,8", "y = com.microsoft.FusedMatMul<transB = 1, alpha = 0.5>(x, w)"),
    ("TransposeMatMul", _X, "float[2, 4, 6] y", "w:6,8", "y = com.microsoft.TransposeMatMul<transB = 1>(x, w)"),
    ("FusedGemm", "float[4, 8] x", "float[4, 6] y", "w:8,6;b:6", 'y = com.microsoft.FusedGemm<activation = "Relu">(x, w, b)'),
    ("FusedConv", "float[1, 3, 8, 8] x", "float[1, 4, 6, 6] y", "w:4,3,3,3", 'y = com.microsoft.FusedConv<activation = "Relu">(x, w)'),
    ("SkipLayerNormalization", _X, "float[2, 4, 8] y", "g:8;b:8", "y = com.microsoft.SkipLayerNormalization(x, x, g, b)"),
    ("SkipSimplifiedLayerNormalization", _X, "float[2, 4, 8] y", "g:8", "y = com.microsoft.SkipSimplifiedLayerNormalization(x, x, g)"),
    ("SimplifiedLayerNormalization", _X, "float[2, 4, 8] y", "g:8", "y = SimplifiedLayerNormalization<axis = -1>(x, g)"),
    ("Attention", _X, "float[2, 4, 8] y", "w:8,24;b:24", "y = com.microsoft.Attention<num_heads = 2>(x, w, b)"),
    ("MultiHeadAttention", _X, "float[2, 4, 8] y", "", "y = com.microsoft.MultiHeadAttention<num_heads = 2>(x, x, x)"),
    ("RotaryEmbedding", "float[1, 4, 16] x, int64[1, 4] position_ids", "float[1, 4, 16] y", "c:8,4;s:8,4",
     "y = com.microsoft.RotaryEmbedding<num_heads = 2>(x, position_ids, c, s)"),
    ("DynamicQuantizeMatMul", "float[4, 8] x", "float[4, 6] y", "w:8,6:uint8;ws:1", "y = com.microsoft.DynamicQuantizeMatMul(x, w, ws)"),
    ("MatMulIntegerToFloat", "uint8[4, 8] x", "float[4, 6] y", "w:8,6:uint8;s:1;t:1", "y = com.microsoft.MatMulIntegerToFloat(x, w, s, t)"),
    ("MatMulNBits", "float[4, 32] x", "float[4, 6] y", "w:6,1,16:uint8;s:6",
     "y = com.microsoft.MatMulNBits<K = 32, N = 6, bits = 4, block_size = 32>(x, w, s)"),
    ("QLinearAdd", "uint8[4, 8] x", "uint8[4, 8] y", "s:;z::uint8", "y = com.microsoft.QLinearAdd(x, s, z, x, s, z, s, z)"),
    ("QLinearMul", "uint8[4, 8] x", "uint8[4, 8] y", "s:;z::uint8", "y = com.microsoft.QLinearMul(x, s, z, x, s, z, s, z)"),
    ("QLinearSigmoid", "uint8[4, 8] x", "uint8[4, 8] y", "s:;z::uint8", "y = com.microsoft.QLinearSigmoid(x, s, z, s, z)"),
    ("QLinearLeakyRelu", "uint8[4, 8] x", "uint8[4, 8] y", "s:;z::uint8", "y = com.microsoft.QLinearLeakyRelu(x, s, z, s, z)"),
    ("QLinearGlobalAveragePool", "uint8[1, 4, 5, 5] x", "uint8[1, 4, 1, 1] y", "s:;z::uint8", "y = com.microsoft.QLinearGlobalAveragePool(x, s, z, s, z)"),
    ("QLinearConcat", "uint8[4, 8] x", "uint8[4, 16] y", "s:;z::uint8", "y = com.microsoft.QLinearConcat<axis = 1>(s, z, x, s, z, x, s, z)"),
    ("Inverse", "float[2, 3, 3] x", "float[2, 3, 3] y", "", "y = com.microsoft.Inverse(x)"),
    ("CDist", "float[4, 8] x", "float[4, 6] y", "w:6,8", "y = com.microsoft.CDist(x, w)"),
    ("ExpandDims", "float[4, 8] x", "float[4, 1, 8] y", "a::one", "y = com.microsoft.ExpandDims(x, a)"),
    ("Trilu", _X, "float[2, 4, 8] y", "", "y = com.microsoft.Trilu(x)"),
    ("GridSample", "float[1, 2, 4, 4] x, float[1, 3, 3, 2] g", "float[1, 2, 3, 3] y", "", "y = com.microsoft.GridSample(x, g)"),
    ("BifurcationDetector", "int64[4] src, int64[5] cur, int64 at, int64[2] pred", "int64[t] tokens, int64 suffix", "",
     "tokens, suffix = com.microsoft.BifurcationDetector(src, cur, at, pred)"),
)  # fmt: skip


def contrib_models(folder: Path) -> Iterator[Entry]:
    """A model for each operator of ONNX Runtime's own, with a Relu or Identity behind it where it gives floats."""
    for name, inputs, outputs, weights, nodes in _CONTRIB:
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
    if dtype == "uint8":
        array = np.asarray(draw.integers(0, 255, sizes_)).astype(np.uint8)
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
