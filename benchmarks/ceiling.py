"""The largest speedup that a mix of runtimes could give, and what bounds each model's plan.

    python -m benchmarks.ceiling [--models NAME ...] [--output benchmarks/results/ceiling-epyc.json] [--show]

Each model is cut into at most twelve stretches. For each target, the plan of all stretches is
interleaved with the whole model on every target. The *ceiling* is the best single target's latency over
the cheapest mix of stretches. It assumes that borders cost nothing, and that every stretch saves the
same share as the target's whole model. The cheapest mixes are then interleaved with the single targets.

Each machine has one file in benchmarks/results. `--show` writes the table between the marks of the
file's name.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.prediction.measure import Choose, prepare, run_plans
from benchmarks.prediction.plans import Part
from benchmarks.support.models import names
from benchmarks.support.results import geomean, here, measured_before, write_table
from collage.backends.contract import Available
from collage.backends.registry import resolve
from collage.partitioner.target import Target

_RESULTS, _DOCUMENT = Path("benchmarks/results/ceiling-xeon.json"), Path("docs/results/ceiling.md")
_CACHE = Path.home() / ".cache" / "collage" / "ceiling"
_TARGETS = ("onnxruntime", "openvino", "mnn", "ncnn")
_ROUNDS, _COMPARISON_S = 24, 40.0
_PARTS = (2, 3, 5)


def plans_to_run(
    stretches: int, allowed: Mapping[tuple[int, int], Sequence[str]]
) -> list[tuple[Part, ...]]:
    """The whole model on every target that supports it, and every target's stretches.

    A stretch that a target refuses goes to the first that supports it.
    """
    targets = dict.fromkeys(target for found in allowed.values() for target in found)
    plans: list[tuple[Part, ...]] = [((0, stretches, target),) for target in allowed[0, stretches]]
    for target in targets:
        takers = [allowed[i, i + 1] for i in range(stretches)]
        if stretches > 1 and all(takers):
            owners = [target if target in found else found[0] for found in takers]
            plans.append(tuple((i, i + 1, owner) for i, owner in enumerate(owners)))
    return plans


def ceiling_us(
    single_us: Mapping[str, float], stretch_us: Mapping[str, Sequence[float | None]], most: int
) -> tuple[float, list[tuple[int, int, str]]]:
    """The cheapest mix of at most so many partitions, borders for nothing.

    Args:
        single_us: the whole model's time, by target.
        stretch_us: the time of each stretch, by target; None where it is refused.
        most: how many partitions at the most.

    Returns:
        Microseconds, and the plan: from stretch, to stretch, target.
    """
    count = len(next(iter(stretch_us.values())))
    best: dict[int, dict[int, tuple[float, list[tuple[int, int, str]]]]] = {0: {0: (0.0, [])}}
    for end in range(1, count + 1):
        found: dict[int, tuple[float, list[tuple[int, int, str]]]] = {}
        for start in range(end):
            for target, times in stretch_us.items():
                own = [us for us in times[start:end] if us is not None]
                if len(own) < end - start:
                    continue
                joined_us = sum(own) * _scale(times, single_us.get(target))
                for parts, (before_us, plan) in best[start].items():
                    if plan and plan[-1][2] == target:
                        continue
                    us = before_us + joined_us
                    if parts < most and us < found.get(parts + 1, (float("inf"), []))[0]:
                        found[parts + 1] = (us, [*plan, (start, end, target)])
        best[end] = found
    return min(best[count].values(), key=lambda known: known[0])


def _scale(times: Sequence[float | None], whole_us: float | None) -> float:
    """A target's latency of the whole model over that of its stretches; 1 where it is unknown."""
    known = [us for us in times if us is not None]
    return whole_us / sum(known) if whole_us is not None and len(known) == len(times) else 1.0


def _run(name: str, targets: Sequence[str], choose: Choose) -> list[tuple[list[Part], dict[str, Any]]]:
    """Plans that ran in turn, each with what it took."""
    folder = _CACHE / name
    prepare(name, targets, folder, choose)
    facts = json.loads((folder / "facts.json").read_text(encoding="utf-8"))
    timings = run_plans(folder, facts, _ROUNDS, _COMPARISON_S)
    return [(p, t) for p, t in zip(facts["plans"], timings, strict=True) if not t["failure"]]


def _measure(name: str, targets: Sequence[str]) -> dict[str, Any]:
    single_us: dict[str, float] = {}
    stretch_us: dict[str, list[float | None]] = {}
    for plan, timing in _run(name, targets, plans_to_run):
        if len(plan) == 1:
            single_us[plan[0][2]] = statistics.median(timing["samples_us"])
            continue
        for (start, _, target), us in zip(plan, timing["step_us"], strict=True):
            times = stretch_us.setdefault(target, [None] * len(plan))
            # What another target refuses runs in two plans.
            times[start] = min(us, times[start] or us)
    mixes = {tuple(ceiling_us(single_us, stretch_us, most)[1]) for most in _PARTS}
    stretches = len(next(iter(stretch_us.values())))
    again: list[tuple[Part, ...]] = [((0, stretches, target),) for target in single_us]
    again += sorted(mix for mix in mixes if len(mix) > 1)
    ran = [
        {"parts": plan, "latency_us": statistics.median(timing["samples_us"])}
        for plan, timing in _run(name, targets, lambda *_: again)
    ]
    return {"model": name, "single_us": single_us, "stretch_us": stretch_us, "ran": ran}


def _best_ran(found: Mapping[str, Any]) -> tuple[float, int] | None:
    """The best single target's time over that of the fastest mix, in turn, and its number of parts."""
    singles = [plan["latency_us"] for plan in found["ran"] if len(plan["parts"]) == 1]
    mixes = [
        (plan["latency_us"], len(plan["parts"])) for plan in found["ran"] if len(plan["parts"]) > 1
    ]
    if not singles or not mixes:
        return None
    us, parts = min(mixes)
    return min(singles) / us, parts


def _row(found: Mapping[str, Any]) -> tuple[str, list[float]]:
    single = min(found["single_us"], key=found["single_us"].get)
    best_us = found["single_us"][single]
    mixes = [ceiling_us(found["single_us"], found["stretch_us"], most) for most in _PARTS]
    ratios = [best_us / us for us, _ in mixes]
    count = len(next(iter(found["stretch_us"].values())))
    ran = _best_ran(found)
    told = "" if ran is None else f"{ran[0]:.2f} ({ran[1]} parts)"
    plan = ", ".join(f"{target} {end - start}" for start, end, target in mixes[1][1])
    cells = [found["model"], single, str(count), *(f"{ratio:.2f}" for ratio in ratios), told, plan]
    return "| " + " | ".join(cells) + " |", ratios


def _table(results: Sequence[Mapping[str, Any]], hardware: str) -> str:
    lines = [
        f"Measured by `python -m benchmarks.ceiling`, batch 1, {hardware}.",
        "",
        "| model | best single | stretches | at most 2 parts | 3 parts | 5 parts | the best of these, run | of 3 parts: stretches each |",
        "|---|---|--:|--:|--:|--:|--:|---|",
    ]
    ratios = []
    for found in results:
        row, own = _row(found)
        lines.append(row)
        ratios.append(own)
    means = [f"{geomean([own[i] for own in ratios]):.2f}" for i in range(len(_PARTS))]
    return "\n".join([*lines, f"| geomean | | | {' | '.join(means)} | | |"]) + "\n"


def main() -> None:
    """Measure, print, show."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=names(), metavar="NAME", default=[])
    parser.add_argument("--targets", nargs="+", default=None)
    parser.add_argument("--output", type=Path, default=_RESULTS)
    parser.add_argument("--show", action="store_true", help="write the table to docs/")
    chosen = parser.parse_args()
    targets = chosen.targets or [
        t for t in _TARGETS if isinstance(resolve(Target.parse(t)).probe(), Available)
    ]
    settings = {"targets": targets, "hardware": here()}
    measured = {found["model"]: found for found in measured_before(chosen.output, settings)}
    for name in chosen.models:
        measured[name] = _measure(name, targets)
        print(_row(measured[name])[0], flush=True)
        written = settings | {"rows": [measured[model] for model in names() if model in measured]}
        chosen.output.write_text(json.dumps(written, indent=1) + "\n", encoding="utf-8")
    results = [measured[model] for model in names() if model in measured]
    if results:
        text = _table(results, settings["hardware"])
        print(text)
        if chosen.show:
            write_table(_DOCUMENT, chosen.output.stem, text)


if __name__ == "__main__":
    # Children find their function by its module's name, which here is not `__main__`.
    from benchmarks import ceiling

    ceiling.main()
