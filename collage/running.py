"""`collage run`: load an artifact, compute once, and say or store what came out."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from backends.reference import seeded_inputs
from collage.intake import read_samples
from collage.session import load


def run_once(
    artifact: Path,
    inputs: Path | None,
    outputs: Path | None,
    fallback: str | None,
    say: Callable[[str], None],
) -> None:
    """Run an artifact on given or seeded inputs.

    Args:
        artifact: the partitioned model.
        inputs: an .npz with one or more samples; None for seeded ones.
        outputs: where the outputs go as .npz; with several samples each has one more leading axis.
        fallback: a target for partitions whose own is missing.
        say: prints one line.
    """
    with load(artifact, fallback) as session:
        for position, reason in session.fallbacks.items():
            say(f"partition {position} runs on {fallback} instead: {reason}")
        samples = (
            read_samples(inputs, session.inputs)
            if inputs is not None
            else [seeded_inputs(session.inputs, 0, session.bounds)]
        )
        names = [output.name for output in session.get_outputs()]
        begin = time.perf_counter()
        made = [session.run(names, sample) for sample in samples]
        spent_ms = (time.perf_counter() - begin) * 1e3
        say(f"{len(session.targets)} partitions, {len(samples)} runs in {spent_ms:.2f} ms")
        for position, name in enumerate(names):
            first = made[0][position]
            say(f"{name}: {first.dtype.name} {first.shape}")
        if outputs is not None:
            stacked = {
                name: made[0][i] if len(made) == 1 else np.stack([m[i] for m in made])
                for i, name in enumerate(names)
            }
            np.savez(outputs, allow_pickle=False, **stacked)
            say(f"wrote {outputs}")
