"""Runs plans at shapes that are known only when a call comes.

Terms: a *part* is a partition with its treatment. `dynamic` is compiled once and takes every shape. `exact` is compiled
for each shape of its inputs, when it comes first; so is `bucket`, whose inputs the caller pads. An *instance* is a plan with exact parts at one shape of the model's
inputs.

A plan whose parts are all dynamic has one executor, which takes each shape. The first call of an instance runs part by
part, and learns the shapes of all values from what the runtimes make. The next ones run on planned memory.

Invariants: one thread at a time. What was compiled for a shape is closed with its instance; the instance that was used
longest ago goes first. An executor is bound anew where another one has used an executable of its own.
"""

from __future__ import annotations

import os
import tempfile
from collections import OrderedDict
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from collage.backends.contract import Executable, SubModel
from collage.backends.machine.resident_memory import give_back
from collage.partitioner.emit.fixed_copy import write_fixed
from collage.partitioner.errors import CollageError
from collage.partitioner.target import Target
from collage.partitioner.tensor import TensorSpec
from collage.runtime.bindings import lent
from collage.runtime.compiled import CompiledRegions, CompileError, in_short
from collage.runtime.executor import Executor
from collage.runtime.step import Step
from collage.shapes.classes import Treatment

Shapes = tuple[tuple[int, ...], ...]
MOST_INSTANCES = 64


class ShapeError(CollageError):
    """A partition cannot run at these shapes; the message names both and quotes the runtime."""


@dataclass(frozen=True)
class Part:
    """A partition of a plan.

    Args:
        name: of its sub-model, unique among all.
        model: the sub-model with free dimensions.
        target: where it runs.
        treatment: how it is compiled.
    """

    name: str
    model: SubModel
    target: Target
    treatment: Treatment


@dataclass(frozen=True, eq=False)
class PartedPlan:
    """A plan's parts in execution order, and how many of them may run at once; equal only to itself."""

    parts: tuple[Part, ...]
    lanes: int = 1

    @property
    def is_dynamic(self) -> bool:
        """True when no part is compiled for one shape alone."""
        return all(part.treatment == "dynamic" for part in self.parts)


@dataclass(frozen=True, eq=False)
class _Instance:
    executor: Executor
    executables: Sequence[Executable]
    copies: Sequence[tuple[str, Target]] = ()  # what is compiled for it alone


class ByShape:
    """Runs plans of one model at any shape.

    Args:
        compiled: makes and owns executables.
        inputs: the model's inputs.
        outputs: names of the model's outputs that parts make.
        data_dependent: values whose shape does not follow from the shapes of the inputs.
        most_instances: so many instances stay bound.
        most_copies: so many partitions stay compiled for one shape each.
        instance: its number among those that run at once on the weights of `compiled`.
    """

    def __init__(
        self,
        compiled: CompiledRegions,
        inputs: Sequence[TensorSpec],
        outputs: Sequence[str],
        data_dependent: Collection[str] = (),
        most_instances: int = MOST_INSTANCES,
        most_copies: int = MOST_INSTANCES,
        instance: int = 0,
    ) -> None:
        self._compiled, self._instance = compiled, instance
        self._inputs = tuple(inputs)
        self._outputs = tuple(outputs)
        self._data_dependent = frozenset(data_dependent)
        self._most_instances, self._most_copies = most_instances, most_copies
        self._instances: OrderedDict[tuple[PartedPlan, Shapes], _Instance] = OrderedDict()
        self._dynamic: dict[PartedPlan, _Instance] = {}
        self._used_by: dict[Executable, _Instance] = {}
        self._handed: frozenset[str] = frozenset()
        self._made = 0

    def run(
        self, plan: PartedPlan, feed: Mapping[str, np.ndarray], names: Sequence[str]
    ) -> dict[str, np.ndarray]:
        """Compute outputs by a plan.

        Args:
            feed: every input; the caller checks names, types and ranks.
            names: the outputs that are wanted.

        Returns:
            Arrays of the caller's own.

        Raises:
            CompileError: a runtime refused a part at these shapes.
            ShapeError: a part failed at these shapes.
        """
        if not plan.is_dynamic and not self.knows(plan, feed):
            values = self._learn(plan, feed)
            return {n: values[n] if n in self._handed else np.array(values[n]) for n in names}
        executor = self.bound(plan, feed)
        try:
            executor.feed(feed)
            executor.run()
        except Exception as error:
            raise ShapeError(f"{_described(self._inputs, feed)}: {in_short(error)}") from error
        return {name: executor.output(name) for name in names}

    def bound(self, plan: PartedPlan, feed: Mapping[str, np.ndarray]) -> Executor:
        """The executor for the shapes of a feed, bound; it may be used until the next call.

        Raises:
            CompileError: a runtime refused a part at these shapes.
            ShapeError: a part failed at these shapes.
        """
        if plan.is_dynamic:
            if plan not in self._dynamic:
                self._dynamic[plan] = self._for_all(plan)
            return self._turn(self._dynamic[plan])
        if not self.knows(plan, feed):
            self._learn(plan, feed)
        key = plan, self._shapes(feed)
        self._instances.move_to_end(key)
        return self._turn(self._instances[key])

    def _for_all(self, plan: PartedPlan) -> _Instance:
        """A plan of dynamic parts with its executor."""
        executables = [self._shared(part) for part in plan.parts]
        steps = [
            Step(executable, part.model.inputs, part.model.outputs)
            for executable, part in zip(executables, plan.parts, strict=True)
        ]
        executor = Executor(steps, self._inputs, self._outputs, plan.lanes)
        executor.hand_over(self._handed | self._data_dependent)
        return _Instance(executor, executables)

    def hand_over(self, names: Collection[str]) -> None:
        """Let inputs and outputs stay where they are (`Executor.hand_over`); what was bound before is closed."""
        for instance in self._instances.values():
            self._drop(instance.copies)
        self.close()
        self._handed = frozenset(names)

    def knows(self, plan: PartedPlan, feed: Mapping[str, np.ndarray]) -> bool:
        """True when a plan is bound to the shapes of a feed."""
        return (plan, self._shapes(feed)) in self._instances

    def forget(self, plan: PartedPlan, feed: Mapping[str, np.ndarray]) -> None:
        """Close what is kept of a plan for the shapes of a feed."""
        instance = self._instances.pop((plan, self._shapes(feed)), None)
        if instance is not None:
            self._end(instance)

    def _shapes(self, feed: Mapping[str, np.ndarray]) -> Shapes:
        return tuple(np.shape(feed[spec.name]) for spec in self._inputs)

    def _turn(self, instance: _Instance) -> Executor:
        if any(self._used_by.get(executable) is not instance for executable in instance.executables):
            instance.executor.bind()
            self._used_by.update(dict.fromkeys(instance.executables, instance))
        return instance.executor

    def _learn(self, plan: PartedPlan, feed: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Run part by part, and keep an instance for the next call; every value that a part reads or makes."""
        values = {
            spec.name: lent(np.asarray(feed[spec.name], dtype=_dtype(spec), order="C"))
            for spec in self._inputs
        }
        steps: list[Step] = []
        copies: list[tuple[str, Target]] = []
        self._make_room(plan)
        try:
            self._run_parts(plan, values, steps, copies)
        except BaseException:
            self._drop(copies)
            raise
        executor = Executor(steps, self._seen(self._inputs, values), self._outputs, plan.lanes)
        executor.hand_over(self._handed)
        executables = [step.executable for step in steps]
        self._instances[plan, self._shapes(feed)] = _Instance(executor, executables, copies)
        give_back()
        return values

    def _run_parts(
        self,
        plan: PartedPlan,
        values: dict[str, np.ndarray],
        steps: list[Step],
        copies: list[tuple[str, Target]],
    ) -> None:
        """Compile and run one part after the other; adds what they make, their steps, and what is for this shape alone."""
        for position, part in enumerate(plan.parts):
            given = [values[spec.name] for spec in part.model.inputs]
            executable = self._executable(part, given, copies)
            self._used_by.pop(executable, None)
            try:
                executable.bind(given, [None] * len(part.model.outputs))
                executable.run()
            except Exception as error:
                where = (
                    f"partition {position} on {part.target}, {_described(part.model.inputs, values)}"
                )
                raise ShapeError(f"{where}: {in_short(error)}") from error
            made = executable.results
            # A runtime may use the memory of its results again.
            values |= {
                spec.name: np.array(value) for spec, value in zip(part.model.outputs, made, strict=True)
            }
            steps.append(
                Step(
                    executable,
                    self._seen(part.model.inputs, values),
                    self._seen(part.model.outputs, values),
                )
            )

    def close(self) -> None:
        """End the threads of all executors; executables stay open."""
        for instance in (*self._instances.values(), *self._dynamic.values()):
            instance.executor.close()
        self._instances.clear()
        self._dynamic.clear()
        self._used_by.clear()

    @property
    def copies(self) -> int:
        """How many partitions are compiled for one shape each."""
        return sum(len(instance.copies) for instance in self._instances.values())

    def _shared(self, part: Part) -> Executable:
        """What takes every shape."""
        return self._compiled.another(part.name, part.model, part.target, self._instance)

    def _executable(
        self, part: Part, given: Sequence[np.ndarray], copies: list[tuple[str, Target]]
    ) -> Executable:
        # Where a shape depends on data, there is no one shape to compile for.
        is_open = any(spec.name in self._data_dependent for spec in part.model.inputs)
        if part.treatment == "dynamic" or is_open:
            return self._shared(part)
        name = f"shape-{self._instance}-{self._made}"
        self._made += 1
        copies.append((name, part.target))
        try:
            with fixed(part.model, [array.shape for array in given]) as model:
                # Not kept on disk: there may be as many shapes as requests.
                return self._compiled.get(name, model, part.target, lasting=False)
        except OSError as error:
            raise CompileError(
                f"a partition cannot be compiled for another shape on {part.target}: {error}; make room on the "
                "disk if it is full, else load the artifact again"
            ) from error

    def _seen(
        self, specs: Sequence[TensorSpec], values: Mapping[str, np.ndarray]
    ) -> tuple[TensorSpec, ...]:
        """The specs with the shapes that values had, but for those whose shape depends on more than shapes."""
        return tuple(
            TensorSpec(spec.name, spec.dtype, (None,) * values[spec.name].ndim)
            if spec.name in self._data_dependent
            else TensorSpec(spec.name, spec.dtype, values[spec.name].shape)
            for spec in specs
        )

    def _make_room(self, plan: PartedPlan) -> None:
        """Close instances that were not used for long, so that one more of a plan keeps the bounds."""
        more = sum(part.treatment != "dynamic" for part in plan.parts)
        while self._instances and (
            len(self._instances) >= self._most_instances or self.copies + more > self._most_copies
        ):
            _, oldest = self._instances.popitem(last=False)
            self._end(oldest)

    def _end(self, instance: _Instance) -> None:
        for executable in instance.executables:
            if self._used_by.get(executable) is instance:
                del self._used_by[executable]
        instance.executor.close()
        self._drop(instance.copies)

    def _drop(self, copies: Sequence[tuple[str, Target]]) -> None:
        for name, target in copies:
            self._compiled.drop(name, target)


@contextmanager
def fixed(model: SubModel, shapes: Sequence[Sequence[int]]) -> Iterator[SubModel]:
    """A sub-model for one shape of each of its inputs, as a file that is gone afterwards."""
    inputs = tuple(
        replace(spec, shape=tuple(shape)) for spec, shape in zip(model.inputs, shapes, strict=True)
    )
    with ExitStack() as stack:
        # Beside the model both share one file of weights, so the kernel maps it once.
        try:
            handle, name = tempfile.mkstemp(".onnx", "shape-", model.path.parent)
        except OSError:  # the folder is not writable
            path = Path(stack.enter_context(tempfile.TemporaryDirectory()), "model.onnx")
        else:
            os.close(handle)
            path = Path(name)
            stack.callback(path.unlink, missing_ok=True)
        write_fixed(model.path, shapes, path)
        yield replace(model, path=path, inputs=inputs)


def _described(specs: Sequence[TensorSpec], values: Mapping[str, np.ndarray]) -> str:
    shapes = ", ".join(f"{spec.name} {np.shape(values[spec.name])}" for spec in specs)
    return f"the plan cannot run with {shapes}"


def _dtype(spec: TensorSpec) -> np.dtype[np.generic] | None:
    return None if spec.dtype == "unknown" else np.dtype(spec.dtype)
