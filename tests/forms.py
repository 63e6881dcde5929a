"""Small models and what becomes of them in another form."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx

from collage.backends.numerics.comparison import output_error
from collage.backends.numerics.reference import run_reference
from collage.backends.rewriting.graph import RewriteGraph
from tests.models import seeded_input

Array = npt.NDArray[Any]
Form = Callable[[RewriteGraph], int]


def parsed(text: str, opset: int = 17, **constants: Array) -> onnx.ModelProto:
    """A model with named nodes, these constants, and outputs of the shapes that are inferred."""
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : {opset}]> {text}')
    model.graph.initializer.extend(onnx.numpy_helper.from_array(a, n) for n, a in constants.items())
    for i, node in enumerate(model.graph.node):
        node.name = f"{node.op_type}_{i}"
    for output in model.graph.output:
        output.type.tensor_type.ClearField("shape")
    inferred = onnx.shape_inference.infer_shapes(model, strict_mode=True)
    del model.graph.output[:]
    model.graph.output.extend(inferred.graph.output)
    return model


def weights(*shape: int, seed: int = 0) -> Array:
    fan_in = int(np.prod(shape[1:])) or 1
    return (np.random.default_rng(seed).standard_normal(shape) / np.sqrt(fan_in)).astype(np.float32)


def converted(model: onnx.ModelProto, form: Form, folder: Path) -> tuple[int, list[str], float]:
    """How many operators were written in a form, the operators that are there then, and the largest error of an output."""
    paths = folder / "before.onnx", folder / "after.onnx"
    onnx.save(model, paths[0])
    given = {
        value.name: seeded_input(
            tuple(d.dim_value for d in value.type.tensor_type.shape.dim), "float32", i
        )
        for i, value in enumerate(model.graph.input)
    }
    names = [value.name for value in model.graph.output]
    found = form(RewriteGraph(model))
    onnx.checker.check_model(model, full_check=True)
    onnx.save(model, paths[1])
    before, after = (run_reference(path, given, names) for path in paths)
    errors = [output_error("max", [after[name]], [before[name]]) for name in names]
    return found, [node.op_type for node in model.graph.node], max(errors)
