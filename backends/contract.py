"""What a backend is: one runtime or compiler behind one contract.

Terms: a *backend* answers, for a target (its name with options), which nodes it takes and why not
the others, which patterns it knows, and how to compile a sub-model into an *executable*, which runs
on arrays that the caller owns.

Invariants for an implementer:

* The runtime is imported inside functions only. `probe` never raises: a missing runtime is an
  `Unavailable` with its reason and the way to install it.
* `supports` is a promise to try, not to succeed: a candidate is proven by compiling, running and
  verifying it in a sacrificial child. It must be cheap (microseconds) and pure.
* Native code may crash or hang. A backend neither forks nor catches signals: isolation is the
  caller's work (`collage.backends.sandbox.run`).
* An executable belongs to the thread that calls it; the caller serializes calls. `close` gives all
  memory back and may be called twice.
* Times are in microseconds, sizes in bytes.

Source: optuna `storages/_base.py` for the manner of the contract; TVM BYOC for its content.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np

from collage.backends import device_memory
from collage.backends.device_memory import DeviceBuffer
from collage.partitioner.graph.graph_index import GraphIndex
from collage.partitioner.rules.pattern import Pattern
from collage.partitioner.target import Target
from collage.partitioner.tensor import TensorSpec

Style = Literal["library", "fusion", "graph"]
Array = np.ndarray


@dataclass(frozen=True)
class Available:
    """The runtime is here; `version` is its own version text and part of every cost key."""

    version: str


@dataclass(frozen=True)
class Unavailable:
    """The runtime cannot be used here: why, and the command that would install it."""

    reason: str
    how_to_install: str


@dataclass(frozen=True)
class Option:
    """One option of a target.

    Args:
        name: as in `-name=value`.
        default: the value when it is not given.
        choices: the values allowed; empty means that `pattern` decides.
        pattern: a regular expression for free values, e.g. `[1-9][0-9]*`.
        help: one sentence for `collage targets` and docs/backends.md.
        affects_cost: False for what only steers the search, and so stays out of cost keys.
        is_later: True for an option that came after costs had been stored, and whose default is what was done before: there
            it is left out of cost keys, so that they stay known.
        tunable: values that may be tried for single partitions where the user left the option open
            (`collage.refinement.local_moves`): each may pay somewhere, and computes as exactly as the default.
    """

    name: str
    default: str
    help: str
    choices: tuple[str, ...] = ()
    pattern: str = ".+"
    affects_cost: bool = True
    is_later: bool = False
    tunable: tuple[str, ...] = ()


RULES = Option(
    "rules",
    "none",
    "A file (YAML or JSON) with the partition rule to use for this target.",
    affects_cost=False,
)
HOST = Option(
    "host",
    "any",
    "Label of the kind of machine to measure on; the same for all targets of one tuning.",
    pattern="[A-Za-z0-9][A-Za-z0-9._-]{0,62}",
    affects_cost=False,  # the hardware in a key has the label already
)
THREADS = Option(
    "threads",
    "auto",
    "Threads that one call may use; auto is what the tuner or `load` decides for all targets.",
    pattern="auto|[1-9][0-9]{0,3}",
    tunable=("1", "2", "4", "8", "16", "32"),
)


def threads_of(target: Target, context: CompileContext) -> int:
    """How many threads a call on this target may use."""
    given = target.option("threads", "auto")
    return context.threads if given == "auto" else int(given)


@dataclass(frozen=True)
class SubModel:
    """A sub-graph as a model on disk, ready for a runtime to read.

    Args:
        path: an ONNX file (external data, if any, lies beside it). IR and opset are what ingest
            pins; model-local functions are inlined; every tensor below is in this order in the file.
        inputs: graph inputs (weights are initializers, never inputs).
        outputs: graph outputs.
        calibration: samples of the inputs (`collage.backends.numerics.tensor_files`), for targets that calibrate.
        prepared: True for what `Backend.prepare` gave, in this run or when an artifact was made.
    """

    path: Path
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    calibration: Path | None = None
    prepared: bool = False


@dataclass(frozen=True)
class Preparation:
    """How a target has sub-models rewritten before it compiles them.

    Args:
        by: what it is made into and what makes it, with its version; part of every cost key.
        calibrated: True when it needs samples of the inputs.
        least_opset: older models are converted up to this one first.
    """

    by: str
    calibrated: bool = False
    least_opset: int = 0


@dataclass(frozen=True)
class Arithmetic:
    """What a target computes in, as reports and artifacts say it.

    Args:
        numbers: of products and convolutions: `f32`, `bf16`, `int8` …
        in_file: True when the artifact's operators say so themselves; False when the runtime does it
            inside, and another runtime computes the same file otherwise.
        sense: for which nodes and hardware it pays, and whether that is so here; empty for f32.
    """

    numbers: str = "f32"
    in_file: bool = True
    sense: str = ""


@dataclass(frozen=True)
class CompileContext:
    """What compiling may use.

    Args:
        threads: how many threads one call may use (`-threads=` of the target overrides it).
        work_dir: an empty folder for the runtime's temporary files; it lives as long as the executable.
        cache_dir: a folder for compiled blobs of this machine, or None for no cache.
        sample_inputs: real inputs of this sub-graph in order, for calibration; may be empty.
    """

    threads: int
    work_dir: Path
    cache_dir: Path | None = None
    sample_inputs: tuple[Array, ...] = field(default=(), compare=False)


@dataclass(frozen=True)
class OpTime:
    """Time of one executed step inside a runtime, from the runtime's own profiler.

    Args:
        nodes: names of the ONNX nodes this step stands for (empty: could not be mapped back).
        kind: the runtime's own name of the step.
        latency_us: mean time of one execution.
    """

    nodes: tuple[str, ...]
    kind: str
    latency_us: float


class Executable(ABC):
    """A compiled sub-model.

    `bind` names the buffers once; `run` computes from the bound inputs into the bound outputs.
    Arrays are C-contiguous, of the specs' dtype and shape, and stay alive and in place until the
    next `bind`. An output given as None (its shape is known only at run time) is allocated by the
    runtime at each run. `results` are the outputs of the last run, in order; where an output was
    bound it is that very array.
    """

    @abstractmethod
    def bind(self, inputs: Sequence[Array], outputs: Sequence[Array | None]) -> None:
        """Use these buffers from now on (zero-copy where the runtime can)."""

    @property
    def domain(self) -> str:
        """The memory domain that `bind_device` takes buffers of; `host` where there is none."""
        return device_memory.HOST

    def buffer(self, spec: TensorSpec) -> DeviceBuffer:
        """New memory in this domain, for any executable of the domain; never asked on the host."""
        raise NotImplementedError(f"{type(self).__name__} has no memory of its own")

    def bind_device(self, inputs: Sequence[DeviceBuffer], outputs: Sequence[DeviceBuffer]) -> None:
        """As `bind`, to buffers of this domain; `results` are then not to be asked for."""
        raise NotImplementedError(f"{type(self).__name__} has no memory of its own")

    @abstractmethod
    def run(self) -> None:
        """Compute once, synchronously."""

    @property
    @abstractmethod
    def results(self) -> tuple[Array, ...]:
        """Outputs of the last run, in the order of the sub-model's outputs."""

    @property
    def stated_latency_us(self) -> float | None:
        """What a call is said to take, in simulations; None, for every real runtime: measure it."""
        return None

    def profile(self, runs: int) -> list[OpTime]:
        """Run `runs` times under the runtime's own profiler; empty where it has none."""
        return []

    @abstractmethod
    def close(self) -> None:
        """Give back memory and threads."""


class Backend(ABC):
    """One runtime. Instances are stateless and shared between threads."""

    name: str
    style: Style
    summary: str  # one sentence for `collage targets`
    options: tuple[Option, ...]

    @abstractmethod
    def probe(self) -> Available | Unavailable:
        """Is the runtime here? Cheap, never raises, imports it at most."""

    def check_target(self, target: Target) -> str | None:
        """Why this target cannot be used on this machine (a device or feature is absent), or None."""
        return None

    def memory_domain(self, target: Target) -> str:
        """Where inputs and outputs of an executable live: `host`, `cuda:0` …"""
        return device_memory.HOST

    @abstractmethod
    def supports(self, index: GraphIndex, node: int, target: Target) -> str | None:
        """None when the target takes this node, else the reason of the refusal in one sentence."""

    def patterns(self, target: Target) -> tuple[Pattern, ...]:
        """Named patterns that the runtime computes as one fused kernel."""
        return ()

    def refuse_region(self, index: GraphIndex, nodes: int, target: Target) -> str | None:
        """Why nodes (bitset) that are all supported make no sense as one partition, or None; cheap."""
        return None

    def arithmetic(self, target: Target) -> Arithmetic:
        """What this target computes in on this machine."""
        return Arithmetic()

    def preparation(self, target: Target) -> Preparation | None:
        """How `prepare` rewrites sub-models for this target; None where it leaves them as they are."""
        return None

    def prepare(self, model: SubModel, target: Target, context: CompileContext) -> SubModel:
        """Rewrite a sub-model before it is compiled: what comes out is measured, timed and emitted.

        It is called before `compile` and never on what is prepared already, so `compile` takes
        sub-models as they are. Equal input gives equal bytes. What comes out has `prepared` set, only
        operators of ai.onnx, the opset, the inputs and the outputs of what went in.

        Raises:
            Exception: as for `compile`.
        """
        return model

    @abstractmethod
    def compile(self, model: SubModel, target: Target, context: CompileContext) -> Executable:
        """Compile a sub-model.

        Raises:
            Exception: anything the runtime raises; the caller turns it into Infeasible(reason).
        """


def ready(backend: Backend, model: SubModel, target: Target, context: CompileContext) -> SubModel:
    """The sub-model as `compile` takes it: prepared for its target, unless it is already."""
    if model.prepared or backend.preparation(target) is None:
        return model
    return backend.prepare(model, target, context)
