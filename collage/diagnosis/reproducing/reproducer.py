"""A folder that shows a fault without this project: model, inputs, script, versions, and a text to send.

model.onnx  inputs-N.npz  expected-N.npz  reproduce.py  environment.json  issue.md
"""

from __future__ import annotations

import json
import platform
import runpy
import shutil
import threading
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from collage.backends.numerics.comparison import Expected, Ranged
from collage.backends.numerics.tensor_files import read_expected, read_samples, storable
from collage.backends.sandbox.run import ChildFailed, ChildLimits
from collage.diagnosis.reproducing.scripts import comparing_script, is_alone
from collage.diagnosis.reproducing.shrink import Shrunk
from collage.partitioner.tensor import TensorSpec
from collage.runner import Runner

SCRIPT = "reproduce.py"
_REPRODUCED = {"wrong": 1}
_FAILS_AS = {"crash": "crash", "hang": "hang", "out of memory": "out_of_memory"}


def write_reproducer(
    folder: Path,
    found: Shrunk,
    *,
    title: str,
    operators: str,
    runner: Runner,
    timeout_s: float,
    cancel: threading.Event | None = None,
) -> dict[str, Any]:
    """Write the folder and run its script once.

    Args:
        folder: is made.
        found: the region that fails.
        title: what goes wrong, in one line.
        operators: the region's operators.
        runner: where the script runs.
        timeout_s: after which it hangs.

    Returns:
        `folder`, `reproduced` (whether the script fails in the same way), `imports_collage`, `model_bytes`.
    """
    request, trial = found.request, found.trial
    folder.mkdir(parents=True, exist_ok=True)
    for file in request.model.path.parent.glob(request.model.path.name + "*"):
        shutil.copyfile(file, folder / file.name)
    samples = read_samples(request.inputs_path, request.model.inputs)
    expected = read_expected(request.expected_path, request.model.outputs)
    write_values(folder, "inputs", request.model.inputs, samples)
    write_values(folder, "expected", request.model.outputs, expected)
    ties = any(isinstance(value, Ranged) for sample in expected for value in sample.values())

    def write_script(alone: bool) -> None:
        text = comparing_script(
            title=title,
            target=request.target,
            threads=request.threads,
            inputs=types_of(request.model.inputs, samples[0]),
            outputs=types_of(request.model.outputs, expected[0]),
            samples=len(samples),
            runs=request.runs,
            tolerance=request.tolerance,
            metric=request.metric,
            ties=ties,
            alone=alone,
        )
        (folder / SCRIPT).write_text(text, encoding="utf-8")

    alone = is_alone(request.target, request.threads)
    write_script(alone)
    reproduced = reproduces(folder, trial.outcome, runner, timeout_s, cancel)
    if alone and not reproduced:
        # The runtime alone is right, so what this project does around it takes part in the fault.
        write_script(False)
        if reproduces(folder, trial.outcome, runner, timeout_s, cancel):
            alone, reproduced = False, True
        else:
            write_script(True)
    versions = runner.facts(request.target).version
    environment = {
        "target": str(request.target),
        "version": versions,
        "python": runner.python,
        "numpy": np.__version__,
        "platform": platform.platform(),
        "hardware": asdict(runner.hardware),
        "threads": request.threads,
    }
    (folder / "environment.json").write_text(json.dumps(environment, indent=2) + "\n", encoding="utf-8")
    text = issue_text(title, operators, found, environment, reproduced)
    (folder / "issue.md").write_text(text, encoding="utf-8")
    return {
        "folder": str(folder),
        "reproduced": reproduced,
        "imports_collage": not alone,
        "model_bytes": sum(f.stat().st_size for f in folder.glob("model.onnx*")),
    }


def write_values(
    folder: Path, kind: str, specs: Sequence[TensorSpec], samples: Sequence[Mapping[str, Expected]]
) -> None:
    """Write each sample as `KIND-N.npz`, whose entries are the positions of values.

    Where rounding decides elements of a value, all have bounds: `POSITION.low` and `POSITION.high`. Types that
    numpy lacks are written as integers of their size.
    """
    ties = any(isinstance(value, Ranged) for sample in samples for value in sample.values())
    for number, sample in enumerate(samples):
        arrays = {}
        for position, spec in enumerate(specs):
            value = sample[spec.name]
            ranged = value if isinstance(value, Ranged) else Ranged(value, value, value)
            arrays[str(position)] = storable(ranged.value)
            if ties:
                arrays[f"{position}.low"] = storable(ranged.low)
                arrays[f"{position}.high"] = storable(ranged.high)
        with (folder / f"{kind}-{number}.npz").open("wb") as file:
            np.savez(file, allow_pickle=False, **arrays)


def types_of(specs: Sequence[TensorSpec], sample: Mapping[str, Expected]) -> dict[str, str]:
    """The types of a sample's values by name, as numpy calls them."""
    found = {}
    for spec in specs:
        value = sample[spec.name]
        array = value.value if isinstance(value, Ranged) else value
        found[spec.name] = "object" if array.dtype.hasobject else array.dtype.name
    return found


def reproduces(
    folder: Path, outcome: str, runner: Runner, timeout_s: float, cancel: threading.Event | None
) -> bool:
    """Whether the script fails in this way, in a sandbox."""
    limits = ChildLimits(timeout_s=timeout_s)
    try:
        status = runner.run(run_script, (folder / SCRIPT).resolve(), limits=limits, cancel=cancel)
    except ChildFailed as failure:
        return failure.kind == _FAILS_AS.get(outcome, "error" if outcome == "refused" else "")
    return bool(status == _REPRODUCED.get(outcome, -1))


def run_script(path: Path) -> int:
    """The exit status of a script; runs in the child.

    Raises:
        Exception: what the script raises.
    """
    try:
        runpy.run_path(str(path), run_name="__main__")
    except SystemExit as end:
        return int(end.code or 0)
    return 0


def issue_text(
    title: str, operators: str, found: Shrunk, environment: Mapping[str, Any], reproduced: bool
) -> str:
    """A report for the runtime's authors, in Markdown."""
    request, trial = found.request, found.trial
    hardware = environment["hardware"]
    lines = [
        f"# {title}",
        "",
        f"Operators: {operators}. The reference is ONNX Runtime with optimization off.",
        "",
        f"`python {SCRIPT}` in this folder shows it."
        if reproduced
        else f"`python {SCRIPT}` in this folder runs the same model, but did not fail when it was tried.",
        "",
        "## What happens",
        "",
        f"{trial.outcome}: {trial.reason}",
    ]
    if trial.wrong is not None and trial.wrong.elements:
        wrong = trial.wrong
        lines += [
            "",
            f"{wrong.wrong_elements} of {wrong.size} elements of `{wrong.output}` are wrong. The worst:",
            "",
            "| element | expected | got |",
            "|---|---|---|",
            *(f"| {list(e.index)} | {e.expected} | {e.got} |" for e in wrong.elements),
        ]
    lines += [
        "",
        "## Model",
        "",
        *(f"- input `{s.name}`: {s.dtype} {list(s.shape or ())}" for s in request.model.inputs),
        *(f"- output `{s.name}`: {s.dtype} {list(s.shape or ())}" for s in request.model.outputs),
        "",
        "## Environment",
        "",
        f"- {environment['target']}, version {environment['version']}, {environment['threads']} threads",
        f"- Python {environment['python']}, numpy {environment['numpy']}, {environment['platform']}",
        f"- {hardware['cpu']}, {hardware['threads']} threads, features {' '.join(hardware['features'])}",
        "",
    ]
    return "\n".join(lines)
