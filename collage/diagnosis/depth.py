"""How an error grows through the network: the error of values at many depths, in one run of the target."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from collage.backends.contract import SubModel
from collage.diagnosis.trial import Trial
from collage.partitioner.emit.extract import extract
from collage.partitioner.graph.graph_index import GraphIndex
from collage.partitioner.graph.linear_order import linear_order
from collage.partitioner.graph.model import Model
from collage.partitioner.graph.sub_graph import SubGraph

_MOST_VALUES = 64
_LEAST_ERROR = 1e-9  # smaller ones are drawn as this
_WIDTH, _HEIGHT, _MARGIN, _FOOT = 900, 360, 64, 56


@dataclass(frozen=True)
class DepthError:
    """A value's error."""

    position: int  # of the node that makes it, in the order of execution
    node: str
    op: str
    value: str
    error: float


def tapped(model: Model, region: int, folder: Path) -> SubModel:
    """The region with values of many depths as outputs, its own included."""
    index = model.index
    order = linear_order(index, region)
    own = SubGraph(index, region).outputs
    made = [
        name
        for node in order
        for name in index.nodes[node].outputs
        if name and name not in own and _is_number(index, name)
    ]
    count = max(0, _MOST_VALUES - len(own))
    step = max(1, math.ceil(len(made) / count)) if count else len(made) + 1
    chosen = {*made[::step], *own}
    outputs = [n for node in order for n in index.nodes[node].outputs if n in chosen]
    extracted = extract(model, region, folder, outputs)
    return SubModel(extracted.path, extracted.inputs, extracted.outputs)


def depth_errors(index: GraphIndex, region: int, trial: Trial) -> list[DepthError]:
    """The errors of a trial of what `tapped` made, in the order of execution."""
    place = {node: p for p, node in enumerate(linear_order(index, region))}
    found = []
    for name, error in trial.errors.items():
        node = index.nodes[index.producer[name]]
        found.append(DepthError(place[node.index], node.name, node.op, name, error))
    return sorted(found, key=lambda entry: entry.position)


def draw_depth(
    errors: Sequence[DepthError], tolerance: float, culprits: Sequence[tuple[int, str]], count: int
) -> str:
    """Draw errors over depth as SVG.

    Args:
        errors: in the order of execution.
        tolerance: drawn as a line.
        culprits: position and name of each first node that is to be marked.
        count: how many nodes there are.
    """
    top = max([tolerance, *(e.error for e in errors if math.isfinite(e.error))]) * 10
    low, high = math.log10(_LEAST_ERROR), math.log10(max(top, _LEAST_ERROR * 10))

    def x(position: float) -> float:
        return _MARGIN + (_WIDTH - 2 * _MARGIN) * position / max(1, count - 1)

    def y(error: float) -> float:
        exponent = high if not math.isfinite(error) else math.log10(max(error, _LEAST_ERROR))
        share = (min(max(exponent, low), high) - low) / (high - low)
        return _HEIGHT - _FOOT - share * (_HEIGHT - _FOOT - _MARGIN)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{_HEIGHT}" '
        f'viewBox="0 0 {_WIDTH} {_HEIGHT}" font-family="sans-serif" font-size="12" role="img">',
        "<title>Error by depth</title>",
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="white"/>',
        f'<text x="{_MARGIN}" y="28" font-size="15" font-weight="bold">Error by depth</text>',
    ]
    for exponent in range(math.ceil(low), math.floor(high) + 1):
        line = y(10.0**exponent)
        parts.append(
            f'<line x1="{_MARGIN}" y1="{line:.1f}" x2="{_WIDTH - _MARGIN}" y2="{line:.1f}" stroke="#dddddd"/>'
        )
        parts.append(
            f'<text x="{_MARGIN - 8}" y="{line + 4:.1f}" text-anchor="end">1e{exponent}</text>'
        )
    bound = y(tolerance)
    parts.append(
        f'<line x1="{_MARGIN}" y1="{bound:.1f}" x2="{_WIDTH - _MARGIN}" y2="{bound:.1f}" '
        'stroke="#ee8866" stroke-dasharray="6 4"/>'
    )
    parts.append(
        f'<text x="{_WIDTH - _MARGIN}" y="{bound - 5:.1f}" text-anchor="end">tolerance {tolerance:g}</text>'
    )
    for position, name in culprits:
        parts.append(
            f'<line x1="{x(position):.1f}" y1="{_MARGIN}" x2="{x(position):.1f}" y2="{_HEIGHT - _FOOT}" '
            f'stroke="#bb3333"><title>{escape(name)}</title></line>'
        )
        parts.append(
            f'<text x="{x(position):.1f}" y="{_MARGIN - 6}" text-anchor="middle" fill="#bb3333">{escape(name)}</text>'
        )
    points = " ".join(f"{x(e.position):.1f},{y(e.error):.1f}" for e in errors)
    parts.append(f'<polyline points="{points}" fill="none" stroke="#4477aa" stroke-width="1.5"/>')
    parts += [
        f'<circle cx="{x(e.position):.1f}" cy="{y(e.error):.1f}" r="3" fill="#4477aa">'
        f"<title>{escape(f'{e.node} ({e.op}) {e.value}: {e.error:.3g}')}</title></circle>"
        for e in errors
    ]
    parts.append(
        f'<text x="{_WIDTH / 2}" y="{_HEIGHT - 16}" text-anchor="middle">node in the order of execution, 0 to {count - 1}</text>'
    )
    return "\n".join([*parts, "</svg>"]) + "\n"


def _is_number(index: GraphIndex, name: str) -> bool:
    spec = index.values[name]
    used = name in index.consumers or name in index.outputs
    return used and spec.dtype.startswith(("float", "bfloat", "double"))
