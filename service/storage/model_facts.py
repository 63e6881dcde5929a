"""What the form of a new job needs to know of a model: its inputs and their free dimensions.

It reads a file from users: run it in a sandboxed child.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from collage.partitioner.ingest.model_dims import read_dims
from collage.partitioner.ingest.safety import read_checked
from collage.partitioner.ingest.source import model_file
from collage.partitioner.lazy import ir

_OPERATORS_SHOWN = 8


def model_facts(source: Path, scratch: Path) -> dict[str, Any]:
    """The inputs of a model and how large it is, as JSON-ready data.

    Args:
        source: an ONNX file, or a zip of one with its external data.
        scratch: an empty folder to unpack in.

    Returns:
        `inputs`: name, dtype, dims; `free`: the free dimensions as `dims` names them, without those that
        follow from others, each with the input, axis and symbol; `operators`, `nodes`, `opset`.

    Raises:
        ModelError: it is no model that can be tuned.
    """
    model = read_checked(model_file(source, scratch))
    dims = read_dims(ir.from_proto(model))
    free = [
        {
            "name": name,
            "symbol": ""
            if name == f"{dims.places[name][0][0].name}:{dims.places[name][0][1]}"
            else name,
            "used": [{"input": tensor.name, "axis": axis} for tensor, axis in dims.places[name]],
        }
        for name in dims.free
    ]
    described = [
        {
            "name": tensor.name,
            "dtype": tensor.dtype,
            "dims": ["?" if dim is None else str(dim) for dim in tensor.dims],
        }
        for tensor in dims.inputs
    ]
    counts = Counter(node.op_type for node in model.graph.node)
    return {
        "inputs": described,
        "free": free,
        "operators": dict(counts.most_common(_OPERATORS_SHOWN)),
        "nodes": len(model.graph.node),
        "opset": max((each.version for each in model.opset_import if not each.domain), default=0),
    }
