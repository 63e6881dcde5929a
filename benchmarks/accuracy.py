"""Speed within error budgets: each model tuned for each budget, against the best fp32 target.

    python -m benchmarks.accuracy --report docs/results/accuracy-epyc.md

Each model is tuned for 1 %, then for 5 % with the same cost database. Both plans are then timed beside
every single target, interleaved in a fresh process. A row has three things: the speedup over the best
fp32 target, the plan's error, and the errors of the whole model on the reduced targets.

Finished plans and rows are kept, so that an interrupted run continues. A model that fails is a row with
its reason. A file of another metric or another machine is refused.
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import collage
from benchmarks.support.models import benchmark_model, name_or_file
from benchmarks.support.results import geomean, here, measured_before, write_inputs, write_table
from collage.accuracy.target_choice import exact_limit
from collage.artifact.export import read_plan_file
from collage.backends.numerics.comparison import METRICS, Metric
from collage.events import Event, Listener, ignore
from collage.model.preparation import least_opset
from collage.model.reference import ingest
from collage.model.sampling import Sampling
from collage.model.sub_models import RegionFiles
from collage.options import TuneOptions
from collage.partitioner.emit.plan_json import decode_plan
from collage.partitioner.errors import CollageError
from collage.partitioner.graph.model import Model
from collage.partitioner.target import Target
from collage.runner import Runner
from collage.search.fixed_plans import single_plan
from collage.timing.plan_timer import PlanTimer
from collage.timing.request import without_plans
from collage.timing.timed_plan import TimedPlan, identity, speedup

_MODELS = (
    *("ppocr_det", "ppocr_rec", "ppocr_cls", "light_resnet50", "light_vgg19", "light_bvlc_alexnet"),
    *("light_zfnet512", "light_inception_v1", "light_inception_v2", "light_densenet121"),
    *("light_squeezenet", "light_shufflenet", "mobilenet_v2", "resnext50", "nasnet_mobile"),
    *("bert_base", "gpt2", "vit_small"),
)
_TARGETS = (
    *("onnxruntime", "openvino", "mnn", "openvino -precision=bf16"),
    *("openvino -quant=static_int8", "openvino -quant=weights_int8"),
)
_TRANSFORMERS = ("bert_base", "gpt2", "vit_small")
_BUDGETS = (1e-2, 5e-2)
# Half of them are held out.
_SAMPLES = 8
_OF = (
    "`of`: what the fastest mix of the blocks tried was promised to gain within the budget, by fitted errors and "
    "profiled times, were borders free."
)


def main() -> None:
    """Run what is missing, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument(
        "--models", nargs="+", type=name_or_file, default=list(_MODELS), metavar="NAME or FILE"
    )
    parser.add_argument("--targets", nargs="+", default=list(_TARGETS))
    parser.add_argument("--time-limit", type=float, default=90.0, help="of one tuning")
    parser.add_argument("--metric", choices=METRICS, default="max", help="of errors")
    parser.add_argument("--verbose", action="store_true", help="show what tuning does")
    parser.add_argument("--output", type=Path, default=Path("benchmarks/results/accuracy.json"))
    parser.add_argument("--report", type=Path, default=None, help="write the table between its marks")
    chosen = parser.parse_args()
    settings = {"metric": chosen.metric, "hardware": here()}
    rows: dict[str, Any] = dict(measured_before(chosen.output, settings))
    listener: Listener = (lambda e: print(f"  {e.stage}: {e.message}")) if chosen.verbose else ignore
    for name in chosen.models:
        if "budgets" in rows.get(name, {}):
            continue
        try:
            if "plans" not in rows.get(name, {}):
                rows[name] = _tuned(name, chosen.targets, chosen.metric, chosen.time_limit, listener)
                _write(chosen.output, settings, rows)
            rows[name] |= _compared(
                name, chosen.targets, chosen.metric, rows[name].pop("plans"), listener
            )
        except (CollageError, OSError) as error:
            rows[name] = {"error": str(error)}
        print(_line(name, rows[name]), flush=True)
        _write(chosen.output, settings, rows)
    table = _table(rows, settings)
    print(table)
    if chosen.report is not None:
        write_table(chosen.report, "budgets", table)


def _write(path: Path, settings: Mapping[str, str], rows: Mapping[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({**settings, "rows": rows}, indent=1) + "\n", encoding="utf-8")


def _tuned(
    name: str, targets: Sequence[str], metric: Metric, time_limit_s: float, listener: Listener
) -> dict[str, Any]:
    """The plan for each budget, how long tuning took, and the predicted gain of the fastest mix."""
    benchmark = benchmark_model(name)
    plans, seconds = {}, {}
    bounds: dict[str, float] = {}

    def heard(event: Event) -> None:
        listener(event)
        for budget, bound in event.data.get("bounds", {}).items():
            bounds[budget] = max(bound, bounds.get(budget, 0.0))

    with tempfile.TemporaryDirectory(prefix="collage-accuracy-") as folder:
        work = Path(folder)
        inputs = write_inputs(name, benchmark.path, dict(benchmark.dims), work, _SAMPLES)
        for budget in _BUDGETS:
            artifact = collage.tune(
                benchmark.path,
                targets,
                output=work / f"{budget:g}.onnx",
                database=f"sqlite:///{work / 'costs.db'}",
                dims=dict(benchmark.dims),
                inputs=inputs,
                tolerance=budget,
                metric=metric,
                time_limit_s=time_limit_s,
                on_event=heard,
            )
            seconds[f"{budget:g}"] = artifact.report["seconds"]["total"]
            plans[f"{budget:g}"] = read_plan_file(artifact.path)
    return {"plans": plans, "tuning_seconds": seconds, "bounds": bounds}


def _compared(
    name: str,
    targets: Sequence[str],
    metric: Metric,
    plans: Mapping[str, Mapping[str, Any]],
    listener: Listener,
) -> dict[str, Any]:
    """Speed and error of plans beside every single target."""
    benchmark = benchmark_model(name)
    dims = dict(benchmark.dims)
    with tempfile.TemporaryDirectory(prefix="collage-accuracy-") as folder:
        work = Path(folder)
        inputs = write_inputs(name, benchmark.path, dims, work, _SAMPLES)
        parsed = [Target.parse(text) for text in targets]
        opset = least_opset(Runner().check(parsed))
        model, info = ingest(benchmark.path, work / "again", dims, least_opset=opset)
        sampling = Sampling(
            model, info, TuneOptions(metric=metric), work / "again", inputs, False, listener, None
        )
        regions = RegionFiles(model, work / "regions", sampling.chosen_by.values)
        timer = PlanTimer(regions, without_plans(sampling, prune=False), listener)
        singles = [TimedPlan(single_plan(model, target), str(target)) for target in parsed]
        ours = {budget: _entry(model, plan, singles, budget) for budget, plan in plans.items()}
        timer.time([*singles, *(entry for entry in ours.values() if entry not in singles)])
    timed = [entry for entry in singles if entry.timed]
    found = {
        e.name: {"latency_us": e.latency_us, "error": e.error, "exactness": e.exactness} for e in timed
    }
    exact = [entry for entry in timed if entry.name in _exact(found)]
    if not exact:
        return {"error": "no fp32 target runs it"}
    best = min(exact, key=lambda entry: entry.ratio)
    return {
        "singles": found,
        "best_fp32": best.name,
        "budgets": {budget: _against(best, entry) for budget, entry in ours.items()},
    }


def _exact(singles: Mapping[str, Mapping[str, Any]]) -> set[str]:
    """The targets that compute the whole model as fp32 does."""
    # Older rows have the error by the chosen metric alone.
    errors = {name: found.get("exactness", found["error"]) or 0.0 for name, found in singles.items()}
    limit = exact_limit(errors.values())
    return {name for name, error in errors.items() if error <= limit}


def _entry(
    model: Model, plan: Mapping[str, Any], singles: Sequence[TimedPlan], budget: str
) -> TimedPlan:
    """A plan to be timed; where it is a single target, that one's entry."""
    decoded = decode_plan(model, json.dumps(plan)).plan
    same = (entry for entry in singles if identity(entry.plan) == identity(decoded))
    return next(same, TimedPlan(decoded, f"within {budget}"))


def _against(best: TimedPlan, ours: TimedPlan) -> dict[str, Any]:
    if not ours.timed:
        return {
            "plan": ours.name,
            "failure": ours.failure,
            "partitions": [],
            "error": math.inf,
            "speedup": math.nan,
        }
    gain = speedup(best, ours)
    return {
        "plan": ours.name,
        "partitions": [[str(p.target), p.nodes.bit_count()] for p in ours.plan.partitions],
        "error": ours.error,
        "latency_us": ours.latency_us,
        "speedup": gain.ratio,
        "interval": [gain.low, gain.high],
    }


def _line(name: str, row: Mapping[str, Any]) -> str:
    if "budgets" not in row:
        return f"{name}: {row['error']}"
    said = ", ".join(
        f"{found['speedup']:.3f} at {found['error']:.1e} within {budget} ({len(found['partitions'])} parts)"
        for budget, found in row["budgets"].items()
    )
    return f"{name}: {said}; tuned in {sum(row['tuning_seconds'].values()):.0f} s"


def _gain(speedup: float, bound: float | None) -> str:
    """A bound is of mixes in blocks: a whole model on one target, or luck with borders, may be faster."""
    return f"{speedup:.2f}" if bound is None or bound <= speedup else f"{speedup:.2f} of {bound:.2f}"


def _table(rows: Mapping[str, Any], settings: Mapping[str, str]) -> str:
    budgets = [f"{budget:g}" for budget in _BUDGETS]
    heads = [f"within {budget} | its error" for budget in budgets]
    lines = [
        f"Batch 1, {settings['hardware']}; the best single fp32 target's time over that of the plan, timed in turn "
        f"in a fresh process; errors by the metric `{settings['metric']}`.",
        *([_OF] if any("bounds" in row for row in rows.values()) else []),
        "",
        f"| model | best fp32 | reduced targets as a whole | {' | '.join(heads)} |",
        "|---|---|---|" + "---|---|" * len(budgets),
    ]
    for name, row in rows.items():
        if "budgets" not in row:
            why = row.get("error", "tuned, and not compared yet")
            lines.append(f"| {name} | {why} | |{' | |' * len(budgets)}")
            continue
        best_us, exact = row["singles"][row["best_fp32"]]["latency_us"], _exact(row["singles"])
        reduced = ", ".join(
            f"{best_us / single['latency_us']:.2f} at {single['error']:.1e}"
            for target, single in row["singles"].items()
            if target not in exact
        )
        bounds = row.get("bounds", {})
        cells = " | ".join(
            f"{_gain(found['speedup'], bounds.get(budget))} | {found['error']:.1e}"
            for budget, found in row["budgets"].items()
        )
        lines.append(f"| {name} | {row['best_fp32']} | {reduced} | {cells} |")
    complete = {name: row["budgets"] for name, row in rows.items() if "budgets" in row}
    groups = {
        "geomean": list(complete),
        "geomean of transformers": [name for name in complete if name in _TRANSFORMERS],
    }
    for said, members in groups.items():
        if members:
            means = [geomean([complete[n][b]["speedup"] for n in members]) for b in budgets]
            lines.append(
                f"| {said} ({len(members)} models) | | | {' | | '.join(f'{m:.2f}' for m in means)} | |"
            )
    if complete and all("bounds" in rows[name] for name in complete):
        most = [
            geomean(
                [
                    max(found[b]["speedup"], rows[n]["bounds"].get(b, 0.0))
                    for n, found in complete.items()
                ]
            )
            for b in budgets
        ]
        lines.append(
            f"| geomean of what was promised, or came out where that is more | | | {' | | '.join(f'{m:.2f}' for m in most)} | |"
        )
    over = [
        (name, budget)
        for name, found in complete.items()
        for budget in budgets
        if not (found[budget]["error"] or 0.0) <= float(budget) or math.isnan(found[budget]["speedup"])
    ]
    lines += ["", f"Plans over their budget: {', '.join(map(str, over)) or 'none'}."]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
