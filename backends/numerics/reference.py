"""Reference outputs.

The reference is ONNX Runtime on one thread with every optimization off: the same to the bit on each
run, with nothing fused. Half precision is computed in single precision and rounded once
(`collage.backends.numerics.half_precision`).

Call `run_reference` in a sandboxed child: it runs native code on the user's model.
"""

from __future__ import annotations

import ctypes
import json
import math
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import ml_dtypes  # noqa: F401  (registers bfloat16, float8 … with numpy)
import numpy as np
import onnx

from collage.backends.numerics.half_precision import is_half, widen
from collage.backends.numerics.seeded import ID_BOUND
from collage.partitioner.graph.graph_index import GraphIndex, NodeInfo
from collage.partitioner.tensor import TensorSpec

Array = np.ndarray

# Metadata of a widened model: the outputs that are rounded to half precision.
_ROUNDED = "collage.rounded"
_TENSOR = re.compile(r"tensor\((\w+)\)")
# ONNX Runtime's names of types that are not numpy's own.
_NUMPY_OF = {"float": "float32", "double": "float64", "string": "object"} | {
    name: name
    for name in (
        *("bool", "float16", "bfloat16", "int8", "int16", "int32", "int64"),
        *("uint8", "uint16", "uint32", "uint64"),
    )
}
# Types that numpy cannot hand over itself: its name → the number of ONNX's TensorProto.DataType.
_ONNX_NUMBER = {
    "bfloat16": 16,
    "float8_e4m3fn": 17,
    "float8_e4m3fnuz": 18,
    "float8_e5m2": 19,
    "float8_e5m2fnuz": 20,
}
_NUMPY_NAME = {
    "tensor(bfloat16)": "bfloat16",
    "tensor(float8e4m3fn)": "float8_e4m3fn",
    "tensor(float8e4m3fnuz)": "float8_e4m3fnuz",
    "tensor(float8e5m2)": "float8_e5m2",
    "tensor(float8e5m2fnuz)": "float8_e5m2fnuz",
}
# Operators that look up rows of tables: which input has the ids, and which one the table.
_LOOKUPS = {
    **{op: {1: 0} for op in ("Gather", "GatherElements", "Scatter", "ScatterElements")},
    **{op: {4: 0} for op in ("GRU", "LSTM", "RNN")},  # lengths within the steps
    "com.microsoft::EmbedLayerNormalization": {0: 2, 1: 4, 8: 3},
    "com.microsoft::QEmbedLayerNormalization": {0: 2, 1: 4},
}
# Operators whose outputs hold elements of their first input alone.
_PASS_ON = frozenset(
    {
        *("Cast", "Expand", "Flatten", "Gather", "Identity", "Reshape", "Slice"),
        *("Split", "Squeeze", "Tile", "Transpose", "Unsqueeze"),
    }
)


def run_reference(
    model_path: Path, inputs: Mapping[str, Array], outputs: Sequence[str]
) -> dict[str, Array]:
    """Run a model without optimization and return values by name.

    Args:
        model_path: an ONNX file; external data lies beside it.
        inputs: every graph input by name.
        outputs: names of graph outputs.

    Returns:
        The values, owned by the caller.
    """
    session = reference_session(model_path)
    return run_session(session, inputs, outputs)


def reference_session(model_path: Path) -> Any:
    """An ONNX Runtime session with one thread and optimization off."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    options.execution_mode = ort.ExecutionMode.ORT_SEQUENTIAL
    options.enable_mem_pattern = False
    with _computed_in_single(model_path) as path:
        return ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def session_types(model_path: Path, names: Sequence[str]) -> dict[str, TensorSpec]:
    """What ONNX Runtime infers of graph outputs; dimensions that it leaves open are None.

    Args:
        model_path: an ONNX file.
        names: of graph outputs; those that are no tensors are left out, and all where it refuses the model.
    """
    try:
        session = reference_session(model_path)
    except Exception:  # the reference run reports why, with its inputs
        return {}
    found = {}
    for node in session.get_outputs():
        match = _TENSOR.fullmatch(node.type)
        if node.name in names and match is not None and match[1] in _NUMPY_OF:
            # It says the same of a scalar and of a value whose rank it does not know.
            shape = tuple(dim if isinstance(dim, int) and dim >= 0 else None for dim in node.shape)
            found[node.name] = TensorSpec(node.name, _NUMPY_OF[match[1]], shape or None)
    return found


@contextmanager
def _computed_in_single(path: Path) -> Iterator[Path]:
    """The model itself, or where it has half precision a copy that computes in single precision."""
    model = onnx.load(path, load_external_data=False)
    if not is_half(model):
        yield path
        return
    onnx.load_external_data_for_model(model, str(path.parent))
    halves = widen(model)
    onnx.helper.set_model_props(model, {_ROUNDED: json.dumps(halves)})
    with tempfile.TemporaryDirectory(prefix="single-") as folder:
        copy = Path(folder, "model.onnx")
        onnx.save(model, copy, save_as_external_data=True, location="weights")
        yield copy


def run_session(session: Any, inputs: Mapping[str, Array], outputs: Sequence[str]) -> dict[str, Array]:
    """Run a session with values that numpy may have no type for."""
    given = {}
    for node in session.get_inputs():
        # `np.ascontiguousarray` would make a row of a scalar.
        array = np.asarray(inputs[node.name], order="C")
        is_widened = array.dtype == np.float16 and node.type == "tensor(float)"
        given[node.name] = array.astype(np.float32) if is_widened else array
    if any(array.dtype.hasobject for array in given.values()):  # text cannot be bound
        made = dict(zip(outputs, session.run(list(outputs), given), strict=True))
        return _rounded(session, made)
    binding = session.io_binding()
    values = {name: ort_value(array) for name, array in given.items()}
    for name, value in values.items():
        binding.bind_ortvalue_input(name, value)
    for name in outputs:
        binding.bind_output(name, "cpu")
    session.run_with_iobinding(binding)
    made = {n: np.array(array_of(v)) for n, v in zip(outputs, binding.get_outputs(), strict=True)}
    return _rounded(session, made)


def ort_value(array: Array) -> Any:
    """An `OrtValue` on an array's memory, which it does not own."""
    from onnxruntime import OrtValue

    number = _ONNX_NUMBER.get(array.dtype.name)
    if number is None:
        return OrtValue.ortvalue_from_numpy(array)
    raw = array.view(np.uint16 if array.itemsize == 2 else np.uint8)
    return OrtValue.ortvalue_from_numpy_with_onnx_type(raw, number)


def _rounded(session: Any, made: dict[str, Array]) -> dict[str, Array]:
    """Values that have half precision in the model, rounded to it."""
    rounded = json.loads(session.get_modelmeta().custom_metadata_map.get(_ROUNDED, "[]"))
    with np.errstate(over="ignore"):
        return {n: a.astype(np.float16) if n in rounded else a for n, a in made.items()}


def array_of(value: Any) -> Array:
    """The array of an `OrtValue`: its own memory, but for types that numpy cannot have."""
    dtype = _NUMPY_NAME.get(value.data_type())
    if dtype is None:
        return np.asarray(value.numpy())
    # numpy() refuses these types, so the bytes are copied.
    shape = tuple(value.shape())
    size = math.prod(shape) * np.dtype(dtype).itemsize
    raw = ctypes.string_at(value.data_ptr(), size) if size else b""
    return np.frombuffer(raw, dtype=dtype).reshape(shape).copy()


def table_bounds(index: GraphIndex) -> dict[str, int]:
    """Integer inputs that index a short table, by themselves or reshaped: by name its length."""
    bounds: dict[str, int] = {}
    for node in index.nodes:
        for position, of_table in _LOOKUPS.get(node.op, {}).items():
            ids, table = (_input(node, at) for at in (position, of_table))
            axis = node.attributes.get("axis", 0)
            if not ids or not table or not index.values[table].is_static or not isinstance(axis, int):
                continue
            name, rows = _source(index, ids), index.values[table].static_shape[axis]
            if name in index.inputs and rows < ID_BOUND:
                bounds[name] = min(rows, bounds.get(name, rows))
    return bounds


def _input(node: NodeInfo, position: int) -> str:
    return node.inputs[position] if position < len(node.inputs) else ""


def _source(index: GraphIndex, name: str) -> str:
    """The value of which another one holds elements and no others."""
    while name in index.producer:
        node = index.nodes[index.producer[name]]
        if node.op not in _PASS_ON:
            break
        name = node.inputs[0]
    return name
