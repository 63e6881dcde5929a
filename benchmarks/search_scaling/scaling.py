"""How the search time grows with nodes and candidates.

    python -m benchmarks.search_scaling --nodes 3000 [--plot OUT.svg] [--json OUT.json]

For each family of synthetic networks: nodes, candidates, partitions, the proven gap, and seconds of two
searches. The first builds arrays and program from nothing; the next one has other costs. With
`--dijkstra` the RFC's search runs on the same candidates and costs. With `--plot` sizes up to `--nodes`
are timed and drawn on logarithmic axes.

Transitions: `none` (only calls), `domains` (one of three targets in a memory domain of its own).
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.search_scaling.dijkstra import dijkstra
from benchmarks.search_scaling.synthetic import BLOCKS, Instance, instance
from collage.partitioner.search.search import Searcher
from collage.partitioner.search.transition import CopyCost, Transitions

_CANDIDATES_PER_NODE = 10
_STEPS = 5
_COLORS = ("#4269d0", "#efb118", "#ff725c", "#3ca951", "#a463f2", "#9c6b4e", "#6cc5b0", "#555555")


@dataclass(frozen=True)
class Timing:
    """One search; seconds, and costs in microseconds."""

    family: str
    transitions: str
    nodes: int
    candidates: int
    first_s: float
    again_s: float
    objective_us: float
    gap: float
    partitions: int
    method: str
    dijkstra: str = ""


def transitions_of(kind: str, made: Instance) -> Transitions:
    """The transitions of a name, see the module's docstring."""
    targets = sorted({candidate.target for candidate in made.candidates})
    if kind == "domains":
        copy = CopyCost(5.0, 2.0)
        copies = {("host", "device"): copy, ("device", "host"): copy}
        return Transitions(domains={targets[0]: "device"}, copies=copies)
    return Transitions()


def measure(family: str, nodes: int, kind: str, k: int, with_dijkstra: bool) -> Timing:
    """Time one search from nothing, and one more with other costs."""
    made = instance(family, nodes, nodes * _CANDIDATES_PER_NODE)
    transitions = transitions_of(kind, made)
    begin = time.perf_counter()
    searcher = Searcher(made.index, made.candidates)
    solution = searcher.solve(made.cost_us, transitions=transitions, k=k)
    first_s = time.perf_counter() - begin
    begin = time.perf_counter()
    searcher.solve([cost * 1.01 for cost in made.cost_us], transitions=transitions, k=k)
    again_s = time.perf_counter() - begin
    best = solution.plans[0]
    return Timing(
        family,
        kind,
        len(made.index.nodes),
        len(made.candidates),
        first_s,
        again_s,
        best.objective_us,
        1.0 - min(1.0, solution.bound_us / best.objective_us),
        len(best.candidates),
        solution.statistics.method,
        _rfc(made, transitions, best.objective_us) if with_dijkstra else "",
    )


def _rfc(made: Instance, transitions: Transitions, best_us: float) -> str:
    begin = time.perf_counter()
    found = dijkstra(made.index, made.candidates, made.cost_us, transitions=transitions)
    seconds = time.perf_counter() - begin
    if not found.candidates:
        return f"gave up after {found.states} states, {seconds:.1f} s"
    if found.objective_us is None:
        return f"its partitions wait for each other, {seconds:.1f} s"
    return f"{found.objective_us / best_us:.3f} x the cost, {seconds:.1f} s"


def table(timings: Sequence[Timing]) -> str:
    """The timings as lines of text."""
    head = "family       borders   nodes  candidates  first s  again s  gap      parts  by       RFC"
    lines = [
        f"{t.family:12} {t.transitions:8} {t.nodes:6} {t.candidates:11} {t.first_s:8.2f} {t.again_s:8.2f} "
        f"{t.gap:8.1e} {t.partitions:6}  {t.method:8} {t.dijkstra}"
        for t in timings
    ]
    return "\n".join([head, *lines])


def plot(timings: Sequence[Timing]) -> str:
    """Seconds of the first search over nodes on logarithmic axes, as SVG; dashed: n log n."""
    nodes = [t.nodes for t in timings]
    seconds = [max(t.first_s, 1e-3) for t in timings]
    left, right = math.log10(min(nodes)), math.log10(max(nodes))
    low, high = math.floor(math.log10(min(seconds))), math.ceil(math.log10(max(seconds)))

    def at(node_count: float, second: float) -> str:
        x = 70 + 480 * (math.log10(node_count) - left) / max(right - left, 1e-9)
        y = 330 - 290 * (math.log10(second) - low) / max(high - low, 1)
        return f"{x:.1f},{y:.1f}"

    parts = [
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 700 390" font-family="sans-serif" '
        'font-size="12"><rect width="700" height="390" fill="white"/>',
        '<text x="310" y="378" text-anchor="middle">nodes (ten candidates each)</text>',
        '<text x="20" y="24">seconds of the first search</text>',
    ]
    for power in range(low, high + 1):
        y = at(min(nodes), 10.0**power).split(",")[1]
        parts.append(f'<line x1="70" x2="550" y1="{y}" y2="{y}" stroke="#ddd"/>')
        parts.append(f'<text x="62" y="{y}" text-anchor="end">{10.0**power:g}</text>')
    for count in sorted({t.nodes for t in timings if t.family == timings[0].family}):
        x = at(count, 10.0**low).split(",")[0]
        parts.append(f'<text x="{x}" y="350" text-anchor="middle">{count}</text>')
    families = list(dict.fromkeys(t.family for t in timings))
    for number, family in enumerate(families):
        own = sorted((t for t in timings if t.family == family), key=lambda t: t.nodes)
        points = " ".join(at(t.nodes, max(t.first_s, 1e-3)) for t in own)
        color = _COLORS[number % len(_COLORS)]
        parts.append(f'<polyline points="{points}" fill="none" stroke="{color}" stroke-width="2"/>')
        parts.append(f'<text x="565" y="{60 + 20 * number}" fill="{color}">{family}</text>')
    own = sorted((t for t in timings if t.family == families[0]), key=lambda t: t.nodes)
    scale = own[-1].first_s / (own[-1].nodes * math.log(own[-1].nodes))
    guide = " ".join(at(t.nodes, max(scale * t.nodes * math.log(t.nodes), 10.0**low)) for t in own)
    parts.append(f'<polyline points="{guide}" fill="none" stroke="#888" stroke-dasharray="4 4"/>')
    parts.append(f'<text x="565" y="{60 + 20 * len(families)}" fill="#888">n log n</text>')
    return "\n".join([*parts, "</svg>"])


def main(arguments: Sequence[str] | None = None) -> None:
    """The command."""
    parser = argparse.ArgumentParser(description="How search scales with nodes and candidates.")
    parser.add_argument("--nodes", type=int, default=3000)
    parser.add_argument("--family", action="append", choices=sorted(BLOCKS))
    parser.add_argument("--transitions", action="append", choices=("none", "domains"))
    parser.add_argument("-k", type=int, default=1, help="how many plans")
    parser.add_argument("--dijkstra", action="store_true", help="also the search of the RFC")
    parser.add_argument("--plot", type=Path, metavar="OUT.svg")
    parser.add_argument("--json", type=Path, metavar="OUT.json")
    chosen = parser.parse_args(arguments)
    sizes = [chosen.nodes]
    if chosen.plot:
        sizes = [max(12, chosen.nodes // 2**step) for step in range(_STEPS)][::-1]
    timings = [
        measure(family, nodes, kind, chosen.k, chosen.dijkstra)
        for kind in chosen.transitions or ["none"]
        for family in chosen.family or list(BLOCKS)
        for nodes in sizes
    ]
    print(table(timings))
    if chosen.plot:
        chosen.plot.write_text(plot(timings), encoding="utf-8")
    if chosen.json:
        chosen.json.write_text(json.dumps([asdict(t) for t in timings], indent=1), encoding="utf-8")
