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
        part: as the manifest has it: `partitions`, the `classes` that name some of them, `dims`, the axes of each
            input as sizes and names, and of names that are sums of dimensions their `terms` and what is added.
        kinds: the runner's classes of parts.
        constants: weights by name, some of which may be outputs.
    """

    def __init__(
        self,
        folder: Path,
        part: dict[str, Any],
        kinds: dict[str, Any],
        constants: dict[str, np.ndarray],
    ) -> None:
        self._inputs, self._dims, self._classes = part["inputs"], part["dims"], part["classes"]
        self._sums = part.get("sums", {})
        self._constants = constants
        self._parts = [
            (
                _RUNS[own["runtime"]],
                kinds[own["runtime"]](folder, _resizable(own)),
                [spec["name"] for spec in own["inputs"]],
                own["outputs"],
            )
            for own in part["partitions"]
        ]

    def run(self, names: list[str], feed: dict[str, np.ndarray]) -> list[np.ndarray]:
        """Compute outputs by the plan of the inputs' sizes; raises ValueError for sizes that are not served."""
        given = [(spec["name"], np.asarray(feed[spec["name"]])) for spec in self._inputs]
        sizes = self._sizes([array for _, array in given])
        extent = math.prod(sizes[name] for name in self._dims)
        chosen = next(c for c in self._classes if c["up_to"] is None or extent <= c["up_to"])
        # OpenVINO takes no memory that is read-only.
        values = {name: np.require(array, requirements=["C", "A", "W"]) for name, array in given}
        values |= self._constants
        taken = list(values.values())
        for position in chosen["partitions"]:
            run, part, inputs, outputs = self._parts[position]
            made = run(part, inputs, outputs, [values[name] for name in inputs])
            values.update(zip((spec["name"] for spec in outputs), made, strict=True))
        return _own([values[name] for name in names], taken)

    def _sizes(self, arrays: list[np.ndarray]) -> dict[str, int]:
        sizes: dict[str, int] = {}
        places: dict[str, str] = {}
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
                places.setdefault(wanted, place)
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
        for name, (terms, added) in self._sums.items():
            follows = added + sum(factor * sizes[dim] for dim, factor in terms.items())
            if sizes[name] != follows:
                raise ValueError(f"{places[name]}: {name} is {sizes[name]}, and must be {follows}")
        return sizes


def _own(arrays: list[np.ndarray], taken: list[np.ndarray]) -> list[np.ndarray]:
    """The same arrays, copied where they share memory with others; a part may pass its input on."""
    found: list[np.ndarray] = []
    for array in arrays:
        is_shared = any(np.may_share_memory(array, other) for other in (*taken, *found))
        found.append(array.copy() if is_shared else array)
    return found


def _onnxruntime(part: Any, names: Any, outputs: Any, arrays: list[np.ndarray]) -> Any:
    return part.session.run([spec["name"] for spec in outputs], dict(zip(names, arrays, strict=True)))


def _openvino(part: Any, _: Any, outputs: Any, arrays: list[np.ndarray]) -> Any:
    for port, array in zip(part.ports, arrays, strict=True):
        if port is not None:
            part.request.set_input_tensor(port, part.tensor(array))
    part.request.infer()
    return [
        _as_made(arrays[part.passed[i]], spec["shape"])
        if i in part.passed
        else np.array(part.request.get_output_tensor(i).data)
        for i, spec in enumerate(outputs)
    ]


def _as_made(array: np.ndarray, shape: list[int | None]) -> np.ndarray:
    """An input that is an output."""
    if None in shape and len(shape) == array.ndim:  # of several free sizes none can be left to numpy
        return array
    return array.reshape([-1 if size is None else size for size in shape])


def _mnn(part: Any, _: Any, outputs: Any, arrays: list[np.ndarray]) -> Any:
    for variable, array in zip(part.variables, arrays, strict=True):
        if list(variable.shape) != list(array.shape):
            variable.resize(list(array.shape))
        variable.write(array)
    made = []
    for variable, spec in zip(part.module.forward(part.variables), outputs, strict=True):
        if variable.data_format == part.expr.NC4HW4:
            variable = part.expr.convert(variable, part.expr.NCHW)
        seen = variable.read()
        # Convolutions along one axis give a fourth one.
        made.append(np.array(seen, dtype=spec["dtype"]).reshape(seen.shape[: len(spec["shape"])]))
    return made


_RUNS = {"onnxruntime": _onnxruntime, "openvino": _openvino, "mnn": _mnn}


def _resizable(part: dict[str, Any]) -> dict[str, Any]:
    """The same, with inputs that MNN resizes from call to call."""
    if part["runtime"] != "mnn":
        return part
    first = [{**spec, "shape": [size or 1 for size in spec["shape"]]} for spec in part["inputs"]]
    return {**part, "inputs": first, "any_size": True}
