"""What plain ONNX Runtime does with a model; call it in a child."""

from __future__ import annotations

import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np

from collage.backends.numerics.seeded import seeded_inputs
from collage.partitioner.tensor import TensorSpec

_RUNS = 5
_TYPES = {"float": "float32", "double": "float64", "string": "object"}


def run_plainly(path: Path, dims: dict[str, int], inputs: Path | None) -> str:
    """The median of a few runs with default options, in milliseconds."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    if inputs is not None:
        with np.load(inputs) as stored:
            feed = {name: stored[name] for name in stored.files}
    else:
        feed = seeded_inputs([_spec(node, dims) for node in session.get_inputs()], 0)
    times = []
    for _ in range(_RUNS):
        begin = time.perf_counter()
        session.run(None, feed)
        times.append(time.perf_counter() - begin)
    return f"{statistics.median(times) * 1e3:.3g} ms"


def _spec(node: Any, dims: dict[str, int]) -> TensorSpec:
    kind = node.type.removeprefix("tensor(").removesuffix(")")
    shape = tuple(
        dim
        if isinstance(dim, int) and dim >= 0
        else dims.get(dim or "", dims.get(f"{node.name}:{axis}"))
        for axis, dim in enumerate(node.shape)
    )
    return TensorSpec(node.name, _TYPES.get(kind, kind), shape)
