"""A session of an artifact with free dimensions: it takes every shape in the artifact's ranges."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from collage.artifact.division import Count, divided
from collage.artifact.node_arg import NodeArg
from collage.artifact.session import LoadError, Session
from collage.artifact.state import State
from collage.artifact.unpack_shapes import UnpackedPlan, unpack_shapes
from collage.artifact.verification import ValueDigest, Verification, VerificationError
from collage.artifact.verify import WrongPartitionError, not_rewritten, prove, samples_of
from collage.backends.machine.process_policy import default_threads
from collage.backends.machine.resident_memory import give_back
from collage.partitioner.errors import BadInputError
from collage.partitioner.tensor import TensorSpec
from collage.runtime.by_shape import ByShape, Part, PartedPlan
from collage.runtime.compiled import CompiledRegions, in_short
from collage.runtime.requests import Requests
from collage.shapes.classes import TreatedPlan, sizes_of_arrays, specs_at
from collage.shapes.padding import Padding

Outside = Literal["refuse", "run"]
# Shapes that came less often lately are forgotten, so that counting takes little memory.
_MOST_COUNTED = 10_000


@dataclass(frozen=True)
class _Class:
    plan: PartedPlan
    hot: PartedPlan | None
    hot_from: int
    padding: Padding | None


@dataclass(frozen=True)
class _Padded:
    """A request at the shape that a hot plan is compiled for.

    Args:
        key: the sizes of that shape.
        feed: the inputs there.
        padding: how it was padded; None where it was not.
        size: of the padded dimension before, and `bucket` after that.
    """

    key: tuple[int, ...]
    feed: Mapping[str, np.ndarray]
    padding: Padding | None = None
    size: int = 0
    bucket: int = 0

    @property
    def is_longer(self) -> bool:
        """Whether padding was added."""
        return self.size < self.bucket

    def cut(self, made: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Outputs without what was padded."""
        return dict(made) if self.padding is None else self.padding.cut(made, self.size, self.bucket)


@dataclass(frozen=True)
class _Instance:
    """What one request at a time uses.

    Args:
        seen: how often shapes have come to it.
        compared: hot plans, with the shapes at which their padding was compared with the plan for every shape.
    """

    by_shape: ByShape
    seen: Counter[tuple[int, ...]] = field(default_factory=Counter)
    compared: set[tuple[PartedPlan, tuple[int, ...]]] = field(default_factory=set)


class ShapedSession(Session):
    """A partitioned model that takes shapes of a range; made by `load`.

    Attributes:
        shapes: the ranges, and the classes of shapes.
        not_hot: shapes that come often and are not compiled on their own, with the reason; empty normally.
    """

    def __init__(
        self,
        path: Path,
        fallback: str | None,
        threads: int | None,
        cache_dir: Path | None,
        instances: Count,
        outside: Outside,
        most_copies: int | None,
    ) -> None:
        self._outside, self._most_copies = outside, most_copies
        super().__init__(path, fallback, threads, cache_dir, instances)

    def _open(
        self,
        path: Path,
        fallback: str | None,
        threads: int | None,
        cache_dir: Path | None,
        instances: Count,
    ) -> None:
        self.instances, self.threads = divided(
            instances=instances, threads=threads, planned=None, cores=default_threads()
        )
        compiled = CompiledRegions(self.threads, cache_dir, self.instances)
        self._owned.callback(compiled.close)
        parts = unpack_shapes(path, self._directory, cache_dir)
        self.shapes = parts.served
        most = self.shapes.most_copies if self._most_copies is None else self._most_copies
        most //= self.instances  # each instance has copies of its own
        self.inputs, self._outputs, self._constants = parts.inputs, parts.outputs, parts.constants
        self._names = [spec.name for spec in self._outputs]
        self._wanted = {spec.name: (np.dtype(spec.dtype), None) for spec in self.inputs}
        dims = {
            name: {axis: dim for axis, dim in enumerate(axes) if isinstance(dim, str)}
            for name, axes in self.shapes.axes.items()
        }
        self._state = State(self.inputs, self._outputs, dims)
        known: dict[TreatedPlan, PartedPlan] = {}  # classes may differ in their hot plans alone

        def parted(plan: UnpackedPlan, treated: TreatedPlan) -> PartedPlan:
            if treated not in known:
                known[treated] = self._parted(plan, treated, fallback)
            return known[treated]

        self._classes = [
            _Class(
                parted(own, one.plan),
                None
                if one.hot is None or hot is None or len(hot.models) > most
                else parted(hot, one.hot),
                one.hot_from,
                one.padding,
            )
            for one, own, hot in zip(self.shapes.classes, parts.plans, parts.hot, strict=True)
        ]
        self.targets = tuple(part.target for part in self._classes[0].plan.parts)
        self.not_hot: dict[tuple[int, ...], str] = {}
        self._tolerance: dict[str, float] = {}
        self._compiling = threading.Lock()
        self._made = [name for name in self._names if name not in self._constants]
        self._served = [
            _Instance(
                ByShape(
                    compiled,
                    self.inputs,
                    self._made,
                    self.shapes.data_dependent,
                    most_copies=most,
                    instance=number,
                )
            )
            for number in range(self.instances)
        ]
        self.errors, self.bounds = {}, {}
        for instance in self._served:
            self._owned.callback(instance.by_shape.close)
            self._verify_shapes(instance.by_shape)
        give_back()
        self._requests = Requests(self._served)

    def _parted(self, plan: UnpackedPlan, treated: TreatedPlan, fallback: str | None) -> PartedPlan:
        parts = []
        for i, (model, target) in enumerate(zip(plan.models, plan.targets, strict=True)):
            placed = self._placed(i, target, fallback)
            if (reason := not_rewritten(i, placed, model)) is not None:
                raise LoadError(reason)
            parts.append(Part(model.path.parent.name, model, placed, treated.treatments[i]))
        return PartedPlan(tuple(parts), plan.lanes)

    def _verify_shapes(self, by_shape: ByShape) -> None:
        """Compile all that takes every shape, and compare it with the reference at each shape that was measured."""
        for proof in self.shapes.proofs:
            chosen = self._classes[self.shapes.class_of(proof.sizes)]
            self._prove(by_shape, chosen.plan, proof.plan, proof.sizes)
            if chosen.hot is not None and proof.hot is not None:
                self._prove(by_shape, chosen.hot, proof.hot, proof.sizes)

    def _prove(self, by_shape: ByShape, plan: PartedPlan, text: str, sizes: Mapping[str, int]) -> None:
        specs = self._inputs_at(sizes)
        try:
            verification = Verification.from_text(text)
            executor = by_shape.bound(plan, samples_of(verification, specs)[0])
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
        for name, allowed in verification.tolerance.items():
            self._tolerance[name] = max(allowed, self._tolerance.get(name, 0.0))
        for name, seen in errors.items():
            self.errors[name] = max(seen, self.errors.get(name, 0.0))

    @property
    def example_inputs(self) -> tuple[TensorSpec, ...]:
        """The model's inputs at the representative shape with the largest weight."""
        return self.inputs_at({})

    def inputs_at(self, sizes: Mapping[str, int]) -> tuple[TensorSpec, ...]:
        """The model's inputs with some sizes of its free dimensions, and the others as in `example_inputs`.

        Raises:
            BadInputError: a dimension is none that is free.
        """
        most = max(self.shapes.space.shapes, key=lambda shape: shape.weight)
        if unknown := sorted(sizes.keys() - most.sizes.keys()):
            raise BadInputError(
                f"{', '.join(unknown)} is no free dimension; {', '.join(most.sizes)} is"
            )
        return self._inputs_at({**most.sizes, **sizes})

    def _inputs_at(self, sizes: Mapping[str, int]) -> tuple[TensorSpec, ...]:
        return specs_at(self.inputs, self.shapes.axes, sizes)

    def get_inputs(self) -> list[NodeArg]:
        """The model's inputs, in order; free dimensions by name."""
        return [self._described(spec) for spec in self.inputs]

    def get_outputs(self) -> list[NodeArg]:
        """The model's outputs, in order; dimensions that follow from others by name, or None."""
        return [self._described(spec) for spec in self._outputs]

    def _described(self, spec: TensorSpec) -> NodeArg:
        return replace(NodeArg.of(spec), shape=self.shapes.axes[spec.name])

    def _compute(
        self, names: Sequence[str], feed: Mapping[str, np.ndarray], executor: Any
    ) -> list[np.ndarray]:
        made = self._computed(executor, feed, [name for name in names if name not in self._constants])
        return [made[name] if name in made else self._constants[name].copy() for name in names]

    def _hand_over(self, executor: Any) -> None:
        executor.by_shape.hand_over(self._state.names)

    def _computed(
        self, instance: _Instance, feed: Mapping[str, np.ndarray], names: Sequence[str]
    ) -> dict[str, np.ndarray]:
        """These outputs, or all, by the plan of the class, or by its hot plan where this shape has come often."""
        sizes = self._sizes(feed)
        chosen = self._classes[self.shapes.class_of(sizes)]
        by_shape, seen = instance.by_shape, instance.seen
        padded = None if chosen.hot is None else _padded(chosen.padding, sizes, feed)
        if chosen.hot is None or padded is None or padded.key in self.not_hot:
            return by_shape.run(chosen.plan, feed, names)
        key = padded.key
        if by_shape.knows(chosen.hot, padded.feed):
            if not padded.is_longer or (chosen.hot, key) in instance.compared:
                return padded.cut(by_shape.run(chosen.hot, padded.feed, names))
            # It was compiled at a request that needed no padding.
            return self._compared(instance, chosen, padded, feed)
        seen[key] += 1
        comes_often = seen[key] >= chosen.hot_from
        if len(seen) > _MOST_COUNTED:
            kept = seen.most_common(_MOST_COUNTED // 2)
            seen.clear()
            seen.update(dict(kept))
        if not comes_often:
            return by_shape.run(chosen.plan, feed, names)
        # What is evicted later must come as often again.
        del seen[key]
        return self._compared(instance, chosen, padded, feed)

    def _compared(
        self, instance: _Instance, chosen: _Class, padded: _Padded, feed: Mapping[str, np.ndarray]
    ) -> dict[str, np.ndarray]:
        """All outputs by the plan for every shape, with which the hot plan is compared; that is compiled if need be."""
        assert chosen.hot is not None
        made = instance.by_shape.run(chosen.plan, feed, self._made)
        with self._compiling:
            self._compare(instance, chosen.hot, padded, made)
        return made

    def _compare(
        self,
        instance: _Instance,
        hot: PartedPlan,
        padded: _Padded,
        made: Mapping[str, np.ndarray],
    ) -> None:
        by_shape, compared = instance.by_shape, instance.compared
        compared.discard((hot, padded.key))
        try:
            others = padded.cut(by_shape.run(hot, padded.feed, self._made))
        except Exception as error:  # the request has its answer, whatever fails here
            self.not_hot[padded.key] = in_short(error)
            by_shape.forget(hot, padded.feed)
            return
        for name, value in made.items():
            off = ValueDigest.of(value).error_of(others[name])
            # Each may be off by the tolerance.
            if not off <= 2 * self._tolerance.get(name, 0.0):
                self.not_hot[padded.key] = (
                    f"output {name!r} differs by {off:.3g} from that of the plan for all"
                )
                by_shape.forget(hot, padded.feed)
                return
        if padded.is_longer:
            if len(compared) >= _MOST_COUNTED:
                compared.clear()
            compared.add((hot, padded.key))

    def _sizes(self, feed: Mapping[str, np.ndarray]) -> dict[str, int]:
        """The size of each free dimension.

        Raises:
            BadInputError: a rank or a size does not fit; the message names input and axis.
        """
        shapes = {spec.name: feed[spec.name].shape for spec in self.inputs}
        sizes, found_at = sizes_of_arrays(shapes, self.shapes.axes, self.shapes.space)
        self._check_ranges(sizes, found_at)
        return sizes

    def _check_ranges(self, sizes: Mapping[str, int], found_at: Mapping[str, str]) -> None:
        for name, dim in self.shapes.space.dims.items():
            if name in sizes and sizes[name] not in dim and self._outside == "refuse":
                raise BadInputError(
                    f"{found_at[name]}: {name} is {sizes[name]}, which is outside of {dim.text}; tune the model "
                    'again with a wider range, or load the artifact with outside="run"'
                )


def _padded(
    padding: Padding | None, sizes: Mapping[str, int], feed: Mapping[str, np.ndarray]
) -> _Padded | None:
    """A request as a hot plan takes it; None where its size is above all buckets."""
    if padding is None:
        return _Padded(tuple(sizes.values()), feed)
    size = sizes[padding.dim]
    bucket = padding.bucket(size)
    if bucket is None:
        return None
    key = tuple({**sizes, padding.dim: bucket}.values())
    return _Padded(key, padding.padded(feed, size, bucket), padding, size, bucket)


def _text(sizes: Mapping[str, int]) -> str:
    return ", ".join(f"{name}={size}" for name, size in sizes.items())
