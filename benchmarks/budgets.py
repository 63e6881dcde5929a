"""Errors on samples that tuning never saw: every model, five budgets.

    python -m benchmarks.budgets --report docs/results/budgets.md

Each model is tuned for each budget on twenty samples (half of them held out), from the widest to the
tightest, with one cost database. The artifact then runs on twenty other samples beside ONNX Runtime
without optimization. A row has the largest errors on both sets of samples.

No latency is reported, so the machine may be busy. Finished budgets are kept. A file of other targets
or another machine is refused.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import collage
from benchmarks.support.models import BenchmarkModel, benchmark_model, names, seeded_inputs
from benchmarks.support.results import here, measured_before, write_inputs, write_table
from collage.accuracy.target_choice import EXACT_ERROR
from collage.backends.numerics.comparison import output_error
from collage.backends.numerics.reference import reference_session, run_session
from collage.partitioner.errors import CollageError
from collage.partitioner.graph.model import Model
from collage.partitioner.ingest.normalize import normalize

_TARGETS = (
    *("openvino", "openvino -precision=bf16"),
    *("openvino -quant=static_int8", "openvino -quant=weights_int8"),
)
_BUDGETS = (1e-1, 3e-2, 1e-2, 3e-3, 1e-3)
_GIVEN, _UNSEEN = 20, 20


def main() -> None:
    """Run what is missing, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=names(), default=list(names()), metavar="NAME")
    parser.add_argument("--targets", nargs="+", default=list(_TARGETS))
    parser.add_argument("--time-limit", type=float, default=20.0, help="of one tuning")
    parser.add_argument("--output", type=Path, default=Path("benchmarks/results/budgets.json"))
    parser.add_argument("--report", type=Path, default=None, help="write the table between its marks")
    chosen = parser.parse_args()
    settings = {"targets": chosen.targets, "hardware": here()}
    rows: dict[str, Any] = dict(measured_before(chosen.output, settings))
    for name in chosen.models:
        missing = [budget for budget in _BUDGETS if f"{budget:g}" not in rows.get(name, {})]
        for budget, found in _kept(name, chosen.targets, missing, chosen.time_limit):
            rows.setdefault(name, {})[f"{budget:g}"] = found
            print(f"{name} within {budget:g}: {_cell(found)}", flush=True)
            chosen.output.parent.mkdir(parents=True, exist_ok=True)
            chosen.output.write_text(
                json.dumps({**settings, "rows": rows}, indent=1) + "\n", encoding="utf-8"
            )
    table = _table(rows, settings)
    print(table)
    if chosen.report is not None:
        write_table(chosen.report, "budgets-unseen", table)


def _kept(
    name: str, targets: Sequence[str], budgets: Sequence[float], time_limit_s: float
) -> Iterator[tuple[float, dict[str, Any]]]:
    """Each budget, with the errors of what tuning returned for it."""
    if not budgets:
        return
    benchmark = benchmark_model(name)
    with tempfile.TemporaryDirectory(prefix="collage-budgets-") as folder:
        work = Path(folder)
        inputs = write_inputs(name, benchmark.path, dict(benchmark.dims), work, _GIVEN)
        unseen = _Unseen(benchmark, work / "unseen")
        for budget in budgets:
            try:
                artifact = collage.tune(
                    benchmark.path,
                    targets,
                    output=work / "tuned.onnx",
                    database=f"sqlite:///{work / 'costs.db'}",
                    dims=dict(benchmark.dims),
                    inputs=inputs,
                    tolerance=budget,
                    time_limit_s=time_limit_s,
                )
                report = artifact.report
                yield (
                    budget,
                    {
                        "given": report["max_relative_error"],
                        "unseen": unseen.errors(artifact.path),
                        "targets": sorted({part["target"] for part in report["partitions"]}),
                    },
                )
            except CollageError as error:
                yield budget, {"failure": str(error)}


class _Unseen:
    """Samples that no tuning sees, and what the model makes of them in ONNX Runtime without optimization."""

    def __init__(self, benchmark: BenchmarkModel, work: Path) -> None:
        path = normalize(benchmark.path, work, benchmark.dims).path
        model = Model.open(path)
        self._outputs = list(model.index.outputs)
        self._samples = [seeded_inputs(benchmark.name, model, 1000 + seed) for seed in range(_UNSEEN)]
        session = reference_session(path)
        self._expected = [run_session(session, sample, self._outputs) for sample in self._samples]

    def errors(self, artifact: Path) -> list[float]:
        """The largest error of an output, for each sample."""
        with collage.load(artifact, cache_dir=False) as session:
            return [
                output_error("max", session.run(self._outputs, sample), list(wanted.values()))
                for sample, wanted in zip(self._samples, self._expected, strict=True)
            ]


def _cell(found: Mapping[str, Any]) -> str:
    if "failure" in found:
        return f"failed: {found['failure']}"
    worst = max(found["unseen"])
    if max(found["given"], worst) <= EXACT_ERROR:
        return "exact"
    return f"{found['given']:.1e}, {worst:.1e}"


def _table(rows: Mapping[str, Any], settings: Mapping[str, Any]) -> str:
    budgets = [f"{budget:g}" for budget in _BUDGETS]
    lines = [
        f"{settings['hardware']}; `{'`, `'.join(settings['targets'])}`. The largest error on the {_GIVEN} samples given, "
        f"and on {_UNSEEN} others; `exact` where both are at most {EXACT_ERROR:g}.",
        "",
        f"| model | {' | '.join(f'within {budget}' for budget in budgets)} |",
        "|---|" + "---|" * len(budgets),
    ]
    for name, row in rows.items():
        cells = (_cell(row[budget]) if budget in row else "" for budget in budgets)
        lines.append(f"| {name} | {' | '.join(cells)} |")
    found = [
        (name, budget, row[budget])
        for name, row in rows.items()
        for budget in budgets
        if "unseen" in row.get(budget, {})
    ]
    reduced = [(n, b, f) for n, b, f in found if max(f["given"], *f["unseen"]) > EXACT_ERROR]
    over = [f"{name} within {budget}" for name, budget, f in found if f["given"] > float(budget)]
    beyond = {
        f"{name} within {budget} up to {max(f['unseen']):.1e}": sum(
            e > float(budget) for e in f["unseen"]
        )
        for name, budget, f in found
        if max(f["unseen"]) > float(budget)
    }
    lines += [
        "",
        f"{len(found)} plans, {len(reduced)} of them not exact. Over their budget on the samples given: "
        f"{'; '.join(over) or 'none'}. On the others of those that are not exact: {sum(beyond.values())} of "
        f"{_UNSEEN * len(reduced)} ({'; '.join(beyond) or 'none'}).",
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
