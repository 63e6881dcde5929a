"""Runs a plan: compiled partitions called in order, or at once where the plan says so (`lanes`).

Every value between partitions has one place in memory (`memory_plan`), to which its producer and its
readers are bound once; a run only calls the executables. Values whose shape is known only at run time
are bound anew at each run. Values of steps on a device stay in its memory (`device_values`).

Invariants: steps stand in an order in which they can run; an executor is used by one thread at a time.
Executors may share executables, so `bind` must be called after another one has used them.
"""

from __future__ import annotations

import operator
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np

from collage.partitioner.tensor import TensorSpec
from collage.runtime.device_values import DeviceValues
from collage.runtime.memory_plan import Life, allocate, plan_memory
from collage.runtime.parallel import Lanes, waves
from collage.runtime.step import Step


class Executor:
    """Runs steps in order, or wave after wave, on planned memory.

    Args:
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
        self._steps = tuple(steps)
        self._inputs = tuple(inputs)
        self._outputs = tuple(outputs)
        self._waves = waves(
            [[spec.name for spec in step.inputs] for step in self._steps],
            [[spec.name for spec in step.outputs] for step in self._steps],
            lanes,
        )
        self._lanes = Lanes(max(map(len, self._waves), default=1))
        lives = _lives(self._steps, self._inputs, self._outputs, self._waves)
        self._buffers = allocate(plan_memory(lives), lives)
        self._device_values = DeviceValues(self._steps, self._inputs, self._outputs, self._buffers)
        self._runs: list[Callable[[], None]] = []
        self._turns: list[Callable[[], None]] = []
        self._dynamic: dict[str, np.ndarray] = {}

    @property
    def is_concurrent(self) -> bool:
        """True when some steps run at once."""
        return any(len(wave) > 1 for wave in self._waves)

    def bind(self) -> None:
        """Bind every step's buffers; once, or after another executor used the same executables."""
        self._runs = []
        for step in self._steps:
            if self._device_values.is_on_device(step):
                self._runs.append(self._device_values.bind(step))
            elif step.is_static:
                step.executable.bind(
                    [self._buffers[s.name] for s in step.inputs],
                    [self._buffers[s.name] for s in step.outputs],
                )
                self._runs.append(self._device_values.copying(step, step.executable.run))
            else:
                self._runs.append(self._device_values.copying(step, self._dynamic_run(step)))
        self._turns = self._in_waves(self._runs)

    def feed(self, values: Mapping[str, np.ndarray]) -> None:
        """Copy graph inputs into their places; the caller checks shapes and types."""
        for spec in self._inputs:
            if spec.name in self._buffers:
                np.copyto(self._buffers[spec.name], values[spec.name])
            else:
                self._dynamic[spec.name] = np.asarray(values[spec.name], order="C")
        for copy in self._device_values.feeds:
            copy()

    def run(self) -> None:
        """Compute once from what was fed."""
        for turn in self._turns:
            turn()

    def run_timed(self) -> list[float]:
        """Compute once; time of each step in microseconds."""
        times = [0.0] * len(self._runs)
        clock = time.perf_counter_ns

        def timed(position: int) -> None:
            begin = clock()
            self._runs[position]()
            times[position] = (clock() - begin) / 1e3

        for turn in self._in_waves([partial(timed, i) for i in range(len(self._runs))]):
            turn()
        return times

    def value(self, name: str) -> np.ndarray:
        """A value's array after a run; valid until its memory is used again."""
        if name not in self._buffers:
            return self._dynamic[name]
        self._device_values.fetch(name)
        return self._buffers[name]

    def results(self) -> dict[str, np.ndarray]:
        """Copies of the graph's outputs after a run."""
        return {name: np.array(self.value(name), copy=True) for name in self._outputs}

    def check_each(self, check: Callable[[int, str, np.ndarray], None]) -> None:
        """Run once and hand every value a step makes to `check(step, name, value)` right after it."""
        # In the order of waves, by which memory is shared; it may differ from that of the steps.
        for position in (step for wave in self._waves for step in wave):
            self._runs[position]()
            for spec in self._steps[position].outputs:
                check(position, spec.name, self.value(spec.name))

    def check_outputs(self, check: Callable[[int, str, np.ndarray], None]) -> None:
        """Run once and hand every output to `check(step that makes it, name, value)`."""
        self.run()
        for position, step in enumerate(self._steps):
            for spec in step.outputs:
                if spec.name in self._outputs:
                    check(position, spec.name, self.value(spec.name))

    def close(self) -> None:
        """End the threads of other lanes; may be called twice. Executables stay open."""
        self._lanes.close()

    def _in_waves(self, calls: Sequence[Callable[[], None]]) -> list[Callable[[], None]]:
        """One call for each wave, given one for each step."""
        return [
            calls[wave[0]] if len(wave) == 1 else partial(self._lanes.run, [calls[i] for i in wave])
            for wave in self._waves
        ]

    def _dynamic_run(self, step: Step) -> Callable[[], None]:
        """The call that runs a step of which some value has no place before the run."""
        executable, buffers, dynamic = step.executable, self._buffers, self._dynamic
        outputs = [buffers.get(spec.name) for spec in step.outputs]
        made = [(i, spec.name) for i, spec in enumerate(step.outputs) if spec.name not in buffers]
        read = [(spec.name, buffers.get(spec.name)) for spec in step.inputs]
        # Arrays that are kept stay who they are, so that nothing is bound twice.
        bound: list[np.ndarray] | None = None

        def run() -> None:
            nonlocal bound
            if moves or bound is None:
                inputs = [dynamic[name] if place is None else place for name, place in read]
                if bound is None or any(map(operator.is_not, bound, inputs)):
                    executable.bind(inputs, outputs)
                    bound = inputs
            executable.run()
            results = executable.results
            for i, name in made:
                dynamic[name] = results[i]

        moves = any(place is None for _, place in read)
        return run


def _lives(
    steps: Sequence[Step],
    inputs: Sequence[TensorSpec],
    outputs: Sequence[str],
    turns: Sequence[tuple[int, ...]],
) -> list[Life]:
    """When each value is needed, counted in waves: what runs at once shares no memory."""
    end = len(turns)
    wave_of = {step: number for number, wave in enumerate(turns) for step in wave}
    specs = {spec.name: spec for spec in inputs}
    first = {spec.name: -1 for spec in inputs}
    # Graph inputs stay whole until the end, so that a second run does not need to feed them again.
    last = {spec.name: end for spec in inputs}
    for position, step in enumerate(steps):
        wave = wave_of[position]
        for spec in step.outputs:
            specs[spec.name] = spec
            first[spec.name] = wave
            last[spec.name] = wave
        for spec in step.inputs:
            last[spec.name] = max(last[spec.name], wave)
    last |= dict.fromkeys(outputs, end)
    return [Life(spec, first[name], last[name]) for name, spec in specs.items() if spec.is_static]
