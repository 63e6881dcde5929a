"""Runs the partitions of a package by the sizes of its inputs; copied beside the runner where sizes are free."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np


class Parts:
    """All partitions of a model with free dimensions, as one part of the runner.

    Args:
        folder: of the variant.
        part: as the manifest has it: `partitions`, the `classes` that name some of them, `dims`, and the axes of each
            input as sizes and names.
        kinds: the runner's classes of parts.
    """

    def __init__(self, folder: Path, part: dict[str, Any], kinds: dict[str, Any]) -> None:
        self._inputs, self._dims, self._classes = part["inputs"], part["dims"], part["classes"]
        self._outputs = [spec["name"] for spec in part["outputs"]]
        self._parts = [
            (
                _resized(kinds["mnn"], folder, own)
                if own["runtime"] == "mnn"
                else kinds[own["runtime"]](folder, own),
                [spec["name"] for spec in own["inputs"]],
                [spec["name"] for spec in own["outputs"]],
            )
            for own in part["partitions"]
        ]

    def run(self, arrays: list[np.ndarray]) -> list[np.ndarray]:
        """Compute the outputs by the plan of the inputs' sizes; raises ValueError for sizes that are not served."""
        sizes = self._sizes(arrays)
        extent = math.prod(sizes[name] for name in self._dims)
        chosen = next(c for c in self._classes if c["up_to"] is None or extent <= c["up_to"])
        values = {spec["name"]: array for spec, array in zip(self._inputs, arrays, strict=True)}
        for position in chosen["partitions"]:
            part, inputs, outputs = self._parts[position]
            values.update(zip(outputs, part.run([values[name] for name in inputs]), strict=True))
        return [values[name] for name in self._outputs]

    def _sizes(self, arrays: list[np.ndarray]) -> dict[str, int]:
        sizes: dict[str, int] = {}
        for spec, array in zip(self._inputs, arrays, strict=True):
            name, shape = spec["name"], spec["shape"]
            if len(array.shape) != len(shape):
                raise ValueError(
                    f"input {name!r} must have {len(shape)} axes {shape}, not {array.shape}"
                )
            for axis, (wanted, size) in enumerate(zip(shape, array.shape, strict=True)):
                place = f"input {name!r}, axis {axis}"
                if isinstance(wanted, int) and size != wanted:
                    raise ValueError(f"{place}: the size is {size}, and the model has {wanted}")
                if not isinstance(wanted, str):
                    continue
                if sizes.setdefault(wanted, size) != size:
                    raise ValueError(
                        f"{place}: {wanted} is {size}, and another input gave it as {sizes[wanted]}"
                    )
                low, high, step = self._dims.get(wanted, (size, size, 1))
                if not low <= size <= high or (size - low) % step:
                    steps = f" in steps of {step}" if step > 1 else ""
                    raise ValueError(
                        f"{place}: {wanted} is {size}, and the package takes {low} to {high}{steps}; tune the model "
                        "again with a wider range"
                    )
        return sizes


def _resized(kind: Any, folder: Path, part: dict[str, Any]) -> Any:
    """A partition on MNN whose input variables are resized from call to call."""

    class Resized(kind):  # type: ignore[misc]
        def run(self, arrays: list[np.ndarray]) -> Any:
            for variable, array in zip(self._variables, arrays, strict=True):
                if list(variable.shape) != list(array.shape):
                    variable.resize(list(array.shape))
            return super().run(arrays)

        def _fetch(self, variable: Any, spec: dict[str, Any]) -> np.ndarray:
            if variable.data_format == self._expr.NC4HW4:
                variable = self._expr.convert(variable, self._expr.NCHW)
            seen = variable.read()
            # Convolutions along one axis give a fourth one.
            return np.array(seen, dtype=spec["dtype"]).reshape(seen.shape[: len(spec["shape"])])

    first = [{**spec, "shape": [size or 1 for size in spec["shape"]]} for spec in part["inputs"]]
    return Resized(folder, {**part, "inputs": first, "any_size": True})
