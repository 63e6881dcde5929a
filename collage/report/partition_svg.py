"""The partitioned graph as an SVG: one box per partition, colored by target.

Boxes stand in layers from top to bottom: a partition is one layer below the lowest of those it reads
from; a long graph goes on in a further column to the right. The bar at a box's foot is its time next to
that of the slowest one. Colors differ in lightness as well as in hue, so that they can be told apart in
gray.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

from collage.partitioner.candidate import Candidate, bits
from collage.partitioner.graph.graph_index import GraphIndex
from collage.partitioner.graph.sub_graph import SubGraph

_BOX_WIDTH, _BOX_HEIGHT = 290, 78
_GAP_X, _GAP_Y, _MARGIN = 30, 46, 24
_GAP_COLUMN = 90
_LEGEND_ROW, _TITLE = 22, 30
_COLORS = ("#4477aa", "#ee8866", "#44bb99", "#ffaabb", "#99ddff", "#bbcc33", "#aaaa00", "#dddddd")
_MAX_OPS = 3
_LEAST_WIDTH = 560
_WIDE = 1.5  # columns make the drawing about so many times as wide as it is high


@dataclass(frozen=True)
class PartitionTimes:
    """A partition's times in microseconds; None where not known."""

    measured_us: float | None
    predicted_us: float | None = None


def draw(index: GraphIndex, partitions: Sequence[Candidate], times: Sequence[PartitionTimes]) -> str:
    """Draw partitions (in execution order) as an SVG document."""
    edges = _edges(index, partitions)
    targets = list(dict.fromkeys(str(p.target) for p in partitions))
    colors = {target: _COLORS[i % len(_COLORS)] for i, target in enumerate(targets)}
    top = _TITLE + _LEGEND_ROW * len(targets) + 2 * _MARGIN
    columns = _columns(_layers(len(partitions), edges))
    places, width, height = _places(columns, top)
    most_us = max((t.measured_us or 0.0 for t in times), default=0.0)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="12" role="img">',
        "<title>Partitioned graph</title>",
        f'<rect width="{width}" height="{height}" fill="white"/>',
        '<defs><marker id="arrow" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="7" markerHeight="7" '
        'orient="auto"><path d="M0 0 8 4 0 8z" fill="#555"/></marker></defs>',
        *_legend(index, partitions, times, colors),
    ]
    parts += [_edge(places[a], places[b]) for a, b in edges]
    parts += [
        _box(places[i], i, index, partition, times[i], colors[str(partition.target)], most_us)
        for i, partition in enumerate(partitions)
    ]
    # Labels are small, so they are drawn over the boxes.
    parts += _labels(places, edges)
    return "\n".join([*parts, "</svg>"]) + "\n"


def _legend(
    index: GraphIndex,
    partitions: Sequence[Candidate],
    times: Sequence[PartitionTimes],
    colors: Mapping[str, str],
) -> list[str]:
    """What the whole is, and each target's share of it."""
    said = f"{len(partitions)} partitions of {len(index.nodes)} nodes{_total(times)}"
    found = [f'<text x="{_MARGIN}" y="{_MARGIN + 14}" font-size="15" font-weight="bold">{said}</text>']
    for row, (target, color) in enumerate(colors.items()):
        y = _MARGIN + _TITLE + _LEGEND_ROW * row
        own = [i for i, p in enumerate(partitions) if str(p.target) == target]
        nodes = sum(partitions[i].nodes.bit_count() for i in own)
        share = f"{target}: {len(own)} partitions, {nodes} nodes{_total([times[i] for i in own])}"
        found.append(f'<rect x="{_MARGIN}" y="{y}" width="14" height="14" fill="{color}"/>')
        found.append(f'<text x="{_MARGIN + 20}" y="{y + 12}">{escape(share)}</text>')
    return found


def _total(times: Sequence[PartitionTimes]) -> str:
    measured = [t.measured_us for t in times if t.measured_us is not None]
    return f", {sum(measured) / 1e3:.3f} ms" if len(measured) == len(times) and times else ""


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


def _columns(layers: Sequence[list[int]]) -> list[list[list[int]]]:
    """Layers broken into columns side by side."""
    best = [list(layers)]
    for count in range(2, len(layers) + 1):
        rows = -(-len(layers) // count)
        columns = [list(layers[i : i + rows]) for i in range(0, len(layers), rows)]
        width = sum(max(map(len, column)) * (_BOX_WIDTH + _GAP_X) + _GAP_COLUMN for column in columns)
        if width > _WIDE * rows * (_BOX_HEIGHT + _GAP_Y):
            break
        best = columns
    return best


def _places(
    columns: Sequence[Sequence[Sequence[int]]], top: int
) -> tuple[dict[int, tuple[int, int]], int, int]:
    """Where each box stands, and the size of the drawing."""
    places = {}
    left = _MARGIN
    for column in columns:
        widest = max((len(layer) for layer in column), default=1)
        for row, layer in enumerate(column):
            indent = (widest - len(layer)) * (_BOX_WIDTH + _GAP_X) // 2
            for number, i in enumerate(layer):
                x = left + indent + number * (_BOX_WIDTH + _GAP_X)
                places[i] = (x, top + row * (_BOX_HEIGHT + _GAP_Y))
        left += widest * (_BOX_WIDTH + _GAP_X) - _GAP_X + _GAP_COLUMN
    rows = max((len(column) for column in columns), default=0)
    height = top + rows * (_BOX_HEIGHT + _GAP_Y) - _GAP_Y + _MARGIN
    return places, max(left - _GAP_COLUMN + _MARGIN, _LEAST_WIDTH), height


def _is_below(start: tuple[int, int], end: tuple[int, int]) -> bool:
    return end[1] > start[1]


def _edge(start: tuple[int, int], end: tuple[int, int]) -> str:
    if _is_below(start, end):
        x1, y1 = start[0] + _BOX_WIDTH // 2, start[1] + _BOX_HEIGHT
        x2, y2 = end[0] + _BOX_WIDTH // 2, end[1]
        if x1 == x2 and y2 - y1 > _GAP_Y:
            # Around the boxes in between.
            side, bend = start[0] - _GAP_X // 2, _GAP_Y // 2
            path = f"M{x1} {y1} C{x1} {y1 + bend} {side} {y1} {side} {y1 + _BOX_HEIGHT} "
            path += f"V{y2 - _BOX_HEIGHT} C{side} {y2} {x2} {y2 - bend} {x2} {y2}"
        else:
            middle = (y1 + y2) // 2
            path = f"M{x1} {y1} C{x1} {middle} {x2} {middle} {x2} {y2}"
    else:
        x1, y1 = start[0] + _BOX_WIDTH, start[1] + _BOX_HEIGHT // 2
        x2, y2 = end[0], end[1] + _BOX_HEIGHT // 2
        middle = (x1 + x2) // 2
        path = f"M{x1} {y1} C{middle} {y1} {middle} {y2} {x2} {y2}"
    return f'<path d="{path}" fill="none" stroke="#555" stroke-opacity="0.7" marker-end="url(#arrow)"/>'


def _labels(places: Mapping[int, tuple[int, int]], edges: Mapping[tuple[int, int], str]) -> list[str]:
    """One label per reader, so that none lies on another."""
    found = []
    for reader in dict.fromkeys(after for _, after in edges):
        entering = {before: label for (before, after), label in edges.items() if after == reader}
        end = places[reader]
        if len(entering) == 1:
            ((before, label),) = entering.items()
            found.append(_label(places[before], end, label))
        else:
            counted = Counter(entering.values())
            text = "; ".join(f"{label} from {n}" if n > 1 else label for label, n in counted.items())
            found.append(_label((end[0], end[1] - 1), end, _short(text, 46)))
    return found


def _label(start: tuple[int, int], end: tuple[int, int], label: str) -> str:
    """The shape beside the edge, close to its reader, where edges lie apart."""
    if _is_below(start, end):
        x, y = end[0] + _BOX_WIDTH // 2 + 8, end[1] - 10
        if start[0] != end[0]:
            x += _BOX_WIDTH // 6 * (1 if start[0] > end[0] else -1)
    else:
        x, y = end[0] - _GAP_COLUMN + 4, end[1] + _BOX_HEIGHT // 2 - 6
    return (
        f'<text x="{x}" y="{y}" fill="#333" font-size="10" paint-order="stroke" stroke="white" '
        f'stroke-width="3">{escape(label)}</text>'
    )


def _box(
    place: tuple[int, int],
    position: int,
    index: GraphIndex,
    partition: Candidate,
    times: PartitionTimes,
    color: str,
    most_us: float,
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
    plural = "" if len(members) == 1 else "s"
    bar = round((_BOX_WIDTH - 20) * (times.measured_us or 0.0) / most_us) if most_us else 0
    title = _short(f"{position}: {partition.target}", 38)
    return (
        f'<g><title>{tip}</title><rect x="{x}" y="{y}" width="{_BOX_WIDTH}" height="{_BOX_HEIGHT}" rx="6" '
        f'fill="white"/><rect x="{x}" y="{y}" width="{_BOX_WIDTH}" height="{_BOX_HEIGHT}" rx="6" '
        f'fill="{color}" fill-opacity="0.3" stroke="{color}" stroke-width="2"/>'
        f'<text x="{x + 10}" y="{y + 18}" font-weight="bold">{escape(title)}</text>'
        f'<text x="{x + 10}" y="{y + 36}">{len(members)} node{plural}, {said}</text>'
        f'<text x="{x + 10}" y="{y + 53}" font-size="11">{escape(_short(names + more, 46))}</text>'
        f'<rect x="{x + 10}" y="{y + 62}" width="{_BOX_WIDTH - 20}" height="7" fill="white" '
        f'fill-opacity="0.7"/><rect x="{x + 10}" y="{y + 62}" width="{bar}" height="7" fill="{color}"/></g>'
    )


def _short(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"
