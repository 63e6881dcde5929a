"""Runs a plan on its artifact's seeded inputs and compares each value with the reference."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from collage.artifact.verification import Verification, VerificationError, input_hashes
from collage.backends.contract import SubModel
from collage.backends.machine.resident_memory import peak_bytes
from collage.backends.numerics.seeded import seeded_inputs
from collage.partitioner.target import Target
from collage.partitioner.tensor import TensorSpec
from collage.runtime.compiled import CompiledRegions
from collage.runtime.executor import Executor
from collage.runtime.instances import PlannedStep, executors


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
        given = verification.given
        sample = given[position] if given else seeded_inputs(inputs, seed, verification.bounds)
        if input_hashes(sample) != dict(verification.inputs[position]):
            # As version 0.1 made them.
            sample = seeded_inputs(inputs, seed, verification.bounds, by_name=False)
        if input_hashes(sample) != dict(verification.inputs[position]):
            raise VerificationError(
                f"the inputs of seed {seed} cannot be made again with this version of numpy, so the "
                "artifact cannot be verified; tune the model again with the versions installed here"
            )
        samples.append(sample)
    return samples


@dataclass(frozen=True)
class Observed:
    """What was seen of a plan that was compiled afresh.

    Args:
        errors: of each value that it makes.
        load_s: time to compile and verify it.
        peak_rss_bytes: the most memory that its process had resident.
    """

    errors: Mapping[str, float]
    load_s: float
    peak_rss_bytes: int


def observe(
    partitions: Sequence[tuple[SubModel, Target]],
    verification_text: str,
    inputs: Sequence[TensorSpec],
    threads: int,
    instances: int = 1,
) -> Observed:
    """Compile a plan so many times, as `load` does, and compare each instance (runs in a child)."""
    begin = time.perf_counter()
    compiled = CompiledRegions(threads, instances=instances)
    steps = [PlannedStep(str(i), model, target) for i, (model, target) in enumerate(partitions)]
    verification = Verification.from_text(verification_text)
    errors: dict[str, float] = {}
    for executor in executors(compiled, steps, inputs, [], instances=instances):
        for name, error in prove(executor, inputs, verification, strict=False).items():
            errors[name] = max(errors.get(name, 0.0), error)
    load_s = time.perf_counter() - begin
    compiled.close()
    return Observed(errors, load_s, peak_bytes())
