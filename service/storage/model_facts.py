"""What the form of a new job needs to know of a model: its inputs and their free dimensions.

It reads a file from users: run it in a sandboxed child.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import onnx

from collage.partitioner.ingest.safety import read_checked
from collage.partitioner.ingest.source import model_file

_OPERATORS_SHOWN = 8


def model_facts(source: Path, scratch: Path) -> dict[str, Any]:
    """The inputs of a model and how large it is, as JSON-ready data.

    Args:
        source: an ONNX file, or a zip of one with its external data.
        scratch: an empty folder to unpack in.

    Returns:
        `inputs`: name, dtype, dims; `free`: the free dimensions as `dims` names them, each with the input,
        axis and symbol; `operators`, `nodes`, `opset`.

    Raises:
        ModelError: it is no model that can be tuned.
    """
    model = read_checked(model_file(source, scratch))
    fixed = {tensor.name for tensor in model.graph.initializer}
    inputs = [value for value in model.graph.input if value.name not in fixed]
    free: dict[str, dict[str, Any]] = {}
    described = []
    for value in inputs:
        dims = []
        for axis, dim in enumerate(value.type.tensor_type.shape.dim):
            if dim.HasField("dim_value") and dim.dim_value >= 0:
                dims.append(str(dim.dim_value))
                continue
            symbol = dim.dim_param if dim.HasField("dim_param") and dim.dim_param != "?" else ""
            name = symbol or f"{value.name}:{axis}"
            dims.append(symbol or "?")
            entry = free.setdefault(name, {"name": name, "symbol": symbol, "used": []})
            entry["used"].append({"input": value.name, "axis": axis})
        described.append({"name": value.name, "dtype": _dtype(value), "dims": dims})
    counts = Counter(node.op_type for node in model.graph.node)
    return {
        "inputs": described,
        "free": list(free.values()),
        "operators": dict(counts.most_common(_OPERATORS_SHOWN)),
        "nodes": len(model.graph.node),
        "opset": max((each.version for each in model.opset_import if not each.domain), default=0),
    }


def _dtype(value: onnx.ValueInfoProto) -> str:
    kind = value.type.tensor_type.elem_type
    try:
        return str(onnx.TensorProto.DataType.Name(kind)).lower()
    except ValueError:
        return "unknown"
