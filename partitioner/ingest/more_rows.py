"""A model with more rows: its first dimension, 1 in all inputs, becomes so many requests that are computed in one call.

Shapes inside follow from those of the inputs. Constants that state the first dimension are changed: the target of a
Reshape copies it, and the sizes of a Resize state the new one. Whether the rows stay apart is not known from this: whoever
calls compares them with rows that run alone.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper

_SIZES = 3  # which input of a Resize


def write_rows(source: Path, rows: int, destination: Path) -> str | None:
    """Write a normalized model with more rows.

    Args:
        source: every input has the first dimension 1.
        rows: in place of 1.
        destination: the file to write, in a folder that exists.

    Returns:
        Why it cannot be written, or None.
    """
    model = onnx.load(source)
    graph = model.graph
    for value in (*graph.input, *graph.output):
        dims = value.type.tensor_type.shape.dim
        if not dims or dims[0].dim_value != 1:
            return f"the first dimension of {value.name!r} is not 1"
    for value in graph.input:
        value.type.tensor_type.shape.dim[0].dim_value = rows
    for value in graph.output:
        value.type.tensor_type.ClearField("shape")
    del graph.value_info[:]
    constants = {tensor.name: tensor for tensor in graph.initializer}
    for node in graph.node:
        if node.op_type == "Reshape" and node.input[0] not in constants:
            _change(graph, constants, node, 1, _copied(node))
        elif node.op_type == "Resize" and len(node.input) > _SIZES:
            _change(graph, constants, node, _SIZES, rows)
    outside = source.with_name(f"{source.name}.weights").is_file()
    onnx.save(
        model,
        destination,
        save_as_external_data=outside,
        location=f"{destination.name}.weights",
    )
    return None


def _copied(node: onnx.NodeProto) -> int:
    """What stands in a Reshape for the first dimension of its input: 0, or -1 where 0 means none."""
    return -1 if any(each.name == "allowzero" and each.i for each in node.attribute) else 0


def _change(
    graph: onnx.GraphProto,
    constants: dict[str, onnx.TensorProto],
    node: onnx.NodeProto,
    position: int,
    first: int,
) -> None:
    """Give a node a constant of its own with another first number, where that is 1."""
    tensor = constants.get(node.input[position])
    if tensor is None:
        return
    numbers = np.array(numpy_helper.to_array(tensor))
    if numbers.ndim != 1 or not numbers.size or numbers[0] != 1:
        return
    numbers[0] = first
    name = f"{tensor.name}.rows{first}"
    if name not in constants:
        made = numpy_helper.from_array(numbers, name)
        graph.initializer.append(made)
        constants[name] = made
    node.input[position] = name
