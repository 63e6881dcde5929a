"""The partitioned graph as an SVG picture: one box per partition, coloured by target.

Boxes stand in layers from top to bottom: a partition is one layer below the lowest of those it reads
from. A box says its target, how many nodes it has, which operators these are, and its time. Colours
differ in lightness as well as in hue, so that they can be told apart in grey.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from partitioner.candidate import Candidate, bits
from partitioner.graph_index import GraphIndex
from partitioner.sub_graph import SubGraph

_BOX_WIDTH, _BOX_HEIGHT = 250, 74
_GAP_X, _GAP_Y, _MARGIN = 30, 46, 24
_COLOURS = ("#4477aa", "#ee8866", "#44bb99", "#ffaabb", "#99ddff", "#bbcc33", "#aaaa00", "#dddddd")
_MAX_OPS = 3


@dataclass(frozen=True)
class PartitionTimes:
    """What a box says about time, in microseconds; None where it is not known."""

    measured_us: float | None
    predicted_us: float | None = None


def draw(index: GraphIndex, partitions: Sequence[Candidate], times: Sequence[PartitionTimes]) -> str:
    """Draw partitions (in execution order) as an SVG document."""
    edges = _edges(index, partitions)
    layers = _layers(len(partitions), edges)
    places = _places(layers)
    width = 2 * _MARGIN + max(len(layer) for layer in layers) * (_BOX_WIDTH + _GAP_X) - _GAP_X
    targets = list(dict.fromkeys(str(p.target) for p in partitions))
    colours = {target: _COLOURS[i % len(_COLOURS)] for i, target in enumerate(targets)}
    legend_y = 2 * _MARGIN + len(layers) * (_BOX_HEIGHT + _GAP_Y)
    height = legend_y + 22 * len(targets)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="12" role="img">',
        "<title>Partitioned graph</title>",
        f'<rect width="{width}" height="{height}" fill="white"/>',
        '<defs><marker id="arrow" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="7" markerHeight="7" '
        'orient="auto"><path d="M0 0 8 4 0 8z" fill="#555"/></marker></defs>',
    ]
    parts += [_edge(places[a], places[b], label) for (a, b), label in edges.items()]
    parts += [
        _box(places[i], i, index, partition, times[i], colours[str(partition.target)])
        for i, partition in enumerate(partitions)
    ]
    for row, target in enumerate(targets):
        y = legend_y + 22 * row - _MARGIN
        parts.append(f'<rect x="{_MARGIN}" y="{y}" width="14" height="14" fill="{colours[target]}"/>')
        parts.append(f'<text x="{_MARGIN + 20}" y="{y + 12}">{escape(target)}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def _edges(index: GraphIndex, partitions: Sequence[Candidate]) -> dict[tuple[int, int], str]:
    """Which partition reads from which, with the shapes of what crosses."""
    maker = {}
    for position, partition in enumerate(partitions):
        for name in SubGraph(index, partition.nodes).outputs:
            maker[name] = position
    crossing: dict[tuple[int, int], list[str]] = {}
    for position, partition in enumerate(partitions):
        for name in SubGraph(index, partition.nodes).inputs:
            if name in maker:
                shape = index.values[name].shape
                text = (
                    "×".join("?" if d is None else str(d) for d in shape) if shape is not None else "?"
                )
                crossing.setdefault((maker[name], position), []).append(text or "scalar")
    return {
        edge: ", ".join(texts[:2]) + (" …" if len(texts) > 2 else "")
        for edge, texts in crossing.items()
    }


def _layers(count: int, edges: dict[tuple[int, int], str]) -> list[list[int]]:
    depth = [0] * count
    for before, after in sorted(edges):
        depth[after] = max(depth[after], depth[before] + 1)
    return [[i for i in range(count) if depth[i] == d] for d in range(max(depth, default=0) + 1)]


def _places(layers: Sequence[Sequence[int]]) -> dict[int, tuple[int, int]]:
    widest = max(len(layer) for layer in layers)
    places = {}
    for row, layer in enumerate(layers):
        indent = (widest - len(layer)) * (_BOX_WIDTH + _GAP_X) // 2
        for column, i in enumerate(layer):
            x = _MARGIN + indent + column * (_BOX_WIDTH + _GAP_X)
            places[i] = (x, _MARGIN + row * (_BOX_HEIGHT + _GAP_Y))
    return places


def _edge(start: tuple[int, int], end: tuple[int, int], label: str) -> str:
    x1, y1 = start[0] + _BOX_WIDTH // 2, start[1] + _BOX_HEIGHT
    x2, y2 = end[0] + _BOX_WIDTH // 2, end[1]
    middle = (y1 + y2) // 2
    path = f"M{x1} {y1} C{x1} {middle} {x2} {middle} {x2} {y2}"
    return (
        f'<path d="{path}" fill="none" stroke="#555" marker-end="url(#arrow)"/>'
        f'<text x="{(x1 + x2) // 2 + 6}" y="{middle + 4}" fill="#333" font-size="11">{escape(label)}</text>'
    )


def _box(
    place: tuple[int, int],
    position: int,
    index: GraphIndex,
    partition: Candidate,
    times: PartitionTimes,
    colour: str,
) -> str:
    x, y = place
    members = bits(partition.nodes)
    ops = Counter(index.nodes[i].op for i in members)
    names = ", ".join(f"{n}× {op}" for op, n in ops.most_common(_MAX_OPS))
    more = " …" if len(ops) > _MAX_OPS else ""
    said = "not timed" if times.measured_us is None else f"{times.measured_us / 1e3:.3f} ms"
    if times.predicted_us is not None:
        said += f" (predicted {times.predicted_us / 1e3:.3f})"
    tip = escape(f"{index.nodes[members[0]].name} … {index.nodes[members[-1]].name}")
    return (
        f'<g><title>{tip}</title><rect x="{x}" y="{y}" width="{_BOX_WIDTH}" height="{_BOX_HEIGHT}" rx="6" '
        f'fill="{colour}" fill-opacity="0.35" stroke="{colour}" stroke-width="2"/>'
        f'<text x="{x + 10}" y="{y + 18}" font-weight="bold">{position}: {escape(str(partition.target))}</text>'
        f'<text x="{x + 10}" y="{y + 36}">{len(members)} nodes, {said}</text>'
        f'<text x="{x + 10}" y="{y + 54}" font-size="11">{escape(names)}{more}</text></g>'
    )
