"""`collage diagnose`: which nodes are wrong or slow on a target."""

from __future__ import annotations

import json
import tempfile
import threading
from pathlib import Path
from typing import Any

from collage.diagnosis.faults import FaultSearch, refusals
from collage.diagnosis.output import REPORT, make_output
from collage.diagnosis.regions import Taken, taken
from collage.diagnosis.request import DiagnoseRequest
from collage.diagnosis.speed.search import SpeedSearch
from collage.diagnosis.trials import Trials, TrialSettings
from collage.disk_space import DiskBudget
from collage.events import Event, Listener, ignore
from collage.model import reference
from collage.model.preparation import calibrates, least_opset
from collage.model.sampling import Sampling
from collage.model.self_error import allow_self_error
from collage.model.sub_models import RegionFiles
from collage.partitioner.errors import BadInputError
from collage.runner import Runner


def diagnose(
    request: DiagnoseRequest,
    runner: Runner | None = None,
    listener: Listener = ignore,
    cancel: threading.Event | None = None,
) -> dict[str, Any]:
    """Look for faults of a target, and where it has none for regions in which it is slow.

    Args:
        request: what to look at.
        runner: where it runs; by default this machine.
        listener: is told about every step.
        cancel: stops it when set.

    Returns:
        The report, which is also written as `report.json` (docs/diagnose.md).

    Raises:
        BadInputError: the model, the inputs, a target, the other environment or the output cannot be used.
        CancelledError: `cancel` was set.
    """
    with tempfile.TemporaryDirectory(prefix="collage-diagnose-") as folder:
        report = _diagnosed(request, Path(folder), runner or Runner(), listener, cancel)
    text = json.dumps(report, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    (request.output / REPORT).write_text(text, encoding="utf-8")
    written: dict[str, Any] = json.loads(text)  # with lists where it has tuples
    return written


def _diagnosed(
    request: DiagnoseRequest,
    work_dir: Path,
    runner: Runner,
    listener: Listener,
    cancel: threading.Event | None,
) -> dict[str, Any]:
    against = request.against if request.against_python is None else None
    # Together, for both run on one kind of machine.
    facts = runner.check([request.target, *([] if against is None else [against])])[:1]
    threads = request.options.threads or runner.threads
    options = request.options.model_copy(update={"threads": threads})
    dims = options.fixed_dims
    if dims is None:
        raise BadInputError(
            "a diagnosis runs a model at one size of each dimension; give one, such as --dim length=16"
        )
    listener(Event("ingest", "reading the model"))
    model, info = reference.ingest(request.source, work_dir, dims, cancel, least_opset(facts))
    sampling = Sampling(
        model=model,
        info=info,
        options=options,
        work_dir=work_dir,
        inputs=request.inputs,
        hold_out=False,
        listener=listener,
        cancel=cancel,
    )
    sampling.check_reference()
    options, notes = allow_self_error(
        sampling.compared, options, work_dir / "own-error", listener, cancel
    )
    # A fault may show from one sample to the next, so all are tried in turn.
    samples = [sample for known in sampling.compared for sample in known.samples]
    everything = reference.Reference(model, samples, work_dir / "tried", listener, cancel)
    regions = RegionFiles(
        model,
        work_dir / "regions",
        sampling.chosen_by.values if calibrates(facts) else None,
        disk_budget=DiskBudget.for_model(model.path, sampling.cache_dir),
    )
    settings = TrialSettings(
        target=request.target,
        threads=threads,
        tolerance=options.tolerance,
        metric=options.metric,
        timeout_s=request.timeout_s,
        cache_dir=sampling.cache_dir,
    )
    trials = Trials(regions, everything, settings, runner, listener, cancel)
    parts = taken(model.index, request.target, request.all_nodes)
    speed = SpeedSearch(request, model, regions, sampling.chosen_by, threads, runner, listener, cancel)
    if not parts.refused:
        speed.check()
    make_output(request.output)
    faults = FaultSearch(model, parts, trials, request, work_dir, runner, cancel).run()
    return {
        "model_sha256": model.sha256,
        "nodes": len(model.index.nodes),
        "target": str(request.target),
        "version": facts[0].version,
        "hardware": runner.hardware.describe(),
        "tolerance": options.tolerance,
        "metric": options.metric,
        "sampled_inputs": request.inputs is None,
        "refused": refusals(model.index, parts.refused),
        "faults": faults,
        "speed": _speed(faults, parts, speed),
        "notes": notes + sampling.about_outputs(),
    }


def _speed(faults: dict[str, Any], parts: Taken, search: SpeedSearch) -> dict[str, Any]:
    """The part on speed, where the target is right and takes the whole model."""
    if faults["culprits"]:
        return {"note": "speed is compared where there is no fault"}
    if parts.refused:
        return {"note": "speed is compared where the target takes every node"}
    return search.run()
