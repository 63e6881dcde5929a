"""What processes of several environments are asked to run in turn, and what came of it.

Terms: an *environment* is a Python interpreter with its packages. An *entry* is one plan in one environment.
A *build* starts new processes, compiles all entries, and times one block of calls of each in every *round*.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from collage.backends.contract import SubModel
from collage.partitioner.tensor import TensorSpec

# Raise it when a worker no longer understands the work of an earlier one, or times otherwise.
PROTOCOL = 2


@dataclass(frozen=True)
class Environment:
    """A Python interpreter.

    Args:
        python: its executable; None for the one that runs this.
        files: one file in each folder that it needs, so that a sandboxed child may read there.
        versions: of the runtimes there, of Python and of this project.
    """

    python: Path | None
    versions: Mapping[str, str]
    files: tuple[Path, ...] = ()

    @property
    def name(self) -> str:
        """How people call it."""
        return "this one" if self.python is None else str(self.python)


@dataclass(frozen=True)
class WorkStep:
    """One partition and its target, as text."""

    model: SubModel
    target: str


@dataclass(frozen=True)
class Work:
    """A plan with its samples.

    Args:
        steps: in execution order.
        inputs: of the whole.
        outputs: names of values that steps make.
        samples: inputs (`collage.backends.numerics.tensor_files`).
        expected: reference outputs for each.
        lanes: how many steps may run at once.
    """

    steps: tuple[WorkStep, ...]
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[str, ...]
    samples: Path
    expected: Path
    lanes: int = 1


@dataclass(frozen=True)
class Entry:
    """A plan in an environment, both by position."""

    environment: int
    work: int


@dataclass(frozen=True)
class BuildRequest:
    """One build."""

    environments: tuple[Environment, ...]
    works: tuple[Work, ...]
    entries: tuple[Entry, ...]
    threads: int
    rounds: int = 12
    block_s: float = 0.06
    metric: str = "max"
    counted: bool = False  # whether differences are counted, since somebody else judges results
    timeout_s: float = 300.0  # for an answer of a process


@dataclass(frozen=True)
class Built:
    """What one build found of one entry; round by round, so that entries compare."""

    samples_us: tuple[float, ...] = ()
    step_us: tuple[tuple[float, ...], ...] = ()  # of each round the time of each step
    error: float | None = None
    failure: str | None = None


@dataclass(frozen=True)
class BuildResult:
    """One build of all entries."""

    entries: tuple[Built, ...]
    yardstick_us: tuple[float, ...] = ()  # of each round


def work_as_json(work: Work) -> dict[str, Any]:
    """A plan for another process, which may be of another version of this project."""
    return {
        "steps": [
            {
                "path": str(step.model.path),
                "inputs": [asdict(spec) for spec in step.model.inputs],
                "outputs": [asdict(spec) for spec in step.model.outputs],
                "calibration": None if step.model.calibration is None else str(step.model.calibration),
                "prepared": step.model.prepared,
                "target": step.target,
            }
            for step in work.steps
        ],
        "inputs": [asdict(spec) for spec in work.inputs],
        "outputs": list(work.outputs),
        "samples": str(work.samples),
        "expected": str(work.expected),
        "lanes": work.lanes,
    }


def work_from_json(data: Mapping[str, Any]) -> Work:
    """What `work_as_json` wrote."""

    def specs(given: Any) -> tuple[TensorSpec, ...]:
        return tuple(
            TensorSpec(s["name"], s["dtype"], None if s["shape"] is None else tuple(s["shape"]))
            for s in given
        )

    steps = tuple(
        WorkStep(
            SubModel(
                Path(step["path"]),
                specs(step["inputs"]),
                specs(step["outputs"]),
                None if step["calibration"] is None else Path(step["calibration"]),
                step["prepared"],
            ),
            step["target"],
        )
        for step in data["steps"]
    )
    return Work(
        steps,
        specs(data["inputs"]),
        tuple(data["outputs"]),
        Path(data["samples"]),
        Path(data["expected"]),
        data["lanes"],
    )
