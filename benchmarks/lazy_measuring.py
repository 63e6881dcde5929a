"""Lazy measuring on real models: how few measurements find the plan that measuring everything finds.

    python -m benchmarks.lazy_measuring resnet50 bert_base nasnet_mobile ppocr_det

For each model *everything* is measured once on each target and kept in a database. The lazy search of
`collage tune` then reads its costs from there, and every cost that it asks for is counted. Both
searches use the same costs, so noise plays no part.

Candidates are restricted, so that everything can be measured. The model is laid in a line and cut at
`--cuts` positions where few values are live. Every run between two cuts is a candidate on every target
that supports it, and is timed briefly. With `--seconds` a call ends after that long, and the next call
continues.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.support.models import benchmark_model, names, seeded_inputs
from collage.backends.machine.process_policy import default_threads
from collage.backends.measurement.protocol import Protocol
from collage.backends.registry import target_spec
from collage.cost_db.costs.key import CostKey
from collage.cost_db.costs.row import CostRow
from collage.cost_db.database import CostDatabase
from collage.costs.measured_costs import CostSettings, MeasuredCosts
from collage.events import Event
from collage.model.reference import Reference, ingest
from collage.model.sub_models import RegionFiles
from collage.partitioner.candidate import Candidate
from collage.partitioner.cost import Cost, Measured, Unknown
from collage.partitioner.graph.graph_index import GraphIndex
from collage.partitioner.graph.linear_order import linear_order, live_counts
from collage.partitioner.graph.model import Model
from collage.partitioner.rules.candidate_set import CandidateSet
from collage.partitioner.rules.target_spec import TargetSpec
from collage.partitioner.search.constraints import Constraints
from collage.partitioner.search.search import Searcher
from collage.partitioner.search.transition import Transitions
from collage.partitioner.target import Target
from collage.runner import Runner
from collage.search.lazy_search import LazySearch
from collage.search.single_targets import SingleTargets

_BRIEF = Protocol(min_runs=5, min_s=0.02, max_s=0.3, warm_up_s=0.02, retries=0)
# What `collage tune` begins with.
_CALL_US, _BORDER_US = 5.0, 20.0
_PLANS = 4
_NEAR = 1.05


@dataclass(frozen=True)
class LazyResult:
    """What lazy search did on one model.

    Args:
        model: its name.
        candidates: how many there are.
        everything: how many different costs they have.
        asked: how many of these lazy search asked for.
        early: after how many of them a plan within 5 % of the best was known.
        objective_us: of the plan that lazy search found.
        best_us: of the best plan when everything is known.
        single_us: of the best single target.
        same_plan: True when the two plans are one.
    """

    model: str
    candidates: int
    everything: int
    asked: int
    early: int
    objective_us: float
    best_us: float
    single_us: float
    same_plan: bool


class CountedCosts:
    """Known costs, handed out when they are asked for, and counted.

    Args:
        known: where every cost is known.
    """

    def __init__(self, known: MeasuredCosts) -> None:
        self._known = known
        self.asked: set[str] = set()

    def key(self, candidate: Candidate) -> CostKey:
        """As `MeasuredCosts.key`."""
        return self._known.key(candidate)

    def cost(self, candidate: Candidate) -> Cost:
        """What was asked for; the rest is unknown."""
        return self._known.cost(candidate) if self.key(candidate).digest in self.asked else Unknown()

    def row(self, candidate: Candidate) -> CostRow | None:
        """The measurement of what was asked for."""
        return self._known.row(candidate) if self.key(candidate).digest in self.asked else None

    def recall(self, candidates: Iterable[Candidate]) -> None:
        """No cost of this model is known."""

    def expected_us(self, candidates: Iterable[Candidate]) -> dict[tuple[int, Target], float]:
        """Nothing is known of other sizes."""
        return {}

    def measure(
        self, candidates: Sequence[Candidate], stop: Callable[[], bool] = lambda: False
    ) -> None:
        """Hand out what is asked for."""
        for candidate in candidates:
            if stop():
                return
            self.asked.add(self.key(candidate).digest)


def cut_positions(index: GraphIndex, cuts: int) -> tuple[list[int], list[int]]:
    """The nodes in a line, and about evenly spread positions with the fewest live values, both ends too."""
    order = linear_order(index, index.all_nodes)
    live = live_counts(index, index.all_nodes, order)
    step = len(order) / (cuts + 1)
    chosen = {0, len(order)}
    for i in range(1, cuts + 1):
        middle = i * step
        near = range(max(1, round(middle - step / 2)), min(len(order), round(middle + step / 2) + 1))
        if near:
            chosen.add(min(near, key=lambda p: (live[p], abs(p - middle))))
    return order, sorted(chosen)


def restricted_candidates(index: GraphIndex, specs: Sequence[TargetSpec], cuts: int) -> CandidateSet:
    """Every run between two cuts on every target that supports all its nodes."""
    order, positions = cut_positions(index, cuts)
    found: list[Candidate] = []
    refusals: dict[tuple[int, Target], str] = {}
    for spec in specs:
        taken = 0
        for node in order:
            reason = spec.supports(index, node)
            if reason is None:
                taken |= 1 << node
            else:
                refusals[node, spec.target] = reason
        for i, start in enumerate(positions):
            for end in positions[i + 1 :]:
                nodes = sum(1 << node for node in order[start:end])
                if not nodes & ~taken:
                    found.append(Candidate(nodes, spec.target, "run"))
    return CandidateSet.build(index, found, refusals)


def study(
    name: str, targets: Sequence[str], cuts: int, database: CostDatabase, deadline_s: float | None
) -> LazyResult | None:
    """Measure what is not known yet, then search; None when the time ended before all was measured."""
    chosen = benchmark_model(name)
    with tempfile.TemporaryDirectory(prefix="collage-lazy-") as folder:
        work = Path(folder)
        model, _ = ingest(chosen.path, work, chosen.dims)
        reference = Reference(model, [seeded_inputs(name, model, seed) for seed in (0, 1)], work / "r")
        settings = CostSettings(default_threads(), protocol=_BRIEF, cache_dir=work)
        regions = RegionFiles(model, work / "regions")
        costs = MeasuredCosts(model, regions, reference, database, settings, Runner(), _print_count)
        specs = [target_spec(Target.parse(text)) for text in targets]
        candidates = restricted_candidates(model.index, specs, cuts)
        everything = costs.unique(candidates.candidates)
        print(f"{name}: {len(candidates)} candidates, {everything} different costs", flush=True)
        out_of_time = lambda: deadline_s is not None and time.monotonic() >= deadline_s  # noqa: E731
        costs.measure(candidates.candidates, stop=out_of_time)
        if any(isinstance(costs.cost(c), Unknown) for c in candidates.candidates):
            return None
        return _searched(name, model, specs, candidates, costs)


def _searched(
    name: str,
    model: Model,
    specs: Sequence[TargetSpec],
    candidates: CandidateSet,
    known: MeasuredCosts,
) -> LazyResult:
    index = model.index
    borders = {spec.target: _BORDER_US for spec in specs}
    transitions = Transitions(default_call_us=_CALL_US, border_us=borders)
    prices = [_latency_us(known.cost(c)) for c in candidates.candidates]
    best = Searcher(index, candidates.candidates).solve(prices, transitions=transitions).plans[0]
    counted = CountedCosts(known)
    targets = [spec.target for spec in specs]
    whole = SingleTargets(index, targets, counted)
    estimates = whole.measure(candidates, lambda: False)
    single_us = min(whole.latencies_us().values(), default=float("inf"))
    seen: list[tuple[int, float]] = []

    def listen(event: Event) -> None:
        if event.data.get("known_us") is not None:
            seen.append((len(counted.asked), float(event.data["known_us"])))

    lazy = LazySearch(
        index,
        candidates,
        counted,
        estimates,
        transitions,
        Constraints(),
        None,
        listen,
    )
    found = lazy.run(_PLANS, single_us).plans[0]
    near = [asked for asked, us in seen if us <= best.objective_us * _NEAR]
    return LazyResult(
        model=name,
        candidates=len(candidates),
        everything=known.unique(candidates.candidates),
        asked=len(counted.asked),
        early=min(near, default=len(counted.asked)),
        objective_us=found.objective_us,
        best_us=best.objective_us,
        single_us=single_us,
        same_plan=set(found.plan.partitions) == set(best.plan.partitions),
    )


def _latency_us(cost: Cost) -> float | None:
    return cost.latency_us if isinstance(cost, Measured) else None


def _print_count(event: Event) -> None:
    if event.stage == "measure" and event.done:
        print(f"  {event.done} {event.message}", flush=True)


def table(results: Sequence[LazyResult]) -> str:
    """The results as a Markdown table."""
    head = (
        "| model | candidates | different costs | asked for | of all | within 5 % after | best plan | "
        "lazy plan | lazy / best | best single |\n|---|---|---|---|---|---|---|---|---|---|"
    )
    rows = [
        f"| {o.model} | {o.candidates} | {o.everything} | {o.asked} | {o.asked / o.everything:.0%} | "
        f"{o.early} | {o.best_us / 1e3:.2f} ms | {o.objective_us / 1e3:.2f} ms | "
        f"{'the same' if o.same_plan else f'{o.objective_us / o.best_us:.4f}'} | "
        f"{o.single_us / 1e3:.2f} ms |"
        for o in results
    ]
    return "\n".join([head, *rows])


def main(arguments: Sequence[str] | None = None) -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("models", nargs="+", choices=names(), metavar="MODEL")
    parser.add_argument("--targets", nargs="+", default=["onnxruntime", "openvino", "mnn"])
    parser.add_argument("--cuts", type=int, default=10, help="how many inner positions to cut at")
    parser.add_argument("--seconds", type=float, default=None, help="stop measuring after so long")
    parser.add_argument("--database", default="sqlite:///lazy-measuring.db")
    parser.add_argument("--output", type=Path, default=Path("benchmarks/results/lazy.json"))
    chosen = parser.parse_args(arguments)
    begin = time.monotonic()
    deadline_s = None if chosen.seconds is None else begin + chosen.seconds
    database = CostDatabase(chosen.database)
    known = json.loads(chosen.output.read_text(encoding="utf-8")) if chosen.output.exists() else []
    results = {row["model"]: LazyResult(**row) for row in known}
    for name in chosen.models:
        result = study(name, chosen.targets, chosen.cuts, database, deadline_s)
        if result is None:
            print(f"{name}: not everything is measured yet; call again to go on")
            continue
        results[name] = result
        chosen.output.parent.mkdir(parents=True, exist_ok=True)
        rows = [asdict(result) for result in results.values()]
        chosen.output.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    database.close()
    print(table(list(results.values())))


if __name__ == "__main__":
    main()
