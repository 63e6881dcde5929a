"""Where values live when steps compute on devices, and what is copied from one memory to another.

Terms: a step is *on* a device when its executable has a memory domain of its own and its values have
static shapes; other steps are on the host. A value's *home* is the domain of its maker; graph inputs
are at home on the host. It also has a place in each domain that reads it, and on the host where it is a
graph output.

Invariants: a value is copied once for each place beyond its home, right after it is made; from device
to device it goes by way of the host. Without a step on a device nothing is copied.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial

import numpy as np

from collage.backends.device_memory import DeviceBuffer
from collage.partitioner.target import HOST_MEMORY
from collage.partitioner.tensor import TensorSpec
from collage.runtime.step import Step

Call = Callable[[], None]


class DeviceValues:
    """The places of a plan's values on devices, and the copies between them and the host.

    Args:
        outputs: names of the graph's outputs.
        arrays: the places on the host.
    """

    def __init__(
        self,
        steps: Sequence[Step],
        inputs: Sequence[TensorSpec],
        outputs: Collection[str],
        arrays: Mapping[str, np.ndarray],
    ) -> None:
        self._steps, self._arrays = tuple(steps), arrays
        self._home = {s.name: _domain(step) for step in steps for s in step.outputs}
        self._wanted: dict[str, set[str]] = {name: {HOST_MEMORY} for name in outputs}
        self._buffers: dict[tuple[str, str], DeviceBuffer] = {}
        for step in steps:
            for spec in step.inputs:
                self._wanted.setdefault(spec.name, set()).add(_domain(step))
            if self.is_on_device(step):
                for spec in (*step.inputs, *step.outputs):
                    place = (spec.name, _domain(step))
                    if place not in self._buffers:
                        self._buffers[place] = step.executable.buffer(spec)
        self._fed = [copy for spec in inputs for copy in self._copies(spec.name)]

    @property
    def feeds(self) -> Sequence[Call]:
        """The copies of graph inputs to the devices that read them, before a run."""
        return self._fed

    def is_on_device(self, step: Step) -> bool:
        return _domain(step) != HOST_MEMORY

    def bind(self, step: Step) -> Call:
        """Bind a step on a device; returns the call that runs it and copies what it made."""
        domain = _domain(step)
        step.executable.bind_device(
            [self._buffers[spec.name, domain] for spec in step.inputs],
            [self._buffers[spec.name, domain] for spec in step.outputs],
        )
        return self.copying(step, step.executable.run)

    def copying(self, step: Step, run: Call) -> Call:
        """A step's run with the copies of what it made after it."""
        copies = [copy for spec in step.outputs for copy in self._copies(spec.name)]
        return partial(_in_turn, (run, *copies)) if copies else run

    def fetch(self, name: str) -> None:
        """Copy a value to the host where a run leaves it on a device."""
        home = self._home.get(name, HOST_MEMORY)
        if home != HOST_MEMORY and HOST_MEMORY not in self._through(name):
            self._buffers[name, home].read(self._arrays[name])

    def time_copies(self, times: int) -> dict[tuple[str, int], float]:
        """Microseconds from the memory of a value's maker to that of each step which has another one.

        Args:
            times: how often each copy is made; the median counts.

        Returns:
            By name and position of the reader. What two readers share is told of both.
        """
        found = {}
        for position, step in enumerate(self._steps):
            domain = _domain(step)
            for spec in step.inputs:
                home = self._home.get(spec.name, domain)
                if home != domain:
                    way = self._way(spec.name, home, domain)
                    found[spec.name, position] = statistics.median(_time_us(way) for _ in range(times))
        return found

    def _way(self, name: str, home: str, domain: str) -> list[Call]:
        """The copies from one memory to another."""
        array, made = self._arrays[name], list[Call]()
        if home != HOST_MEMORY:
            made.append(partial(self._buffers[name, home].read, array))
        if domain != HOST_MEMORY:
            made.append(partial(self._buffers[name, domain].write, array))
        return made

    def _copies(self, name: str) -> list[Call]:
        home = self._home.get(name, HOST_MEMORY)
        through = self._through(name)
        made: list[Call] = []
        if home != HOST_MEMORY and HOST_MEMORY in through:
            made.append(partial(self._buffers[name, home].read, self._arrays[name]))
        for domain in sorted(through - {HOST_MEMORY, home}):
            made.append(partial(self._buffers[name, domain].write, self._arrays[name]))
        return made

    def _through(self, name: str) -> set[str]:
        """The domains that a value comes to; the host too where it goes from device to device."""
        home = self._home.get(name, HOST_MEMORY)
        wanted = self._wanted.get(name, set()) | {home}
        return wanted | {HOST_MEMORY} if len(wanted) > 1 else wanted


def _domain(step: Step) -> str:
    return step.executable.domain if step.is_static else HOST_MEMORY


def _time_us(calls: Sequence[Call]) -> float:
    begin = time.perf_counter_ns()
    _in_turn(calls)
    return (time.perf_counter_ns() - begin) / 1e3


def _in_turn(calls: Sequence[Call]) -> None:
    for call in calls:
        call()
