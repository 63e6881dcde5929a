"""`collage run`: load an artifact, compute once, and print or store the outputs."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from collage.artifact.session import Session, load
from collage.artifact.shaped_session import ShapedSession
from collage.backends.numerics.seeded import seeded_inputs
from collage.backends.numerics.tensor_files import write_npz
from collage.cli.tables import counted
from collage.model.sample_inputs import read_samples
from collage.partitioner.errors import BadInputError
from collage.partitioner.tensor import TensorSpec


def run_once(
    artifact: Path,
    inputs: Path | None,
    outputs: Path | None,
    fallback: str | None,
    dims: Mapping[str, int | str],
    say: Callable[[str], None],
) -> None:
    """Run an artifact on given or seeded inputs.

    Args:
        artifact: the partitioned model.
        inputs: an .npz with one or more samples; None for seeded ones.
        outputs: where the outputs go as .npz; with several samples each has one more leading axis, and one whose
            shape changes with the sample is stored as `name.0`, `name.1` …
        fallback: a target for partitions whose own is missing.
        dims: sizes of free dimensions, for seeded inputs.
        say: prints one line.
    """
    if inputs is not None and dims:
        raise BadInputError("--inputs have their own sizes; leave --dim out")
    sizes = {name: size for name, size in dims.items() if isinstance(size, int)}
    if several := sorted(dims.keys() - sizes.keys()):
        raise BadInputError(
            f"--dim {several[0]}={dims[several[0]]}: a run has one size of each dimension"
        )
    with load(artifact, fallback, instances=1) as session:
        for position, reason in session.fallbacks.items():
            say(f"partition {position} runs on {fallback} instead: {reason}")
        samples = (
            read_samples(inputs, session.inputs)
            if inputs is not None
            else [seeded_inputs(_inputs(session, sizes), 0, session.bounds)]
        )
        names = [output.name for output in session.get_outputs()]
        begin = time.perf_counter()
        made = [session.run(names, sample) for sample in samples]
        spent_ms = (time.perf_counter() - begin) * 1e3
        say(
            f"{counted(len(session.targets), 'partition')}, {counted(len(samples), 'run')} in {spent_ms:.2f} ms"
        )
        for position, name in enumerate(names):
            first = made[0][position]
            say(f"{name}: {first.dtype.name} {first.shape}")
        if outputs is not None:
            stored: dict[str, np.ndarray] = {}
            for position, name in enumerate(names):
                stored |= _stored(name, [values[position] for values in made])
            write_npz(outputs, stored)
            say(f"wrote {outputs}")


def _inputs(session: Session, sizes: Mapping[str, int]) -> Sequence[TensorSpec]:
    """The inputs of a run, with these sizes of free dimensions."""
    if not sizes:
        return session.example_inputs
    if not isinstance(session, ShapedSession):
        raise BadInputError(f"the artifact has one size of {', '.join(sizes)}; leave --dim out")
    return session.inputs_at(sizes)


def _stored(name: str, values: Sequence[np.ndarray]) -> dict[str, np.ndarray]:
    """An output of all samples."""
    if len(values) == 1:
        return {name: values[0]}
    if len({v.shape for v in values}) == 1:
        return {name: np.stack(values)}
    return {f"{name}.{number}": v for number, v in enumerate(values)}
