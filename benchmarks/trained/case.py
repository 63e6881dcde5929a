"""What is measured of one trained model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import onnx

Array = np.ndarray

# What some exporters call any dimension.
_NAMELESS = "?"


@dataclass(frozen=True)
class Case:
    """A model, data of its kind, and how its task is scored.

    Args:
        model: the ONNX file.
        inputs: of each sample, by name, with a leading axis; the last third is never given to a tuning.
        evaluate: the metric (`collage.metrics.names`).
        labels: the truth by name with the same axis; empty where the model itself is the truth.
        dims: sizes of free dimensions.
        targets: that suit this model, beside those of the benchmark.
        about: the data, in a few words.
    """

    model: Path
    inputs: Mapping[str, Array]
    evaluate: str
    labels: Mapping[str, Array] = field(default_factory=dict)
    dims: Mapping[str, int] = field(default_factory=dict)
    targets: tuple[str, ...] = ()
    about: str = ""


def sizes(model: Path, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, int]:
    """The size of each free dimension, by its name or as `input:axis`.

    Args:
        model: an ONNX file.
        shapes: of its inputs.
    """
    found = {}
    for value in onnx.load(model, load_external_data=False).graph.input:
        for axis, dim in enumerate(value.type.tensor_type.shape.dim):
            if value.name in shapes and dim.dim_value <= 0:
                named = dim.dim_param not in ("", _NAMELESS)
                found[dim.dim_param if named else f"{value.name}:{axis}"] = shapes[value.name][axis]
    return found
