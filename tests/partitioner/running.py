"""Running a model in plain ONNX Runtime, as these tests' yardstick of meaning."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np
import onnxruntime

from collage.partitioner.tensor import TensorSpec
from tests.models import sample_inputs, seeded_input

# Its warnings about unused initializers of the source files would drown a failure.
onnxruntime.set_default_logger_severity(3)


def run(path: Path, feed: Mapping[str, np.ndarray], optimized: bool = False) -> dict[str, np.ndarray]:
    """Outputs by name."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 2
    if not optimized:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, dict(feed)), strict=True))


def feed_for(specs: Iterable[TensorSpec], name: str = "") -> dict[str, np.ndarray]:
    """Seeded inputs; `name` may be a model of `tests.models`, whose inputs then suit it."""
    if name:
        return sample_inputs(name, specs)
    return {spec.name: seeded_input(spec.static_shape, spec.dtype, i) for i, spec in enumerate(specs)}


def assert_equal(actual: Mapping[str, np.ndarray], expected: Mapping[str, np.ndarray]) -> None:
    """Same names, shapes and types, values equal up to the noise of float32."""
    assert list(actual) == list(expected)
    for name, value in expected.items():
        assert actual[name].shape == value.shape and actual[name].dtype == value.dtype
        np.testing.assert_allclose(actual[name], value, rtol=1e-4, atol=1e-5 * np.abs(value).max())
