"""Runs a plan on its artifact's seeded inputs and compares each value with the reference.

A plan whose partitions were all loaded from files in the cache is compared once. The cache notes that, and the note
holds for these very files, versions and threads, until the machine starts anew. A runtime that may load something else
from the same files (`Executable.loads_differ`) is compared again, on one sample.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import distribution, version
from pathlib import Path

import numpy as np

from collage.artifact.verification import Verification, VerificationError, input_hashes
from collage.backends.contract import Available, SubModel
from collage.backends.machine.resident_memory import peak_bytes
from collage.backends.numerics.seeded import EDITION, seeded_inputs
from collage.backends.registry import backend_of
from collage.backends.support.file_digests import boot, identity
from collage.partitioner.target import Target
from collage.partitioner.tensor import TensorSpec
from collage.runtime.compiled import CompiledRegions
from collage.runtime.executor import Executor
from collage.runtime.instances import PlannedStep, executors

_NOTES = "verified"
_ERRORS = "errors"


class WrongPartitionError(VerificationError):
    """A partition computes something else than the reference; `step` is its position."""

    def __init__(self, message: str, step: int) -> None:
        super().__init__(message)
        self.step = step


def prove(
    executor: Executor, inputs: Sequence[TensorSpec], verification: Verification, strict: bool = True
) -> dict[str, float]:
    """Compare every value that a step makes with the reference, on every seed.

    Args:
        executor: bound.
        strict: raise where an error is over the tolerance.

    Returns:
        Per value the largest error.

    Raises:
        WrongPartitionError: a value's error exceeds its tolerance.
        VerificationError: the seeded inputs cannot be made again as they were.
    """
    errors: dict[str, float] = {}
    for position, sample in enumerate(samples_of(verification, inputs)):

        def judge(step: int, name: str, value: np.ndarray, position: int = position) -> None:
            error = verification.error_of(position, name, value)
            errors[name] = max(errors.get(name, 0.0), error)
            if strict and not error <= verification.tolerance.get(name, float("inf")):
                allowed = verification.tolerance[name]
                raise WrongPartitionError(
                    f"value {name!r} differs from the reference by {error:.3g} (allowed {allowed:.3g})",
                    step,
                )

        executor.feed(sample)
        executor.check_each(judge)
        if executor.is_concurrent:
            executor.check_outputs(judge)
    return errors


def samples_of(
    verification: Verification, inputs: Sequence[TensorSpec]
) -> list[Mapping[str, np.ndarray]]:
    """The inputs by which an artifact is verified.

    Raises:
        VerificationError: the seeded inputs cannot be made again as they were.
    """
    samples: list[Mapping[str, np.ndarray]] = []
    for position, seed in enumerate(verification.seeds):
        given, wanted = verification.given, dict(verification.inputs[position])
        made: Iterable[Mapping[str, np.ndarray]] = (
            [given[position]] if given else _seeded(inputs, seed, verification.bounds)
        )
        sample = next((sample for sample in made if input_hashes(sample) == wanted), None)
        if sample is None:
            raise VerificationError(
                f"the inputs of seed {seed} cannot be made again with this version of numpy, so the "
                "artifact cannot be verified; tune the model again with the versions installed here"
            )
        samples.append(sample)
    return samples


def sample_of(
    text: str | None, inputs: Sequence[TensorSpec], bounds: Mapping[str, int]
) -> Mapping[str, np.ndarray]:
    """Inputs on which an artifact can be run and compared: given ones where no seed makes them, else seeded ones.

    Args:
        text: its reference values; None where it has none.
        inputs: of the model, at the sizes of these values.
        bounds: what values of integer inputs stay below.
    """
    given = () if text is None else Verification.from_text(text).given
    return given[0] if given else seeded_inputs(inputs, 0, bounds)


def _seeded(
    inputs: Sequence[TensorSpec], seed: int, bounds: Mapping[str, int]
) -> Iterator[Mapping[str, np.ndarray]]:
    """The inputs of a seed, as this version makes them and as earlier ones did."""
    for edition in reversed(range(EDITION + 1)):
        yield seeded_inputs(inputs, seed, bounds, edition)


def versions_of(targets: Sequence[Target]) -> dict[str, str]:
    """The version of each runtime that targets need, as it says it."""
    found = {target.backend: backend_of(target).probe() for target in targets}
    return {name: said.version for name, said in found.items() if isinstance(said, Available)}


def not_rewritten(position: int, target: Target, model: SubModel) -> str | None:
    """Why a partition cannot be compiled: its target reads other nodes than the model's; or None."""
    if backend_of(target).preparation(target) is None or model.prepared:
        return None
    return (
        f"partition {position} is planned for {target}, but its nodes were not rewritten for it; tune the model again, "
        "and load the artifact that comes out"
    )


def note_of(
    cache_dir: Path | None, files: Sequence[Path] | None, facts: Sequence[object]
) -> Path | None:
    """Where the cache notes that a plan was compared; None where a note would not hold.

    Args:
        files: all that its executables were loaded from; None where one was not loaded.
        facts: all else that decides what is computed.
    """
    if cache_dir is None or files is None or not boot():
        return None
    try:
        read = [(str(file), identity(file)) for file in files]
    except OSError:
        return None
    # It has the version, and parsing it takes longer than all else here.
    collage = distribution("collage-tuner").read_text("METADATA") or version("collage-tuner")
    content = repr((boot(), collage, read, *facts))
    return cache_dir / _NOTES / f"{hashlib.sha256(content.encode()).hexdigest()}.json"


def noted_errors(note: Path | None) -> dict[str, float] | None:
    """The errors that were seen when the plan was compared; None where it was not."""
    if note is None:
        return None
    try:
        stored = json.loads(note.read_text(encoding="utf-8"))
        return {str(name): float(error) for name, error in stored[_ERRORS].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):  # not there, or damaged
        return None


def write_note(note: Path | None, errors: Mapping[str, float]) -> None:
    """Note that a plan was compared, with the errors that were seen."""
    if note is None:
        return
    with contextlib.suppress(OSError):
        note.parent.mkdir(exist_ok=True)
        note.write_text(json.dumps({_ERRORS: dict(errors)}), encoding="utf-8")


@dataclass(frozen=True)
class ToObserve:
    """A plan with its reference values.

    Args:
        partitions: sub-models with their targets, in execution order; one path, one sub-model.
        verification: the reference values as text.
        inputs: of the model, at the sizes of these values.
    """

    partitions: Sequence[tuple[SubModel, Target]]
    verification: str
    inputs: Sequence[TensorSpec]


@dataclass(frozen=True)
class Observed:
    """What was seen of a plan that was compiled afresh.

    Args:
        errors: of each value that it makes.
        load_s: time to compile and verify it.
        peak_rss_bytes: the most memory that its process had resident until then.
    """

    errors: Mapping[str, float]
    load_s: float
    peak_rss_bytes: int


def observe(plans: Sequence[ToObserve], threads: int, instances: int = 1) -> list[Observed]:
    """Compile each plan so many times, as `load` does, and compare each instance (runs in a child).

    Plans that share a sub-model share what is compiled of it, as sizes of one plan do in a session.
    """
    compiled = CompiledRegions(threads, instances=instances)
    found = []
    for plan in plans:
        begin_s = time.perf_counter()
        steps = [PlannedStep(str(model.path), model, target) for model, target in plan.partitions]
        verification = Verification.from_text(plan.verification)
        errors: dict[str, float] = {}
        for executor in executors(compiled, steps, plan.inputs, [], instances=instances):
            for name, error in prove(executor, plan.inputs, verification, strict=False).items():
                errors[name] = max(errors.get(name, 0.0), error)
            executor.close()
        found.append(Observed(errors, time.perf_counter() - begin_s, peak_bytes()))
    compiled.close()
    return found
