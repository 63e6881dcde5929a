"""A session of an artifact with free dimensions: it takes every shape in the artifact's ranges."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np

from collage.artifact.session import LoadError, NodeArg, Session
from collage.artifact.verification import Verification, VerificationError
from collage.artifact.verify import WrongPartitionError, prove, samples_of
from collage.backends.registry import resolve
from collage.model.sub_models import RegionFiles
from collage.partitioner.emit.annotate import read_plan
from collage.partitioner.emit.plan_json import decode_plan
from collage.partitioner.errors import BadInputError
from collage.partitioner.graph.model import Model
from collage.partitioner.tensor import TensorSpec
from collage.runtime.by_shape import ByShape, Part, PartedPlan
from collage.shapes.classes import SHAPES_KEY, ServedShapes, TreatedPlan

Outside = Literal["refuse", "run"]
# Shapes that came less often lately are forgotten, so that counting takes little memory.
_MOST_COUNTED = 10_000


@dataclass(frozen=True)
class _Class:
    plan: PartedPlan
    hot: PartedPlan | None
    hot_from: int


class ShapedSession(Session):
    """A partitioned model that takes shapes of a range; made by `load`.

    Attributes:
        shapes: the ranges, and the classes of shapes.
    """

    outside: Outside = "refuse"

    def _open(self, path: Path, fallback: str | None, cache_dir: Path | None) -> None:
        stored = read_plan(path)
        model = stored.model
        self.shapes = ServedShapes.from_text(stored.metadata[SHAPES_KEY])
        self.inputs = tuple(model.index.values[name] for name in model.index.inputs)
        self._outputs = tuple(model.index.values[name] for name in model.index.outputs)
        self._names = [spec.name for spec in self._outputs]
        self._wanted = {spec.name: (np.dtype(spec.dtype), None) for spec in self.inputs}
        self._constants = _constants(model, self._outputs)
        regions = RegionFiles(model, self._directory / "regions")
        self._classes = [
            _Class(
                self._parted(one.plan, model, regions, fallback),
                None if one.hot is None else self._parted(one.hot, model, regions, fallback),
                one.hot_from,
            )
            for one in self.shapes.classes
        ]
        self.targets = tuple(part.target for part in self._classes[0].plan.parts)
        self._seen: Counter[tuple[int, ...]] = Counter()
        self._by_shape = ByShape(
            self._compiled,
            self.inputs,
            [name for name in self._names if name not in self._constants],
            self._directory / "shapes",
            self.shapes.data_dependent,
            most_copies=self.shapes.most_copies,
        )
        self._owned.callback(self._by_shape.close)
        self._verify_shapes()

    def _parted(
        self, treated: TreatedPlan, model: Model, regions: RegionFiles, fallback: str | None
    ) -> PartedPlan:
        plan = decode_plan(model, treated.plan).plan
        parts = []
        for i, (partition, treatment) in enumerate(
            zip(plan.partitions, treated.treatments, strict=True)
        ):
            target = self._placed(i, partition.target, fallback)
            sub_model = regions.get(partition.nodes)
            if resolve(target).preparation(target) is not None:
                raise LoadError(f"partition {i} is planned for {target}, which needs fixed sizes")
            parts.append(Part(sub_model.path.parent.name, sub_model, target, treatment))
        return PartedPlan(tuple(parts), plan.lanes)

    def _verify_shapes(self) -> None:
        """Compile all that takes every shape, and compare it with the reference at each shape that was measured."""
        self.errors, self.bounds = {}, {}
        for proof in self.shapes.proofs:
            chosen = self._classes[self.shapes.class_of(proof.sizes)]
            self._prove(chosen.plan, proof.plan, proof.sizes)
            if chosen.hot is not None and proof.hot is not None:
                self._prove(chosen.hot, proof.hot, proof.sizes)

    def _prove(self, plan: PartedPlan, text: str, sizes: Mapping[str, int]) -> None:
        specs = tuple(replace(spec, shape=self._shape_at(spec.name, sizes)) for spec in self.inputs)
        try:
            verification = Verification.from_text(text)
            executor = self._by_shape.bound(plan, samples_of(verification, specs)[0])
            errors = prove(executor, specs, verification)
        except WrongPartitionError as wrong:
            raise LoadError(
                f"partition {wrong.step} on {plan.parts[wrong.step].target} was compiled wrongly for "
                f"{_text(sizes)}: {wrong}; load again (some runtimes do this once in a while), or tune without "
                "this target"
            ) from None
        except VerificationError as error:
            raise LoadError(str(error)) from None
        self.bounds = verification.bounds
        for name, seen in errors.items():
            self.errors[name] = max(seen, self.errors.get(name, 0.0))

    def _shape_at(self, name: str, sizes: Mapping[str, int]) -> tuple[int | None, ...]:
        return tuple(sizes[d] if isinstance(d, str) else d for d in self.shapes.axes[name])

    def get_inputs(self) -> list[NodeArg]:
        """The model's inputs, in order; free dimensions by name."""
        return [self._described(spec) for spec in self.inputs]

    def get_outputs(self) -> list[NodeArg]:
        """The model's outputs, in order; dimensions that follow from others by name, or None."""
        return [self._described(spec) for spec in self._outputs]

    def _described(self, spec: TensorSpec) -> NodeArg:
        return replace(NodeArg.of(spec), shape=self.shapes.axes[spec.name])

    def run(
        self, output_names: Sequence[str] | None, feed: Mapping[str, np.ndarray]
    ) -> list[np.ndarray]:
        """Compute outputs from inputs of any shape in the artifact's ranges.

        Args:
            output_names: which outputs, in which order; None for all.
            feed: every input by name, of its exact type.

        Returns:
            New arrays, the caller's own.

        Raises:
            BadInputError: an input is missing, unknown, or of a wrong type, rank or size; an output is unknown.
        """
        names = self._names if output_names is None else list(output_names)
        self._check_names(names)
        self._check_feed(feed)
        sizes = self._sizes(feed)
        made_names = [name for name in names if name not in self._constants]
        with self._lock:
            self._check_open()
            made = self._by_shape.run(self._plan_for(sizes), feed, made_names)
        return [made[name] if name in made else self._constants[name].copy() for name in names]

    def _plan_for(self, sizes: Mapping[str, int]) -> PartedPlan:
        chosen = self._classes[self.shapes.class_of(sizes)]
        if chosen.hot is None:
            return chosen.plan
        key = tuple(sizes.values())
        self._seen[key] += 1
        if len(self._seen) > _MOST_COUNTED:
            self._seen = Counter(dict(self._seen.most_common(_MOST_COUNTED // 2)))
        return chosen.hot if self._seen[key] >= chosen.hot_from else chosen.plan

    def _sizes(self, feed: Mapping[str, np.ndarray]) -> dict[str, int]:
        """The size of each free dimension.

        Raises:
            BadInputError: a rank or a size does not fit; the message names input and axis.
        """
        sizes: dict[str, int] = {}
        found_at: dict[str, str] = {}
        for spec in self.inputs:
            axes, shape = self.shapes.axes[spec.name], feed[spec.name].shape
            if len(shape) != len(axes):
                raise BadInputError(
                    f"input {spec.name!r} must have {len(axes)} axes {_axes_text(axes)}, not {shape}"
                )
            for axis, (wanted, size) in enumerate(zip(axes, shape, strict=True)):
                place = f"input {spec.name!r}, axis {axis}"
                if isinstance(wanted, int):
                    if size != wanted:
                        raise BadInputError(f"{place}: the size is {size}, and the model has {wanted}")
                elif wanted is not None and sizes.setdefault(wanted, size) != size:
                    raise BadInputError(
                        f"{place}: {wanted} is {size}, and {found_at[wanted]} gave it as {sizes[wanted]}"
                    )
                elif wanted is not None:
                    found_at.setdefault(wanted, place)
        self._check_ranges(sizes, found_at)
        return sizes

    def _check_ranges(self, sizes: Mapping[str, int], found_at: Mapping[str, str]) -> None:
        for name, dim in self.shapes.space.dims.items():
            if name in sizes and sizes[name] not in dim and self.outside == "refuse":
                raise BadInputError(
                    f"{found_at[name]}: {name} is {sizes[name]}, which is outside of {dim.text}; tune the model "
                    'again with a wider range, or load the artifact with outside="run"'
                )


def _axes_text(axes: Sequence[int | str | None]) -> str:
    return f"({', '.join(map(str, axes))})"


def _text(sizes: Mapping[str, int]) -> str:
    return ", ".join(f"{name}={size}" for name, size in sizes.items())


def _constants(model: Model, outputs: Sequence[TensorSpec]) -> dict[str, np.ndarray]:
    found = {}
    for spec in outputs:
        if spec.name in model.index.constants:
            value = model.ir.graph.initializers[spec.name].const_value
            assert value is not None
            found[spec.name] = value.numpy()
    return found
