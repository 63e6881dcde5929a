"""Sample inputs that a user gives for a range of shapes: which belong to a shape, and what others are made of them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from collage.metrics.labels import is_label
from collage.model.reference import Sample
from collage.model.resizing import resized
from collage.model.sample_inputs import read_samples
from collage.partitioner.graph.model import Model
from collage.shapes.classes import axes_of, sizes_of_arrays, specs_at
from collage.shapes.space import ShapeSpace

Origin = Literal["given", "derived"]


@dataclass(frozen=True)
class ShapeSamples:
    """The samples of one shape.

    Args:
        samples: of exactly this shape.
        origin: `derived` where they were cut or repeated from a sample of another shape.
    """

    samples: Sequence[Sample]
    origin: Origin

    def written(self, path: Path) -> Path:
        """The samples as a file that `read_samples` reads."""
        # By position: an input may have the name of an argument.
        arrays = {
            f"{number}/{name}": value.astype(str) if value.dtype.kind == "O" else value
            for number, sample in enumerate(self.samples)
            for name, value in sample.items()
        }
        path.parent.mkdir(parents=True, exist_ok=True)
        np.savez(path, allow_pickle=False, **arrays)
        return path


class GivenSamples:
    """All samples that a user gives.

    Args:
        path: as `read_samples` takes it; None where none are given.
        free: the model with free dimensions.
        space: its sizes.
        has_labels: whether a file may hold labels too.

    Raises:
        BadInputError: a sample does not fit the model.
    """

    def __init__(
        self, path: Path | None, free: Model, space: ShapeSpace, has_labels: bool = False
    ) -> None:
        index = free.index
        self._axes = {name: axes for name, axes in axes_of(free).items() if name in index.inputs}
        self._specs = [index.values[name] for name in index.inputs]
        ignored = is_label if has_labels and path is not None and path.is_file() else None
        samples = [] if path is None else read_samples(path, self._specs, ignored)
        self._sized = [(self._sizes(sample, space), sample) for sample in samples]
        self._dims = tuple(space.dims)

    def _sizes(self, sample: Sample, space: ShapeSpace) -> dict[str, int]:
        shapes = {name: sample[name].shape for name in self._axes}
        return sizes_of_arrays(shapes, self._axes, space)[0]

    @property
    def samples(self) -> list[Sample]:
        """All samples, in order."""
        return [sample for _, sample in self._sized]

    def at(self, sizes: Mapping[str, int]) -> ShapeSamples | None:
        """Samples of a shape: those that have it, else one made of the sample that is nearest to it.

        Returns:
            None where there is none, and none can be made safely.
        """
        own = [
            sample
            for found, sample in self._sized
            if all(found.get(name) == sizes[name] for name in self._dims)
        ]
        if own:
            return ShapeSamples(own, "given")
        shapes = {s.name: s.static_shape for s in specs_at(self._specs, self._axes, sizes)}
        for _, sample in sorted(self._sized, key=lambda sized: self._distance(sized[0], sizes)):
            made = resized(sample, shapes)
            if made is not None:
                return ShapeSamples([made], "derived")
        return None

    def _distance(self, found: Mapping[str, int], sizes: Mapping[str, int]) -> float:
        return sum(abs(math.log((found[n] + 0.5) / (sizes[n] + 0.5))) for n in self._dims if n in found)
