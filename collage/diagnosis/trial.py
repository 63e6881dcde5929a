"""What a trial is asked, and what it answers.

Terms: a *trial* runs one sub-model on one target in a child of its own, several times on each sample, and
compares every run with the reference. Its *outcome* is `right`, or how it failed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from collage.backends.contract import SubModel
from collage.partitioner.target import Target

Outcome = Literal["right", "wrong", "crash", "hang", "out of memory", "refused"]
FAULTS: tuple[Outcome, ...] = ("wrong", "crash", "hang", "out of memory")
"""Outcomes that are faults of the runtime; a refusal is an answer."""


@dataclass(frozen=True)
class TrialRequest:
    """What to run and how."""

    target: Target
    model: SubModel
    inputs_path: Path  # samples of its inputs (`collage.backends.numerics.tensor_files`)
    expected_path: Path  # reference outputs for each of these
    tolerance: float  # the largest error that is right
    metric: str = "max"
    threads: int = 1
    runs: int = 3  # of each sample, since some faults show from the second run on
    cache_dir: Path | None = None
    stop_at_fault: bool = True  # False to know the error of every output


@dataclass(frozen=True)
class Element:
    """One element of an output."""

    index: tuple[int, ...]
    expected: str  # numbers as Python writes them
    got: str


@dataclass(frozen=True)
class WrongValue:
    """The output that is furthest from the reference, in the first run that is wrong."""

    output: str
    sample: int
    run: int
    error: float  # infinite where the two cannot be compared
    reason: str = ""  # why they cannot be, else empty
    elements: tuple[Element, ...] = ()  # the worst first
    wrong_elements: int = 0  # how many are off by more than the tolerance
    size: int = 0  # how many there are


@dataclass(frozen=True)
class Trial:
    """What a trial found."""

    outcome: Outcome
    reason: str = ""  # how it failed, in one sentence
    wrong: WrongValue | None = None
    errors: Mapping[str, float] = field(default_factory=dict)  # the worst of each output over all runs
    seconds: float = 0.0

    @property
    def is_fault(self) -> bool:
        """True when the runtime did what no runtime may do."""
        return self.outcome in FAULTS

    @property
    def error(self) -> float:
        """The worst error; 0 where nothing was compared."""
        return max(self.errors.values(), default=0.0)
