"""Named patterns: small graphs that a runtime computes as one kernel, found in a model.

Terms: a pattern is a Python function over onnxscript's pattern builder; a *match* is a set of nodes
(bitset). Matches may overlap: the search chooses, and nothing is rewritten.

This is the one file that knows onnxscript's matcher, which has limits:

* it finds at most one match per root, so patterns are plain (no `OrValue`), with one name per variant,
  and every combination of further roots is asked for here;
* a check inside an alternative may never run, so predicates stand in `check` alone;
* it may match one node twice, and sets that are not convex: both are refused here;
* building and matching keep state: each call of `matches` has its own matcher, built under a lock.

Invariants of a match: as many distinct nodes as the pattern has, convex, accepted by `check`.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from collage.partitioner.graph.graph_index import GraphIndex

if TYPE_CHECKING:
    import onnx_ir as ir

Check = Callable[[GraphIndex, tuple[int, ...]], str | None]

_BUILDING = threading.Lock()


class IndexedModel(Protocol):
    """What matching needs of `collage.partitioner.graph.model.Model`."""

    @property
    def ir(self) -> ir.Model: ...

    @property
    def index(self) -> GraphIndex: ...


@dataclass(frozen=True)
class Pattern:
    """A named pattern."""

    name: str  # unique among the patterns of a target, e.g. `conv_relu`.
    # a pattern function as onnxscript has them: its first argument builds operators, the others are
    # variables, e.g. `lambda op, x, w: op.Relu(op.Conv(x, w))`. Attributes that are not mentioned may
    # have any value; inputs that are not mentioned must be absent unless the operator is given
    # `_allow_other_inputs=True`.
    build: Callable[..., Any]
    # gets the index and the matched nodes in the order in which `build` makes them; returns why the
    # match is refused, or None
    check: Check | None = None

    def matches(self, model: IndexedModel) -> list[int]:
        """Every match in the model's main graph, as bitsets, each once.

        The roots of a match lie at most as many steps apart as the pattern has nodes.
        """
        # Who loads an artifact knows patterns by name, and finds none.
        from onnxscript.rewriter import pattern as onnxscript_pattern

        with _BUILDING:
            matcher = onnxscript_pattern.Pattern(self.build, name=self.name)
        size = matcher._target_pattern.num_nodes()
        graph = model.ir.graph
        position = {node: i for i, node in enumerate(graph)}
        found: dict[int, None] = {}
        for root, others in _root_choices(model, matcher._target_pattern.output_nodes, size):
            match = matcher.match(
                model.ir, _Window(graph, others), root, check_nodes_are_removable=False
            )
            if not match:
                continue
            bound = match.node_bindings
            members = tuple(position[bound[p]] for p in matcher._target_pattern if p in bound)
            mask = sum(1 << i for i in set(members))
            if len(members) != size or mask.bit_count() != size or mask in found:
                continue
            if not model.index.is_convex(mask):
                continue
            if self.check is None or self.check(model.index, members) is None:
                found[mask] = None
        return list(found)


class _Window:
    """A graph of which the matcher sees only the given nodes when it looks for further roots."""

    def __init__(self, graph: ir.Graph, nodes: Sequence[ir.Node]) -> None:
        self.graph = graph
        self._nodes = nodes

    def __iter__(self) -> Iterator[ir.Node]:
        return iter(self._nodes)


def _root_choices(
    model: IndexedModel, roots: Sequence[Any], size: int
) -> Iterator[tuple[ir.Node, tuple[ir.Node, ...]]]:
    """Nodes that may be the pattern's first root, each with every choice of the further ones."""
    by_op: dict[object, list[int]] = {}
    nodes = list(model.ir.graph)
    for i, node in enumerate(nodes):
        by_op.setdefault(node.op_identifier(), []).append(i)

    def possible(root: Any) -> Sequence[int]:
        op = root.op_identifier()
        return range(len(nodes)) if op is None else by_op.get(op, [])

    for first in possible(roots[0]):
        near = _near(model.index, first, size) if len(roots) > 1 else 0
        others = [[i for i in possible(root) if near >> i & 1] for root in roots[1:]]
        for choice in itertools.product(*others):
            yield nodes[first], tuple(nodes[i] for i in choice)


def _near(index: GraphIndex, node: int, steps: int) -> int:
    """Nodes reached from a node in so many steps along shared values, in any direction."""
    reached = frontier = 1 << node
    for _ in range(steps):
        touched = 0
        for i in range(frontier.bit_length()):
            if frontier >> i & 1:
                touched |= index.predecessors[i]
                for name in (*index.nodes[i].used, *index.nodes[i].outputs):
                    touched |= index.consumers.get(name, 0)
        frontier = touched & ~reached
        reached |= touched
    return reached
