"""Where a tuning's runtimes run: on this machine, or on others of one kind (`collage.cluster`).

Terms: a *runner* is one kind of machine. A tuning compiles, runs and times on one runner, since a plan
runs in one process and costs of different hardware never mix. `-host=LABEL` on a target names the kind.

Invariant: what a runner says about a target (version, arithmetic, preparation) was found on the machine
that measures.
"""

from __future__ import annotations

import contextlib
import copy
import math
import platform
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Self

from collage.backends.contract import Arithmetic, Available, Preparation
from collage.backends.machine.hardware import Hardware, hardware
from collage.backends.machine.process_policy import default_threads
from collage.backends.measurement.measure import Measurement, MeasureRequest, measure
from collage.backends.options import HOST_LABEL
from collage.backends.registry import check_options, resolve
from collage.backends.sandbox.run import ChildLimits, run_in_child
from collage.device_lock import device_slot
from collage.partitioner.errors import BadInputError, CollageError, TargetError
from collage.partitioner.target import Target


class NoWorkerError(CollageError):
    """No machine has all targets of a tuning; the message says what there is."""


@dataclass(frozen=True)
class TargetFacts:
    """A target on a runner: its runtime's version, its arithmetic, and its preparation, or None."""

    version: str
    arithmetic: Arithmetic
    preparation: Preparation | None


class Runner:
    """This machine; subclasses override what is different for them.

    Attributes:
        went_on: it was measured beside another tuner, since the time for waiting was up.
    """

    went_on = False
    _until_s = math.inf
    _say_beside: Callable[[str], None] | None = None

    def waiting_until(self, until_s: float, say: Callable[[str], None]) -> Self:
        """The same, which waits for the device until then by `time.monotonic`, and goes on without it.

        Args:
            say: is told once that it does.
        """
        made = copy.copy(self)
        made._until_s, made._say_beside, made.went_on = until_s, say, False
        return made

    @cached_property
    def hardware(self) -> Hardware:
        """What costs are stored under."""
        return hardware()

    @property
    def host(self) -> str:
        """The name of the machine that ran the last child."""
        return socket.gethostname()

    @property
    def threads(self) -> int:
        """Default number of threads of one call."""
        return default_threads()

    @property
    def python(self) -> str:
        """Version of the Python that runs children."""
        return platform.python_version()

    def facts(self, target: Target) -> TargetFacts:
        """What a target is here.

        Raises:
            TargetError: it cannot be used here.
        """
        return describe(target)

    def check(self, targets: Sequence[Target]) -> list[TargetFacts]:
        """The facts of a tuning's targets, all of which can be used.

        Raises:
            TargetError: one cannot, or is wanted on another kind of machine.
            BadInputError: they are wanted on several kinds of machine.
        """
        wanted = host_of(targets)
        if wanted is not None and wanted != self.hardware.label:
            own = f"labeled {self.hardware.label!r}" if self.hardware.label else "without a label"
            raise TargetError(
                f"-host={wanted} names another kind of machine than this one, which is {own}: set "
                "COLLAGE_HOST_LABEL here, or tune on a server whose workers have that label"
            )
        return [self.facts(target) for target in targets]

    def run(
        self,
        function: Callable[..., Any],
        *args: Any,
        limits: ChildLimits | None = None,
        cancel: threading.Event | None = None,
        on_message: Callable[[Any], None] | None = None,
    ) -> Any:
        """Call a function in a sandboxed child, as `collage.backends.sandbox.run.run_in_child` does."""
        return run_in_child(function, *args, limits=limits, cancel=cancel, on_message=on_message)

    def about_waiting(self) -> list[str]:
        """What a report warns of where it was measured beside another tuner."""
        if not self.went_on:
            return []
        return [
            "another tuner measured on this machine when the time limit was up, and plans were timed beside it; tune one "
            "model at a time, or allow more with --time-limit"
        ]

    def alone(self, cancel: threading.Event | None) -> contextlib.AbstractContextManager[bool]:
        """Nothing else is measured on the device inside the block, which gets whether that is so.

        It is not where the time for waiting was up.
        """
        return self._alone(cancel)

    @contextlib.contextmanager
    def _alone(self, cancel: threading.Event | None) -> Iterator[bool]:
        with device_slot(cancel, self._until_s) as held:
            if not held and not self.went_on:
                self.went_on = True
                if self._say_beside is not None:
                    self._say_beside("the time is up, and another tuner measures; measuring beside it")
            yield held

    def measure(self, request: MeasureRequest, cancel: threading.Event | None) -> Measurement:
        """Measure a candidate, alone on its device; what was measured beside another tuner is for this run only."""
        with self.alone(cancel) as is_alone:
            measurement = measure(request, cancel, self.run)
        return measurement if is_alone else replace(measurement, cut_short=True)


def describe(target: Target) -> TargetFacts:
    """What a target is on this machine.

    Raises:
        TargetError: it cannot be used here.
    """
    backend = resolve(target)
    found = backend.probe()
    assert isinstance(found, Available)
    return TargetFacts(found.version, backend.arithmetic(target), backend.preparation(target))


def host_of(targets: Sequence[Target]) -> str | None:
    """The label of the machines that a tuning's targets ask for; None where any will do.

    A target without `-host` follows the others: a plan never runs on two machines.

    Raises:
        BadInputError: they ask for different ones.
        TargetError: an option is unknown.
    """
    for target in targets:
        check_options(target)
    labels = {t.option(HOST_LABEL.name, HOST_LABEL.default) for t in targets} - {HOST_LABEL.default}
    if len(labels) > 1:
        raise BadInputError(
            f"the targets name {len(labels)} kinds of machine (-host={', -host='.join(sorted(labels))}), "
            "but a plan runs in one process on one machine: tune once for each"
        )
    return labels.pop() if labels else None
