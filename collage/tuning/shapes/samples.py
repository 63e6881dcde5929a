"""Sample inputs that a user gives for a range of shapes: which belong to a shape, and what others are made of them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from collage.model.reference import Sample
from collage.model.sample_inputs import read_samples
from collage.partitioner.graph.model import Model
from collage.partitioner.ingest.expressions import size_of
from collage.shapes.classes import Axes, axes_of, sizes_of_arrays
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
        np.savez(path, **arrays)  # type: ignore[arg-type]
        return path


class GivenSamples:
    """All samples that a user gives.

    Args:
        path: as `read_samples` takes it; None where none are given.
        free: the model with free dimensions.
        space: its sizes.

    Raises:
        BadInputError: a sample does not fit the model.
    """

    def __init__(self, path: Path | None, free: Model, space: ShapeSpace) -> None:
        index = free.index
        self._axes = {name: axes for name, axes in axes_of(free).items() if name in index.inputs}
        specs = [index.values[name] for name in index.inputs]
        samples = [] if path is None else read_samples(path, specs)
        self._sized = [(self._sizes(sample, space), sample) for sample in samples]
        self._dims = tuple(space.dims)

    def _sizes(self, sample: Sample, space: ShapeSpace) -> dict[str, int]:
        shapes = {name: sample[name].shape for name in self._axes}
        return sizes_of_arrays(shapes, self._axes, space)[0]

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
        for found, sample in sorted(self._sized, key=lambda sized: self._distance(sized[0], sizes)):
            made = resized(sample, self._axes, found, sizes)
            if made is not None:
                return ShapeSamples([made], "derived")
        return None

    def _distance(self, found: Mapping[str, int], sizes: Mapping[str, int]) -> float:
        return sum(abs(math.log((found[n] + 0.5) / (sizes[n] + 0.5))) for n in self._dims if n in found)


def resized(
    sample: Sample, axes: Mapping[str, Axes], old: Mapping[str, int], new: Mapping[str, int]
) -> Sample | None:
    """A sample cut or repeated along the axes whose size changes; None where that may not fit the model.

    An integer input without such an axis may hold sizes, such as the lengths of texts. Where all its elements are the
    old size of a dimension they become the new one. Where only some are, nobody knows what they mean.

    Args:
        sample: an array for each input.
        axes: of each input.
        old: the sizes of the sample.
        new: the sizes that are wanted.
    """
    changed = {dim: size for dim, size in new.items() if old.get(dim, size) != size}
    made = {}
    for name, value in sample.items():
        array = value
        for axis, dim in enumerate(axes[name]):
            wanted = size_of(dim, new) if isinstance(dim, str) else None
            if wanted is None or wanted == array.shape[axis]:
                continue
            if not array.shape[axis]:
                return None
            array = np.take(array, np.arange(wanted) % array.shape[axis], axis)
        if array.dtype.kind in "iu" and array.size:
            others = {dim: size for dim, size in changed.items() if dim not in axes[name]}
            held = set(np.unique(array).tolist()) & {old[dim] for dim in others}
            meant = {size for dim, size in others.items() if old[dim] in held}
            if len(meant) > 1 or (held and (array != min(held)).any()):
                return None
            if meant:
                array = np.full_like(array, min(meant))
        made[name] = np.ascontiguousarray(array).reshape(array.shape)
    return made
