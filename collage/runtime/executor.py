"""Runs a plan: compiled partitions called in order, or at once where the plan says so (`lanes`).

Every value between partitions has one place in memory (`memory_plan`), to which its producer and its
readers are bound once; a run only calls the executables. Where the model leaves shapes free, the first
run of an input shape learns the others, and the next ones have places for them (`bindings`). Values of
steps on a device stay in its memory (`device_values`).

Invariants: steps stand in an order in which they can run; an executor is used by one thread at a time.
Executors may share executables, so `bind` must be called after another one has used them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeVar

import numpy as np

from collage.partitioner.tensor import TensorSpec
from collage.runtime.bindings import Binding, Call, RecentShapes, lent, step_call
from collage.runtime.device_values import DeviceValues
from collage.runtime.memory_plan import Block, allocate, lives_of, plan_memory
from collage.runtime.parallel import Lanes, waves
from collage.runtime.step import Step

Made = TypeVar("Made")


class Executor:
    """Runs steps in order, or wave after wave, on planned memory.

    Args:
        inputs: of the graph; each call may have another size where a shape is free.
        outputs: names of the graph's outputs; each is made by a step or is a graph input.
        lanes: how many steps may run at once.
    """

    def __init__(
        self,
        steps: Sequence[Step],
        inputs: Sequence[TensorSpec],
        outputs: Sequence[str],
        lanes: int = 1,
    ) -> None:
        self._steps, self._inputs, self._outputs = tuple(steps), tuple(inputs), tuple(outputs)
        self._waves = waves(
            [[spec.name for spec in step.inputs] for step in self._steps],
            [[spec.name for spec in step.outputs] for step in self._steps],
            lanes,
        )
        self._lanes = Lanes(max(map(len, self._waves), default=1))
        self.hand_over(())

    def hand_over(self, names: Collection[str]) -> None:
        """Let values stay where they are, from the next `bind` on.

        Args:
            names: of inputs, which are read in the caller's arrays; and of outputs, each of which is a new
                array after each run, the caller's own.
        """
        self._steps = tuple(_without_places(step, names) for step in self._steps)
        self._inputs = tuple(_without_place(spec, names) for spec in self._inputs)
        self._handed = frozenset(names)
        lives = lives_of(self._steps, self._inputs, self._outputs, self._waves)
        fixed = [life for life in lives if life.spec.is_static]
        plan, block = plan_memory(fixed), Block()
        block.reserve(plan.size_bytes)
        self._fixed = allocate(plan, fixed, block)
        self._fed = [(s.name, self._fixed[s.name]) for s in self._inputs if s.name in self._fixed]
        self._free = tuple(spec.name for spec in self._inputs if spec.name not in self._fixed)
        # A runtime reads bytes in the machine's order, which the caller's arrays need not have.
        self._free_types = tuple(
            None if spec.dtype == "unknown" else np.dtype(spec.dtype)
            for spec in self._inputs
            if spec.name not in self._fixed
        )
        self._device_values = DeviceValues(self._steps, self._inputs, self._outputs, self._fixed)
        # Places pay where a step has no other values; elsewhere it is bound at each run all the same.
        pays = self._free and any(
            not step.is_static and self._handed.isdisjoint(_names(step)) for step in self._steps
        )
        free = [life for life in lives if not life.spec.is_static] if pays else []
        self._shapes = RecentShapes(free, self._fixed, self._bound_to, set(names))
        self._fixed_runs: dict[int, Call] = {}
        self._loose: dict[str, np.ndarray] = {}
        # What each step of free shape is bound to; it holds until another binding is used.
        self._bound: dict[int, list[np.ndarray]] = {}
        self._key: tuple[tuple[int, ...], ...] = ()
        self._open = self._binding = Binding(self._fixed, (), ())

    @property
    def is_concurrent(self) -> bool:
        """True when some steps run at once."""
        return any(len(wave) > 1 for wave in self._waves)

    def bind(self) -> None:
        """Bind every step's buffers; once, or after another executor used the same executables."""
        for position, step in enumerate(self._steps):
            if self._device_values.is_on_device(step):
                self._fixed_runs[position] = self._device_values.bind(step)
            elif step.is_static:
                step.executable.bind(
                    [self._fixed[s.name] for s in step.inputs],
                    [self._fixed[s.name] for s in step.outputs],
                )
                run = self._device_values.copying(step, step.executable.run)
                self._fixed_runs[position] = run
        self._loosen_inputs()
        self._open = replace(self._bound_to(self._fixed), is_open=bool(self._free), is_guess=False)
        self._use(self._open)

    def feed(self, values: Mapping[str, np.ndarray]) -> None:
        """Copy graph inputs into their places; the caller checks types, and the shapes that are not free."""
        for name, place in self._fed:
            np.copyto(place, values[name])
        if self._free:
            self._feed_free(values)
        for copy in self._device_values.feeds:
            copy()

    def _feed_free(self, values: Mapping[str, np.ndarray]) -> None:
        arrays = [
            np.asarray(values[name], dtype, order="C")
            for name, dtype in zip(self._free, self._free_types, strict=True)
        ]
        before, self._key = self._key, tuple([array.shape for array in arrays])
        if self._key != before:  # an array that was reshaped in place is bound again
            self._bound.clear()
        self._use(self._shapes.find(self._key) or self._open)
        places = self._binding.places
        for name, array in zip(self._free, arrays, strict=True):
            if name in places:
                np.copyto(places[name], array)
            else:
                self._loose[name] = lent(array)

    def run(self) -> None:
        """Compute once from what was fed."""
        self._compute(_take_turns)

    @property
    def is_fixed(self) -> bool:
        """True when all shapes are known before the first run, so that steps may run apart (`run_steps`)."""
        return not self._free and all(step.is_static for step in self._steps)

    def run_steps(self, first: int, last: int) -> None:
        """Compute some of the steps, `last` not included; the executor `is_fixed` and has one lane."""
        for turn in self._binding.turns[first:last]:
            turn()

    def run_timed(self) -> list[float]:
        """Compute once; time of each step in microseconds."""
        return self._compute(self._time)

    def time_copies(self, times: int) -> dict[tuple[str, int], float]:
        """Microseconds of copies between steps in different memories, as `DeviceValues.time_copies` has them.

        To be called after a run, and feed before the next one.
        """
        return self._device_values.time_copies(times)

    def _time(self, binding: Binding) -> list[float]:
        times = [0.0] * len(binding.runs)
        clock = time.perf_counter_ns

        def timed(position: int) -> None:
            begin = clock()
            binding.runs[position]()
            times[position] = (clock() - begin) / 1e3

        for turn in self._in_waves([partial(timed, i) for i in range(len(binding.runs))]):
            turn()
        return times

    def value(self, name: str) -> np.ndarray:
        """A value's array after a run; valid until its memory is used again."""
        if name in self._fixed:
            self._device_values.fetch(name)
        places = self._binding.places
        return places[name] if name in places else self._loose[name]

    def output(self, name: str) -> np.ndarray:
        """A graph output after a run, the caller's own: a copy, or the new array where it is handed over."""
        value = self.value(name)
        return value if name in self._handed else value.copy()

    def results(self) -> dict[str, np.ndarray]:
        """Copies of the graph's outputs after a run."""
        return {name: np.array(self.value(name), copy=True) for name in self._outputs}

    def check_each(self, check: Callable[[int, str, np.ndarray], None]) -> None:
        """Run once and hand every value a step makes to `check(step, name, value)` right after it."""

        def run_and_check(binding: Binding) -> None:
            # In the order of waves, by which memory is shared; it may differ from that of the steps.
            for position in (step for wave in self._waves for step in wave):
                binding.runs[position]()
                for spec in self._steps[position].outputs:
                    check(position, spec.name, self.value(spec.name))

        self._compute(run_and_check)

    def check_outputs(self, check: Callable[[int, str, np.ndarray], None]) -> None:
        """Run once and hand every output to `check(step that makes it, name, value)`."""
        self.run()
        for position, step in enumerate(self._steps):
            for spec in step.outputs:
                if spec.name in self._outputs:
                    check(position, spec.name, self.value(spec.name))

    def close(self) -> None:
        """End the threads of other lanes and let go of arrays; may be called twice. Executables stay open."""
        self._lanes.close()
        self._shapes.clear()
        self._loose.clear()
        self._open = self._binding = Binding(self._fixed, (), ())

    def _compute(self, once: Callable[[Binding], Made]) -> Made:
        """Make the calls of a binding; those of the open one where shapes turn out to be others."""
        if self._binding.is_open and self._key in self._shapes:  # it ran, and was not fed again
            self._feed_free(self._loose)
        failed = False
        try:
            made = once(self._binding)
        except Exception:
            if not self._binding.is_guess:
                raise
            failed = True
        if failed:
            self._loosen_inputs()
            self._use(self._open)
            made = once(self._binding)
        if self._binding.is_open:
            self._shapes.learn(self._key, self._loose, failed)
        return made

    def _loosen_inputs(self) -> None:
        """Keep what was fed for the open binding."""
        places = self._binding.places
        self._loose.update((name, places[name]) for name in self._free if name in places)

    def _use(self, binding: Binding) -> None:
        if binding is not self._binding:
            self._binding = binding
            self._bound.clear()

    def _bound_to(self, places: Mapping[str, np.ndarray]) -> Binding:
        """The binding of all steps to places; those of static shape are bound to the same ones in each."""
        runs = [
            self._fixed_runs[position]
            if position in self._fixed_runs
            else self._device_values.copying(
                step, step_call(position, step, places, self._loose, self._bound)
            )
            for position, step in enumerate(self._steps)
        ]
        return Binding(places, runs, self._in_waves(runs), is_guess=True)

    def _in_waves(self, calls: Sequence[Call]) -> list[Call]:
        """One call for each wave, given one for each step."""
        return [
            calls[wave[0]] if len(wave) == 1 else partial(self._lanes.run, [calls[i] for i in wave])
            for wave in self._waves
        ]


def _take_turns(binding: Binding) -> None:
    for turn in binding.turns:
        turn()


def _names(step: Step) -> list[str]:
    return [spec.name for spec in (*step.inputs, *step.outputs)]


def _without_places(step: Step, handed: Collection[str]) -> Step:
    return replace(
        step,
        inputs=tuple(_without_place(spec, handed) for spec in step.inputs),
        outputs=tuple(_without_place(spec, handed) for spec in step.outputs),
    )


def _without_place(spec: TensorSpec, handed: Collection[str]) -> TensorSpec:
    """The spec as that of a value whose array is not known before the run, where it is handed over."""
    return replace(spec, shape=None) if spec.name in handed else spec
