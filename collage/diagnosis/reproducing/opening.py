"""Opens a model on a target in this process, for scripts that reproduce what needs this project."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from collage.backends.contract import CompileContext, SubModel, ready
from collage.backends.machine.process_policy import apply_environment
from collage.backends.registry import resolve
from collage.partitioner.graph.model import Model
from collage.partitioner.target import Target

Compute = Callable[[Mapping[str, np.ndarray]], list[np.ndarray]]


def open_model(path: Path | str, target: str, threads: int) -> Compute:
    """A function from inputs by name to the list of outputs.

    Raises:
        CollageError: the target cannot be used here, or refuses the model.
    """
    apply_environment()
    index = Model.open(path).index
    model = SubModel(
        Path(path),
        tuple(index.values[name] for name in index.inputs),
        tuple(index.values[name] for name in index.outputs),
    )
    chosen = Target.parse(target)
    backend = resolve(chosen)
    context = CompileContext(threads, Path(tempfile.mkdtemp(prefix="collage-")))
    executable = backend.compile(ready(backend, model, chosen, context), chosen, context)
    bound: list[np.ndarray] = []

    def compute(inputs: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        given = [np.ascontiguousarray(inputs[spec.name]) for spec in model.inputs]
        if [b.shape for b in bound] != [v.shape for v in given] or not bound:
            bound[:] = [np.array(value) for value in given]
            buffers = [
                np.zeros(spec.static_shape, np.dtype(spec.dtype)) if spec.is_static else None
                for spec in model.outputs
            ]
            executable.bind(bound, buffers)
        for buffer, value in zip(bound, given, strict=True):
            np.copyto(buffer, value)
        executable.run()
        return [np.array(result) for result in executable.results]

    return compute
