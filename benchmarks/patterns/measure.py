"""Which of the backends' patterns win: each pattern's nodes on every target, interleaved.

    python -m benchmarks.patterns [--pattern NAME ...] [--prepare] [--again] [--show]

For each pattern that a backend names, places in real models where it matches are cut out. They have
different sizes; where no model has the pattern, a small graph of a usual size is used. Each place is
compiled for every target, and the targets are timed interleaved.

A cell of the table has the fastest other target's latency over this target's, as the median over
places. It also counts the places where this target is the fastest beyond noise, and is bold where those
are most. Cells in brackets are of targets that support the nodes without naming the pattern.

`--prepare` finds the places and fills the caches of conversions; the machine may be busy then. Results
are kept for each pattern, so that an interrupted run continues. `--show` writes the table into
docs/results/patterns.md. Run it on an idle machine.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.patterns.places import FOLDER, find_places, here, named, place_folder
from benchmarks.patterns.table import table
from benchmarks.support.results import write_table
from collage.backends.contract import CompileContext, SubModel
from collage.backends.machine.process_policy import caller_kept, default_threads
from collage.backends.measurement.measure import aligned
from collage.backends.measurement.timing import interleave
from collage.backends.numerics.comparison import output_error
from collage.backends.numerics.reference import run_reference, seeded_inputs
from collage.backends.registry import canonical, resolve
from collage.backends.sandbox.run import ChildFailed, ChildLimits, run_in_child, send_message
from collage.partitioner.rules.pattern import Pattern
from collage.partitioner.target import Target
from collage.partitioner.tensor import TensorSpec

RESULTS = Path("benchmarks/results/patterns.json")
_DOCUMENT, _MARK = Path("docs/results/patterns.md"), "patterns"
_ROUNDS, _BLOCK_S = 10, 0.012
_TOLERANCE = 1e-3


def prepare(patterns: Mapping[str, Pattern]) -> None:
    """Find places, write them as models, and let every runtime convert them once."""
    for name, rows in find_places(patterns).items():
        _time_places(name, rows, rounds=0)
        print(f"{name}: {', '.join(row['model'] for row in rows) or 'nowhere'}", flush=True)


def _time_places(name: str, rows: Sequence[Mapping[str, Any]], rounds: int) -> list[dict[str, Any]]:
    """Samples by target of every place, or why there are none; one child for a pattern."""
    found: list[dict[str, Any]] = [{} for _ in rows]
    tried: list[tuple[int, str]] = []

    def keep(message: tuple[int, str, Any]) -> None:
        number, target, samples = message
        if samples is None:
            tried.append((number, target))
        else:
            found[number][target] = samples

    while True:
        tried.clear()
        waiting = {
            i: [t for t in here() if not isinstance(found[i].get(t), str)] for i in range(len(rows))
        }
        try:
            run_in_child(
                time_pattern,
                waiting,
                [_sub_model(name, i, row) for i, row in enumerate(rows)],
                FOLDER / "compiled",
                rounds,
                limits=ChildLimits(timeout_s=240),
                on_message=keep,
            )
            return found
        except ChildFailed as failure:  # a runtime crashed: without it then
            if not tried:
                raise SystemExit(f"{name}: {failure}") from None
            number, target = tried[-1]
            found[number][target] = f"{failure.kind}: {failure.reason}"


def _sub_model(name: str, number: int, row: Mapping[str, Any]) -> SubModel:
    def specs(described: Iterable[Sequence[Any]]) -> tuple[TensorSpec, ...]:
        return tuple(TensorSpec(value, dtype, tuple(shape)) for value, dtype, shape in described)

    path = place_folder(name, number) / "model.onnx"
    return SubModel(path, specs(row["inputs"]), specs(row["outputs"]))


def time_pattern(
    waiting: dict[int, list[str]], models: list[SubModel], cache_dir: Path, rounds: int
) -> None:
    """Compile, verify and time every place on its targets (runs in a child)."""
    cache_dir.mkdir(parents=True, exist_ok=True)
    for number, model in enumerate(models):
        values = seeded_inputs(model.inputs, seed=number)
        expected = run_reference(model.path, values, [spec.name for spec in model.outputs])
        runs: dict[str, Callable[[], None]] = {}
        for text in waiting[number]:
            send_message((number, text, None))
            target = canonical(Target.parse(text), default_threads())
            work = Path.cwd() / f"{number}-{text}"
            work.mkdir()
            try:
                with caller_kept():
                    context = CompileContext(default_threads(), work, cache_dir)
                    executable = resolve(target).compile(model, target, context)
                inputs = [aligned(s.static_shape, np.dtype(s.dtype)) for s in model.inputs]
                outputs = [aligned(s.static_shape, np.dtype(s.dtype)) for s in model.outputs]
                for buffer, spec in zip(inputs, model.inputs, strict=True):
                    np.copyto(buffer, values[spec.name])
                executable.bind(inputs, outputs)
                executable.run()
            except Exception as refusal:  # whatever a runtime raises says that it does not take it
                lines = str(refusal).strip().splitlines() or [type(refusal).__name__]
                send_message((number, text, lines[0]))
                continue
            error = output_error("max", outputs, [expected[s.name] for s in model.outputs])
            if error > _TOLERANCE:
                send_message((number, text, f"wrong by {error:.2g}"))
                continue
            runs[text] = executable.run
        if rounds:
            for text, samples in interleave(runs, rounds, _BLOCK_S).items():
                send_message((number, text, samples))


def main() -> None:
    """Prepare, time, show."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    known = named()
    parser.add_argument("--pattern", nargs="+", choices=sorted(known), metavar="NAME")
    parser.add_argument("--prepare", action="store_true", help="only what needs no quiet")
    parser.add_argument("--again", action="store_true", help="forget what was measured before")
    parser.add_argument("--show", action="store_true", help="write the table into docs/")
    chosen = parser.parse_args()
    wanted = chosen.pattern or sorted(known)
    missing = [name for name in wanted if not (FOLDER / name / "places.json").exists()]
    if chosen.prepare or missing:
        prepare({name: known[name][0] for name in (wanted if chosen.prepare else missing)})
    results: dict[str, Any] = (
        json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}
    )
    for name in wanted if not chosen.prepare else ():
        if name in results and not chosen.again:
            continue
        rows = json.loads((FOLDER / name / "places.json").read_text(encoding="utf-8"))
        results[name] = {"rows": rows, "samples": _time_places(name, rows, _ROUNDS)}
        RESULTS.write_text(json.dumps(results) + "\n", encoding="utf-8")
    text = table(results, {name: targets for name, (_, targets) in known.items()})
    print(text)
    if chosen.show:
        write_table(_DOCUMENT, _MARK, text)
