"""What a diagnosis is asked."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from collage.options import TuneOptions
from collage.partitioner.target import Target


@dataclass(frozen=True)
class DiagnoseRequest:
    """What the caller asked for.

    Args:
        source: an ONNX file, or a zip with an ONNX file and its external data.
        target: what is looked at.
        output: folder for the report, the picture and the reproducers.
        options: tolerance, metric, dims, threads and seed.
        inputs: samples as .npz; None for seeded ones.
        against: the target that a slow one is compared with; None for the best other installed.
        against_python: another environment's interpreter, whose runtime is compared instead.
        most_trials: how many trials may look for faults.
        timeout_s: after which a trial hangs.
        all_nodes: also run nodes that the target's own guard refuses.
    """

    source: Path
    target: Target
    output: Path
    options: TuneOptions
    inputs: Path | None = None
    against: Target | None = None
    against_python: Path | None = None
    most_trials: int = 40
    timeout_s: float = 60.0
    all_nodes: bool = False
