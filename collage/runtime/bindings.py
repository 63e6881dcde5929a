"""The steps of a plan bound to memory, for each of the recent shapes.

Terms: a value has a *place* in a binding where its array is known before the run. Others are *loose*: the
runtime allocates them at each run, and their readers are bound to what came. A binding is *open* where
every value is loose whose shape the model leaves free.

Invariants: the places of all kept bindings lie in one block, since one binding runs at a time. A place's
shape was seen with the same input shapes before; a runtime that makes another one raises.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np

from collage.runtime.memory_plan import Block, Life, allocate, plan_memory
from collage.runtime.step import Step

Call = Callable[[], None]
Shapes = Mapping[str, tuple[int, ...]]
Kept = TypeVar("Kept")

_MOST_BINDINGS = 64
_MOST_SHAPES = 512
# Larger shapes run with loose values, which a runtime frees.
_MOST_BYTES = 1 << 30


@dataclass(frozen=True, eq=False)
class Binding:
    """Calls for one shape of each value.

    Args:
        places: arrays of values.
        runs: the call of each step.
        turns: the call of each wave.
        is_open: every value of free shape is loose.
        is_guess: some places have shapes that another run had.
    """

    places: Mapping[str, np.ndarray]
    runs: Sequence[Call]
    turns: Sequence[Call]
    is_open: bool = False
    is_guess: bool = False


class RecentShapes:
    """What is known of recent input shapes, and their bindings; the least recently used go first.

    Args:
        lives: of the values of free shape.
        fixed: the places of all other values.
        build: makes a binding from all places.
        loose: names of values that never get a place.
    """

    def __init__(
        self,
        lives: Sequence[Life],
        fixed: Mapping[str, np.ndarray],
        build: Callable[[Mapping[str, np.ndarray]], Binding],
        loose: set[str],
    ) -> None:
        self._lives, self._fixed, self._build, self._loose = tuple(lives), fixed, build, loose
        self._dtypes = [
            (life.spec.name, np.dtype(life.spec.dtype))
            for life in self._lives
            if life.spec.dtype != "unknown"
        ]
        self._block = Block()
        self._seen: dict[object, Shapes] = {}
        self._kept: dict[object, Binding] = {}

    def __contains__(self, key: object) -> bool:
        return key in self._seen

    def find(self, key: object) -> Binding | None:
        """The binding for input shapes that were seen before; None where there is none."""
        kept = self._kept.pop(key, None)
        if kept is None and key in self._seen:
            kept = self._make(self._seen[key])
        if kept is not None:
            _keep(self._kept, key, kept, _MOST_BINDINGS)
        return kept

    def learn(self, key: object, values: Mapping[str, np.ndarray], failed: bool) -> None:
        """Take the shapes of a run with loose values.

        Args:
            failed: a binding with shapes seen before has just failed. Values that differ stay loose; all
                do where none differs.
        """
        shapes = {
            name: value.shape
            for name, dtype in self._dtypes
            if name not in self._loose
            and isinstance(value := values.get(name), np.ndarray)
            and value.dtype == dtype
        }
        before = self._seen.pop(key, shapes)
        differing = {name for name, shape in shapes.items() if before.get(name, shape) != shape}
        if failed and not differing:
            differing = set(shapes)
        if differing:
            self._loose |= differing
            self._kept.clear()
        _keep(self._seen, key, shapes, _MOST_SHAPES)

    def clear(self) -> None:
        """Forget all shapes and bindings."""
        self._seen.clear()
        self._kept.clear()

    def _make(self, shapes: Shapes) -> Binding | None:
        lives = [
            replace(life, spec=replace(life.spec, shape=shapes[life.spec.name]))
            for life in self._lives
            if life.spec.name in shapes and life.spec.name not in self._loose
        ]
        plan = plan_memory(lives)
        if not lives or plan.size_bytes > _MOST_BYTES:
            return None
        if self._block.reserve(plan.size_bytes):
            self._kept.clear()
        return self._build({**self._fixed, **allocate(plan, lives, self._block)})


def lent(array: np.ndarray) -> np.ndarray:
    """A caller's array, in C order, for a runtime to read where it lies; a copy where its memory is not fit for that.

    OpenVINO takes no memory that is read-only, as that of `np.frombuffer`, and kernels may need it aligned.
    """
    return array if array.flags.carray else array.copy()


def step_call(
    position: int,
    step: Step,
    places: Mapping[str, np.ndarray],
    loose: MutableMapping[str, np.ndarray],
    bound: MutableMapping[int, list[np.ndarray]],
) -> Call:
    """The call that runs a step of free shape.

    Args:
        loose: values without a place, by name; the call reads and writes them.
        bound: by position what each executable is bound to. The call writes it.
    """
    executable = step.executable
    outputs = [places.get(spec.name) for spec in step.outputs]
    read = [(spec.name, places.get(spec.name)) for spec in step.inputs]
    given = [place for _, place in read if place is not None]
    full = [place for place in outputs if place is not None]
    if len(given) == len(read) and len(full) == len(outputs):
        return executable.bound_call(given, full)
    made = [(i, spec.name) for i, spec in enumerate(step.outputs) if outputs[i] is None]
    moves = len(given) < len(read)

    def run() -> None:
        # Arrays that are kept stay who they are, so that nothing is bound twice.
        if moves or position not in bound:
            inputs = [loose[name] if place is None else place for name, place in read]
            before = bound.get(position)
            if before is None or any(map(operator.is_not, before, inputs)):
                executable.bind(inputs, outputs)
                bound[position] = inputs
        executable.run()
        results = executable.results
        for i, name in made:
            loose[name] = results[i]

    return run


def _keep(table: dict[object, Kept], key: object, value: Kept, most: int) -> None:
    table[key] = value
    if len(table) > most:
        del table[next(iter(table))]
