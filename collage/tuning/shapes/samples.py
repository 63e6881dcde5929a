"""The model and its sample inputs at representative shapes: which of a user's samples belong to a shape, and what others
are made of them.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from collage.metrics.labels import is_label
from collage.model.binding import bind
from collage.model.reference import Sample
from collage.model.resizing import resized
from collage.model.sample_inputs import read_samples
from collage.model.sampling import Sampling
from collage.partitioner.errors import ModelError
from collage.partitioner.graph.model import Model
from collage.partitioner.ingest.normalize import NormalizedInfo
from collage.shapes.classes import axes_of, extent, sizes_of_arrays, specs_at
from collage.shapes.space import Shape, ShapeSpace
from collage.tuning.run import Run, TuneRequest

# After such a share of a limit and so many seconds no more shapes are read.
_READING_SHARE, _READING_S = 0.25, 8.0
# Reading is quick where the first shapes are bound after such a share of that.
_QUICK_SHARE = 0.5
# So many shapes are bound at once, each in a child.
_READ_AT_ONCE = 2

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
        if own := self.own(sizes):
            return ShapeSamples(own, "given")
        shapes = {s.name: s.static_shape for s in specs_at(self._specs, self._axes, sizes)}
        for _, sample in sorted(self._sized, key=lambda sized: self._distance(sized[0], sizes)):
            made = resized(sample, shapes)
            if made is not None:
                return ShapeSamples([made], "derived")
        return None

    def own(self, sizes: Mapping[str, int]) -> list[Sample]:
        """The samples that have this very shape."""
        return [
            sample
            for found, sample in self._sized
            if all(found.get(name) == sizes[name] for name in self._dims)
        ]

    def _distance(self, found: Mapping[str, int], sizes: Mapping[str, int]) -> float:
        return sum(abs(math.log((found[n] + 0.5) / (sizes[n] + 0.5))) for n in self._dims if n in found)


@dataclass(frozen=True)
class BoundShape:
    """The model at one shape; its nodes are those of the model with free dimensions."""

    shape: Shape
    model: Model
    info: NormalizedInfo

    @property
    def text(self) -> str:
        """The sizes as `length=16, batch=1`."""
        return ", ".join(f"{name}={size}" for name, size in self.shape.sizes.items())

    @property
    def extent(self) -> int:
        """By what classes are told apart."""
        return extent(self.shape.sizes)


def bind_shape(run: Run, free: Model, shape: Shape, number: int) -> BoundShape:
    """Bind the model to a representative shape.

    Raises:
        ModelError: the model cannot have these sizes.
    """
    bound = BoundShape(shape, free, NormalizedInfo(free.path, (), ()))
    try:
        folder = run.work_dir / f"shape-{number}" / "model"
        model, info = bind(free, folder, shape.sizes, run.cancel, run.prepared_by_s)
    except ModelError as error:
        raise ModelError(f"the model cannot have {bound.text}: {error}") from None
    return BoundShape(shape, model, info)


def sample_shape(
    run: Run,
    request: TuneRequest,
    bound: BoundShape,
    number: int,
    given: ShapeSamples | None = None,
    *,
    only_outputs: bool = True,
) -> Sampling:
    """Inputs at a representative shape, with the reference outputs.

    Args:
        run: what the stages run with.
        request: its options.
        bound: the model at the shape.
        number: of the shape.
        given: samples of the shape; seeded ones are made where there are none, or the model cannot run on those
            that were derived.
        only_outputs: compute no other reference values yet.

    Raises:
        ModelError: the reference cannot run the model at this shape.
    """
    origin = "seeded" if given is None else given.origin
    work_dir = run.work_dir / f"shape-{number}" / origin
    work_dir.mkdir(parents=True, exist_ok=True)
    try:
        sampling = Sampling(
            model=bound.model,
            info=bound.info,
            options=request.options,
            work_dir=work_dir,
            inputs=None if given is None else given.written(work_dir / "inputs.npz"),
            hold_out=False,
            listener=run.listener,
            cancel=run.cancel,
            until_s=run.prepared_by_s,
        )
        sampling.check_reference(only_outputs=only_outputs)
    except ModelError as error:
        if origin == "derived":
            return sample_shape(run, request, bound, number, only_outputs=only_outputs)
        raise ModelError(f"the model cannot run with {bound.text}: {error}") from None
    return sampling


def in_order(shapes: Sequence[Shape]) -> list[int]:
    """The positions of shapes in the order in which they are measured: both ends, the middle, then those between."""
    by_extent = sorted(range(len(shapes)), key=lambda i: extent(shapes[i].sizes))
    middle = len(by_extent) // 2
    first = list(dict.fromkeys((by_extent[0], by_extent[-1], by_extent[middle])))
    return first + [i for i in by_extent if i not in first]


@dataclass(frozen=True)
class SampledShape:
    """A representative shape with its inputs, and those that the user gave for it."""

    bound: BoundShape
    given: ShapeSamples | None
    sampling: Sampling


def read_shapes(
    run: Run, request: TuneRequest, free: Model, space: ShapeSpace, given: GivenSamples
) -> list[SampledShape]:
    """The representative shapes with their inputs: that of the search, both ends, and others while there is time.

    Of the others those that the user gave samples for come first.
    """
    limit_s = request.options.time_limit_s
    share_s = math.inf if limit_s is None else _READING_SHARE * limit_s
    until_s = run.clock.begin_s + share_s + _READING_S
    main = main_shape(space.shapes)
    needed = needed_shapes(space.shapes)
    sampled = [i for i, shape in enumerate(space.shapes) if given.own(shape.sizes)]
    order = list(dict.fromkeys((*sorted(needed), *sampled, *in_order(space.shapes))))
    found: dict[int, SampledShape] = {}
    latest_s = 0.0
    with ThreadPoolExecutor(_READ_AT_ONCE) as pool:
        for first in range(0, len(order), _READ_AT_ONCE):
            begin_s = time.monotonic()
            fit = begin_s + latest_s <= until_s
            some = [i for i in order[first : first + _READ_AT_ONCE] if fit or i in needed]
            if not some:
                continue
            bound = list(pool.map(lambda i: bind_shape(run, free, space.shapes[i], i), some))
            # The search needs more values at its shape, which are computed at once where that is quick.
            is_slow = run.clock.total_s > _QUICK_SHARE * share_s
            for i, own in zip(some, bound, strict=True):
                samples = given.at(own.shape.sizes)
                only_outputs = i != main or is_slow
                sampling = sample_shape(run, request, own, i, samples, only_outputs=only_outputs)
                found[i] = SampledShape(own, samples, sampling)
            latest_s = time.monotonic() - begin_s
    return [found[i] for i in sorted(found)]


def needed_shapes(shapes: Sequence[Shape]) -> set[int]:
    """The positions of shapes that are read and timed however late it is: that of the search, and both ends."""
    return {main_shape(shapes), *in_order(shapes)[:2]}


def main_shape(shapes: Sequence[Shape]) -> int:
    """The position of the shape at which plans are searched."""
    return max(range(len(shapes)), key=lambda i: shapes[i].weight * extent(shapes[i].sizes))


def about_shapes(bound: Sequence[BoundShape], every: Sequence[Shape]) -> list[str]:
    """Which representative shapes there was no time for."""
    if len(bound) == len(every):
        return []
    return [
        f"{len(bound)} of {len(every)} sizes were compared ({'; '.join(own.text for own in bound)}): reading the model "
        "at a size takes so long that the time limit has no room for more; allow more with --time-limit"
    ]


def about_samples(sampled: Sequence[SampledShape]) -> list[str]:
    """Which shapes have no sample of the user's."""
    seeded = [own.bound.text for own in sampled if own.sampling.inputs is None]
    derived = [
        own.bound.text
        for own in sampled
        if own.sampling.inputs is not None and own.given and own.given.origin == "derived"
    ]
    return [
        *(
            [f"no sample has {_listed(derived)}: the nearest one was cut or repeated"]
            if derived
            else []
        ),
        *([f"no sample fits {_listed(seeded)}: seeded inputs were made"] if seeded else []),
    ]


def _listed(shapes: Sequence[str]) -> str:
    return " or ".join(shapes)
