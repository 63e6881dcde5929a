"""`collage.tune`: the whole way from Python, on this machine."""

from __future__ import annotations

import shutil
import tempfile
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from collage.accuracy.evaluation import Check
from collage.artifact.artifact import Artifact
from collage.cluster.dask_runner import runner_for
from collage.cost_db.connections import default_url
from collage.cost_db.database import CostDatabase
from collage.events import Event, Listener, ignore
from collage.options import TuneOptions
from collage.partitioner.errors import BadInputError
from collage.tuning.pipeline import tune_file


def tune(
    model: str | Path | bytes,
    targets: Sequence[str] = (),
    *,
    output: str | Path | None = None,
    inputs: str | Path | None = None,
    database: str | None = None,
    scheduler: str | None = None,
    certificates: str | Path | None = None,
    on_event: Listener = ignore,
    cancel: threading.Event | None = None,
    evaluate: Callable[[Any], float] | None = None,
    at_least: float | None = None,
    at_most: float | None = None,
    **options: Any,
) -> Artifact:
    """Find the fastest partition of a model over some targets, by measuring.

    Args:
        model: path of an ONNX file or a zip with external data, or the bytes of either.
        targets: e.g. `["onnxruntime", "openvino -precision=bf16"]`; where a `plan` is given, by default
            those that it names.
        output: where the artifact goes; by default next to the model, as `<name>.collage.onnx`.
        inputs: sample inputs as an .npz file; by default seeded ones are made.
        database: URL of the cost database; by default `COLLAGE_DATABASE_URL`, or a file of this user.
        scheduler: its workers measure (docs/workers.md); by default this machine does.
        certificates: the folder with this machine's certificate, for a scheduler on another one.
        on_event: is told about every step.
        cancel: stops the run when set.
        evaluate: your own check: gets a session with `run`, `inputs` and `outputs`, returns a number
            (`collage.accuracy.evaluation`). Unless a tolerance is given too, it alone decides.
        at_least: the smallest number that passes; either this or `at_most` goes with `evaluate`.
        at_most: the largest.
        **options: the fields of `collage.options.TuneOptions`.

    Raises:
        BadInputError: the model, a target or an option cannot be used.
        NoPlanError: some node is taken by no target.
        NoWorkerError: no worker of the scheduler has all targets.
        CancelledError: `cancel` was set.
    """
    check = None if evaluate is None else Check(evaluate, at_least, at_most)
    if check is None and not at_least is at_most is None:
        raise BadInputError("at_least and at_most bound what evaluate returns; give that too")
    chosen = TuneOptions.from_json({"tolerance": 1.0, **options} if check else options)
    costs = CostDatabase(database or default_url())
    with tempfile.TemporaryDirectory(prefix="collage-tune-") as folder:
        work_dir = Path(folder)
        if isinstance(model, bytes):
            source = work_dir / "source"
            source.write_bytes(model)
            destination = Path(output) if output is not None else Path("model.collage.onnx")
        else:
            source = Path(model)
            destination = Path(output) if output is not None else source.with_suffix(".collage.onnx")
        place = runner_for(
            scheduler,
            Path(certificates) if certificates is not None else None,
            wait_s=chosen.wait_for_worker_s,
            cancel=cancel,
            say=lambda text: on_event(Event("waiting", text)),
        )
        try:
            with place as runner:
                result = tune_file(
                    source,
                    targets,
                    chosen,
                    database=costs,
                    work_dir=work_dir,
                    on_event=on_event,
                    cancel=cancel,
                    inputs=Path(inputs) if inputs is not None else None,
                    artifact_name=destination.name,
                    runner=runner,
                    check=check,
                )
        finally:
            costs.close()
        move_artifact(result.artifact_path, destination)
    return Artifact(destination, result.report, result.plan)


def move_artifact(source: Path, destination: Path) -> None:
    """Put an artifact, and the weights beside it, into another folder.

    The name must stay: large weights are found by it.
    """
    destination.parent.mkdir(parents=True, exist_ok=True)
    for file in sorted(source.parent.glob(source.name + "*")):
        shutil.move(file, destination.parent / file.name)
