"""A model file with sizes for the free dimensions of its inputs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import onnx


def write_fixed(source: Path, shapes: Sequence[Sequence[int]], destination: Path) -> None:
    """Write a model with other shapes of its inputs; what was known of inner shapes is left out.

    Args:
        source: an ONNX file.
        shapes: of each input, in order.
        destination: the file to write, in a folder that exists.
    """
    model = onnx.load(source)
    for value, shape in zip(model.graph.input, shapes, strict=True):
        described = value.type.tensor_type.shape
        described.ClearField("dim")
        for size in shape:
            described.dim.add(dim_value=size)
    del model.graph.value_info[:]
    for value in model.graph.output:
        for dim in value.type.tensor_type.shape.dim:
            dim.ClearField("dim_param")
    onnx.save(
        model,
        destination,
        save_as_external_data=_is_external(source),
        location=f"{destination.name}.weights",
    )


def _is_external(path: Path) -> bool:
    return path.with_name(f"{path.name}.weights").is_file()
