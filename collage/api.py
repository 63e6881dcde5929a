"""`collage.tune`: the whole way from Python, on this machine."""

from __future__ import annotations

import shutil
import tempfile
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from collage.accuracy.evaluation import Check, load_function
from collage.artifact.artifact import Artifact
from collage.artifact.emit import TuneResult
from collage.cluster.dask_runner import runner_for
from collage.cost_db.connections import default_url
from collage.cost_db.database import CostDatabase
from collage.events import Event, Listener, ignore
from collage.metrics.names import is_function
from collage.options import TuneOptions, chosen_targets
from collage.search.fixed_plans import parse_targets
from collage.tuning.pipeline import run_tuning
from collage.tuning.run import Run, TuneRequest


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
    evaluate: str | Callable[[Any], float] | None = None,
    labels: str | Path | None = None,
    **options: Any,
) -> Artifact:
    """Find the fastest partition of a model over some targets, by measuring.

    Args:
        model: path of an ONNX file or a zip with external data, or the bytes of either.
        targets: e.g. `["onnxruntime", "openvino -precision=bf16"]`; where a `plan` is given, by default
            those that it names.
        output: where the artifact goes; by default next to the model, as `<name>.collage.onnx`.
        inputs: sample inputs as an .npz file or a folder with some; by default seeded ones are made.
        database: URL of the cost database; by default `COLLAGE_DATABASE_URL`, or a file of this user.
        scheduler: its workers measure (docs/workers.md); by default this machine does.
        certificates: the folder with this machine's certificate, for a scheduler on another one.
        on_event: is told about every step.
        cancel: stops the run when set.
        evaluate: the name of a metric of the task, as `"top1"` (docs/task-metrics.md); or your own check, a
            function or its name as `"module:function"`. A check gets a session with `run`, `inputs` and
            `outputs`, and returns a number (`collage.accuracy.evaluation`). Unless a tolerance is given too,
            it alone decides. One of the options `max_drop`, `at_least` and `at_most` bounds it.
        labels: the truth of a metric, for each sample of `inputs`, as .npy or .npz; by default the
            outputs of the model itself are the truth.
        **options: the fields of `collage.options.TuneOptions`.

    Raises:
        BadInputError: the model, a target or an option cannot be used.
        NoPlanError: some node is taken by no target.
        NoWorkerError: no worker of the scheduler has all targets.
        CancelledError: `cancel` was set.
    """
    check = None
    if isinstance(evaluate, str) and is_function(evaluate):
        evaluate = load_function(evaluate)
    if evaluate is not None and not isinstance(evaluate, str):
        bounds = {name: options.pop(name, None) for name in ("max_drop", "at_least", "at_most")}
        check = Check(evaluate, **bounds)
    elif evaluate is not None:
        options["evaluate"] = evaluate
    chosen = TuneOptions.from_json({"tolerance": 1.0, **options} if check else options)
    with tempfile.TemporaryDirectory(prefix="collage-tune-") as folder:
        work_dir = Path(folder)
        if isinstance(model, bytes):
            source = work_dir / "source"
            source.write_bytes(model)
            destination = Path(output) if output is not None else Path("model.collage.onnx")
        else:
            source = Path(model)
            destination = Path(output) if output is not None else source.with_suffix(".collage.onnx")
        result = tune_into(
            work_dir,
            source,
            targets,
            chosen,
            database=database or default_url(),
            inputs=Path(inputs) if inputs is not None else None,
            scheduler=scheduler,
            certificates=Path(certificates) if certificates is not None else None,
            on_event=on_event,
            cancel=cancel,
            check=check,
            labels=Path(labels) if labels is not None else None,
            artifact_name=destination.name,
        )
        move_artifact(result.artifact_path, destination)
    return Artifact(destination, result.report, result.plan)


def tune_into(
    work_dir: Path,
    source: Path,
    targets: Sequence[str],
    options: TuneOptions,
    *,
    database: str,
    inputs: Path | None = None,
    scheduler: str | None = None,
    certificates: Path | None = None,
    on_event: Listener = ignore,
    cancel: threading.Event | None = None,
    check: Check | None = None,
    labels: Path | None = None,
    artifact_name: str = "model.collage.onnx",
) -> TuneResult:
    """Tune a model and leave the artifact in a folder; `tune` and the jobs of a server do this.

    Args:
        work_dir: an empty folder for files of this run; the artifact is left in it.
        source: an ONNX file, or a zip with an ONNX file and its external data.
        targets: texts of targets; none where those of the plan in `options` are meant.
        options: what the caller chose.
        database: URL of the cost database.
        inputs: sample inputs as an .npz file; None for seeded ones.
        scheduler: its workers measure; None for this machine.
        certificates: the folder with this machine's certificate, for a scheduler on another one.
        on_event: is told about every step.
        cancel: stops the run when set.
        check: the caller's own check of the plan that is returned.
        labels: the truth of a metric, as .npy or .npz.
        artifact_name: file name of the artifact; large weights beside it are named after it.

    Raises:
        CollageError: as `tune` does.
    """
    chosen = parse_targets(chosen_targets(targets, options.plan))
    if not targets and options.plan is None:
        named = ", ".join(map(str, chosen))
        on_event(
            Event("ingest", f"no target is given, so all installed runtimes are compared: {named}")
        )
    request = TuneRequest(
        source=source,
        targets=chosen,
        options=options,
        inputs=inputs,
        check=check,
        artifact_name=artifact_name,
        labels=labels,
    )
    costs = CostDatabase(database)
    place = runner_for(
        scheduler,
        certificates,
        wait_s=options.wait_for_worker_s,
        cancel=cancel,
        say=lambda text: on_event(Event("waiting", text)),
    )
    try:
        with place as runner:
            return run_tuning(request, Run(costs, work_dir, runner, on_event, cancel))
    finally:
        costs.close()


def move_artifact(source: Path, destination: Path) -> None:
    """Put an artifact, and the weights beside it, into another folder.

    The name must stay: large weights are found by it.
    """
    destination.parent.mkdir(parents=True, exist_ok=True)
    for file in sorted(source.parent.glob(source.name + "*")):
        shutil.move(file, destination.parent / file.name)
