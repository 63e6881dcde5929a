"""What a backend is: one runtime or compiler behind one contract.

Terms: a *backend* says, for a target (its name with options), which nodes it takes, why not the others,
and which patterns it knows. It compiles a sub-model into an *executable*, which runs on the caller's
arrays. A *variant* of a target has other options and computes the same. A *mixed* partition computes
some nodes as another target of its runtime does.

Invariants for an implementer:

* The runtime is imported inside functions only. `probe` never raises: a missing runtime is
  `Unavailable`.
* `supports` promises to try, not to succeed: a candidate is compiled, run and verified in a child. It
  is pure and takes microseconds.
* Native code may crash or hang. A backend neither forks nor catches signals: the caller isolates it
  (`collage.backends.sandbox.run`).
* The caller serializes the calls of an executable. `close` gives all memory back and may be called
  twice.
* Times are in microseconds, sizes in bytes.

Only `name`, `style`, `summary`, `options`, `probe`, `supports` and `compile` must be written; the rest
has defaults.

Source: optuna `storages/_base.py` for the manner of the contract; TVM BYOC for its content.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from collage.backends.executable import Array as Array
from collage.backends.executable import Executable as Executable
from collage.backends.executable import OpTime as OpTime
from collage.backends.options import SHORT_CALL_US, THREADS, Option
from collage.backends.whole_model import WholeModel
from collage.partitioner.target import HOST_MEMORY, Target
from collage.partitioner.tensor import TensorSpec

if TYPE_CHECKING:  # an artifact is loaded without what finds partitions
    from collage.partitioner.graph.graph_index import GraphIndex
    from collage.partitioner.rules.pattern import Pattern

Style = Literal["library", "fusion", "graph"]


@dataclass(frozen=True)
class Available:
    """The runtime is installed; `version` is its own version text and part of every cost key."""

    version: str


@dataclass(frozen=True)
class Unavailable:
    """The runtime cannot be used: the reason, and the command that installs it."""

    reason: str
    how_to_install: str


def threads_of(target: Target, context: CompileContext) -> int:
    """How many threads a call on this target may use; beside other instances never more than the context says."""
    given = target.option("threads", "auto")
    if given == "auto":
        return context.threads
    return int(given) if context.instances == 1 else min(int(given), context.threads)


@dataclass(frozen=True)
class SubModel:
    """A sub-graph as a model on disk, ready for a runtime to read.

    Args:
        path: an ONNX file (external data lies beside it). IR and opset are what ingest pins;
            model-local functions are inlined; inputs and outputs have this order in the file.
        inputs: graph inputs (weights are initializers, never inputs).
        outputs: graph outputs.
        calibration: samples of the inputs (`collage.backends.numerics.tensor_files`), for targets that
            calibrate.
        prepared: True for a result of `Backend.prepare`, of this run or in an artifact.
    """

    path: Path
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    calibration: Path | None = None
    prepared: bool = False


@dataclass(frozen=True)
class Preparation:
    """How a target prepares sub-models before it compiles them.

    Args:
        by: what is made by which version of what; part of every cost key.
        calibrated: True when it needs samples of the inputs.
        least_opset: older models are converted to this one first.
    """

    by: str
    calibrated: bool = False
    least_opset: int = 0


@dataclass(frozen=True)
class Rewriting:
    """How a target rewrites a sub-model while it compiles it; part of every cost key.

    Args:
        edition: raised when something else is written.
        by: the target that writes it; its version counts too.
    """

    edition: int
    by: Target


class PreparedParts(ABC):
    """A whole model that was prepared once, to cut prepared sub-models from."""

    @abstractmethod
    def cut(self, part: SubModel, path: Path) -> SubModel | None:
        """The prepared form of a sub-model, written to a file; None where it must be prepared by itself.

        Args:
            part: the sub-model, not prepared.
            path: the file to write.
        """


@dataclass(frozen=True)
class Arithmetic:
    """A target's number format, for reports and artifacts.

    Args:
        numbers: of products and convolutions: `f32`, `bf16`, `int8` …
        in_file: True where the artifact's operators say so; False where the runtime does it inside.
        sense: for which nodes and hardware it pays; empty for f32.
    """

    numbers: str = "f32"
    in_file: bool = True
    sense: str = ""


@dataclass(frozen=True)
class CompileContext:
    """Resources of compiling.

    Args:
        threads: how many threads one call may use (`-threads=` of the target overrides it).
        work_dir: an empty folder for the runtime's temporary files; it lives as long as the executable.
        cache_dir: a folder for this machine's compiled blobs; None for no cache.
        instances: how many executables run at once, this one and those that `Executable.another` makes.
    """

    threads: int
    work_dir: Path
    cache_dir: Path | None = None
    instances: int = 1


class Backend(ABC):
    """One runtime. Instances are stateless and shared between threads."""

    name: str
    style: Style
    summary: str  # one sentence for `collage targets`
    options: tuple[Option, ...]

    @abstractmethod
    def probe(self) -> Available | Unavailable:
        """Whether the runtime is installed; never raises, and at most imports it."""

    def check_target(self, target: Target) -> str | None:
        """Why this machine cannot use the target (a device or feature is absent), or None."""
        return None

    def memory_domain(self, target: Target) -> str:
        """Where inputs and outputs of an executable live: `host`, `cuda:0` …"""
        return HOST_MEMORY

    @abstractmethod
    def supports(self, index: GraphIndex, node: int, target: Target) -> str | None:
        """Why the target does not take this node, in one sentence, or None."""

    def patterns(self, target: Target) -> tuple[Pattern, ...]:
        """Patterns that the runtime computes as one fused kernel."""
        return ()

    def refuse_region(self, index: GraphIndex, nodes: int, target: Target) -> str | None:
        """Why supported nodes (bitset) make no sense as one partition, or None; takes microseconds."""
        return None

    def arithmetic(self, target: Target) -> Arithmetic:
        """The target's number format on this machine."""
        return Arithmetic()

    def mixes_rows(self, target: Target) -> bool:
        """Whether the rows of a call, padded ones too, change how others are rounded."""
        return False

    def exact_forms(
        self, target: Target, index: GraphIndex, features: Collection[str]
    ) -> tuple[Target, ...]:
        """Targets to compare beside this one, which may compute wrong values of a model on some processors.

        Args:
            target: one of the user's.
            index: the model.
            features: instruction sets of the processor (`Hardware.features`).

        Returns:
            Forms of the target that compute right; by default none.
        """
        return ()

    def variants(self, target: Target, model: WholeModel) -> tuple[Target, ...]:
        """Targets that compute the same as this one and may run the whole model faster.

        Each differs from the target in options of `model.tunable` only. The tuner times each on the
        whole model before it searches; one that is clearly faster joins the search.

        Args:
            target: one of the user's.
            model: what is to be run.

        Returns:
            The most promising first. By default: one thread where a call is short.
        """
        is_short = model.latency_us < SHORT_CALL_US
        if is_short and "1" in model.tunable.get(THREADS.name, ()):
            return (target.with_options(**{THREADS.name: "1"}),)
        return ()

    def at_once(self, target: Target) -> tuple[Target, ...]:
        """Targets that compute the same and may serve several requests at once faster; by default none."""
        return ()

    def opening_lines(self, target: Target, threads: int) -> str | None:
        """Python text without this package, for reports: `open_model(path)` gives a function from feed to outputs."""
        return None

    def rewriting(self, target: Target) -> Rewriting | None:
        """How `compile` rewrites sub-models for this target; None where it compiles them as they are."""
        return None

    def unprepared(self, target: Target) -> Target:
        """The target of this runtime that computes the same nodes without `prepare`; by default the target itself."""
        return target

    def mixes_with(self, target: Target, other: Target) -> bool:
        """Whether a partition on this target may compute some of its nodes as the other target does; never by default.

        Where it may, a change between the two inside the partition costs less than a border between
        partitions.
        """
        return False

    def mix(self, target: Target, nodes: int, others: int) -> Target:
        """The target for one mixed partition: its options say which nodes are computed otherwise.

        Args:
            target: one for any partition, that mixes.
            nodes: of the partition (bitset).
            others: those of them that another target of `mixes_with` computes (bitset).

        Returns:
            By default the target itself, as where `others` is empty.
        """
        return target

    def unmix(self, target: Target, nodes: int) -> tuple[Target, int]:
        """What `mix` was given: the target for any partition, and which of these nodes are computed otherwise."""
        return target, 0

    def prepared_parts(self, model: SubModel, prepared: SubModel) -> PreparedParts | None:
        """Prepared sub-models without preparing each: a source of them, or None where this runtime has none.

        Args:
            model: the whole model.
            prepared: what `prepare` made of it.
        """
        return None

    def preparation(self, target: Target) -> Preparation | None:
        """How `prepare` changes sub-models for this target; None where it does not."""
        return None

    def prepare(self, model: SubModel, target: Target, context: CompileContext) -> SubModel:
        """Change a sub-model before it is compiled; the result is measured, timed and emitted.

        It is never called on a prepared sub-model. Equal input gives equal bytes. The result has
        `prepared` set, only operators of ai.onnx, and the opset, inputs and outputs of the argument.

        Raises:
            Exception: as for `compile`.
        """
        return model

    @abstractmethod
    def compile(self, model: SubModel, target: Target, context: CompileContext) -> Executable:
        """Compile a sub-model.

        Raises:
            Exception: whatever the runtime raises; the caller makes it an `Infeasible`.
        """


def ready(backend: Backend, model: SubModel, target: Target, context: CompileContext) -> SubModel:
    """The sub-model as `compile` takes it: prepared for its target."""
    if model.prepared or backend.preparation(target) is None:
        return model
    return backend.prepare(model, target, context)
