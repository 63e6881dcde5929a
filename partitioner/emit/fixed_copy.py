"""A model file with sizes for the free dimensions of its inputs."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path


def write_fixed(source: Path, shapes: Sequence[Sequence[int]], destination: Path) -> None:
    """Write a model with other shapes of its inputs; what was known of inner shapes is left out.

    Weights beside the source are not read. They are shared where both files are in one folder, else copied.

    Args:
        source: an ONNX file.
        shapes: of each input, in order.
        destination: the file to write, in a folder that exists.
    """
    # A session that was loaded before needs it for shapes that come often only.
    import onnx

    model = onnx.load(source, load_external_data=False)
    for value, shape in zip(model.graph.input, shapes, strict=True):
        described = value.type.tensor_type.shape
        described.ClearField("dim")
        for size in shape:
            described.dim.add(dim_value=size)
    del model.graph.value_info[:]
    for value in model.graph.output:
        for dim in value.type.tensor_type.shape.dim:
            dim.ClearField("dim_param")
    beside = source.with_name(f"{source.name}.weights")
    if beside.is_file() and source.parent != destination.parent:
        shutil.copyfile(beside, destination.with_name(beside.name))
    onnx.save(model, destination)
