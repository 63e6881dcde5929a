"""Reference outputs, and seeded inputs where the user gives none.

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
from collage.partitioner.errors import ModelError
from collage.partitioner.graph.graph_index import GraphIndex
from collage.partitioner.tensor import TensorSpec

Array = np.ndarray

# Metadata of a widened model: the outputs that are rounded to half precision.
_ROUNDED = "collage.rounded"
# Integers without a hint are small: they may be ids for a table, steps or lengths.
_ID_BOUND = 8
_TO_UNIT_VARIANCE = 1.7320508075688772  # four uniform numbers have a variance of 4/12
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
            shape = tuple(dim if isinstance(dim, int) and dim >= 0 else None for dim in node.shape)
            # Of an unknown rank it says the same as of a scalar.
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
        array = np.ascontiguousarray(inputs[node.name])
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
    made = {n: _to_numpy(v) for n, v in zip(outputs, binding.get_outputs(), strict=True)}
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


def _to_numpy(value: Any) -> Array:
    dtype = _NUMPY_NAME.get(value.data_type())
    if dtype is None:
        return np.array(value.numpy())
    # numpy() refuses these types, so the bytes are copied.
    shape = tuple(value.shape())
    size = math.prod(shape) * np.dtype(dtype).itemsize
    raw = ctypes.string_at(value.data_ptr(), size) if size else b""
    return np.frombuffer(raw, dtype=dtype).reshape(shape).copy()


def seeded_inputs(
    specs: Sequence[TensorSpec],
    seed: int,
    bounds: Mapping[str, int] | None = None,
    by_name: bool = True,
) -> dict[str, Array]:
    """Inputs for any dtype, the same to the bit for one seed on every machine.

    Floats are standard normal; integers are small ids from 0; booleans are mixed; text is short. Inputs with a usual
    name have usual values: `…mask` is ones, `position_ids` count up, `past…` is small.

    Args:
        specs: inputs with static shapes.
        bounds: for integer inputs, the length of the table that they index.
        by_name: give inputs with usual names usual values; artifacts of version 0.1 were made without.

    Raises:
        ModelError: an input's type or shape is not known.
    """
    values = {}
    for position, spec in enumerate(specs):
        if not spec.is_static:
            raise ModelError(
                f"input {spec.name!r} has no static shape or type ({spec.dtype}, {spec.shape}); "
                "bind its free dimensions, or give sample inputs"
            )
        bits = np.random.PCG64([seed, position])
        bound = (bounds or {}).get(spec.name, _ID_BOUND)
        values[spec.name] = _random(spec, bits, max(1, bound))
        if by_name:
            values[spec.name] = _as_named(spec.name, values[spec.name])
    return values


def _as_named(name: str, drawn: Array) -> Array:
    """What an input of this name usually holds: seeded masks of 0 and 1 make transformers answer NaN."""
    last = name.lower().rpartition("/")[2].rpartition(".")[2]
    if drawn.dtype.kind not in "biuf" or not drawn.size:
        return drawn
    if last.endswith("mask"):
        return np.ones_like(drawn)
    if last in ("position_ids", "positions") and drawn.dtype.kind in "iu" and drawn.ndim:
        counted = np.arange(drawn.shape[-1], dtype=drawn.dtype)
        return np.ascontiguousarray(np.broadcast_to(counted, drawn.shape))
    if (
        any(part.startswith("past") for part in name.lower().replace("/", ".").split("."))
        and drawn.dtype.kind == "f"
    ):
        return np.asarray(drawn * drawn.dtype.type(0.125), dtype=drawn.dtype)
    return drawn


def table_bounds(index: GraphIndex) -> dict[str, int]:
    """Integer inputs that index a short table: by name its length."""
    bounds: dict[str, int] = {}
    for node in index.nodes:
        if node.op_type != "Gather" or node.domain or len(node.inputs) < 2:
            continue
        table, name = index.values[node.inputs[0]], node.inputs[1]
        axis = node.attributes.get("axis", 0)
        if name in index.inputs and table.is_static and isinstance(axis, int):
            rows = table.static_shape[axis]
            if rows < _ID_BOUND:
                bounds[name] = min(rows, bounds.get(name, rows))
    return bounds


def _random(spec: TensorSpec, bits: np.random.PCG64, bound: int) -> Array:
    # numpy promises only the raw bits never to change; every step from them is exact.
    shape = spec.static_shape
    raw = bits.random_raw(math.prod(shape)).reshape(shape)
    if spec.dtype == "object":
        return np.array([f"word{n % bound}" for n in raw.reshape(-1)], dtype=object).reshape(shape)
    dtype = np.dtype(spec.dtype)
    if dtype.kind == "b":
        return (raw & 1).astype(bool)
    if dtype.kind in "iu":
        return (raw % np.uint64(min(bound, int(np.iinfo(dtype).max) + 1))).astype(dtype)
    if dtype.kind == "c":
        return np.asarray(_normal(raw) + 1j * _normal(raw[::-1]), dtype=dtype)
    return _normal(raw).astype(dtype)


def _normal(raw: Array) -> Array:
    """Nearly standard normal float32 from 64 random bits each: the sum of four uniform numbers."""
    total = np.zeros(raw.shape, dtype=np.int64)
    for shift in (0, 16, 32, 48):
        total += ((raw >> np.uint64(shift)) & np.uint64(0xFFFF)).astype(np.int64)
    centered = (total - 2 * 0xFFFF).astype(np.float64)
    return np.asarray(centered / 65536 * _TO_UNIT_VARIANCE, dtype=np.float32)
