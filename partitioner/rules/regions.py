"""Large regions: blocks at every scale for targets that compile whole graphs.

Of the nodes that a target takes, it is offered:

* *maximal* regions, as a runtime's own greedy partitioner would give: nodes are taken in turns (all
  that are ready and taken, then all that are ready and not taken, …), from the inputs on and from the
  outputs back;
* *component*: the connected parts of those;
* *interval*: everything between two cuts of such a part (`graph.linear_order`): all when they are few,
  else short ones everywhere and long ones on an ever coarser grid, with prefixes and suffixes;
* *branch*: what one input of a joining node needs and no other does, what one reader of a forking node
  feeds and no other does, and the runs inside such a branch when it is a plain chain.

Invariants: every region is convex and holds only nodes that the target takes; there are at most about
`RegionRule.max_intervals` intervals, in time about linear in nodes plus regions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from collage.partitioner.candidate import bits
from collage.partitioner.graph.graph_index import GraphIndex
from collage.partitioner.graph.linear_order import Line, line
from collage.partitioner.rules.proposal import Proposals, Scope, distinct

_CHAIN = 12  # longest plain branch of which every run is offered
_REACH = 4  # a grid is made coarser rather than offer fewer lengths than this from each of its points
# Prefixes and suffixes of a thinned line: at so many cuts near each end, and so many in between.
_ENDS = 24


@dataclass(frozen=True)
class RegionRule:
    """Maximal supported regions, the whole graph when it is one, intervals and branches."""

    # about how many intervals are offered; 0 stands for the greater of 2,000 and twice the number of
    # nodes
    max_intervals: int = 0
    name: str = "region"

    def candidates(self, scope: Scope) -> Proposals:
        index = scope.index
        found = [
            *((nodes, "maximal") for nodes in maximal_regions(index, scope.supported)),
            *((nodes, "component") for nodes in self._components(index, scope.supported)),
        ]
        parts = list(dict.fromkeys(self._components(index, scope.supported)))
        limit = self.max_intervals or max(2000, 2 * len(index.nodes))
        size = sum(nodes.bit_count() for nodes in parts) or 1
        thinned = 0
        for part in parts:
            share = max(16, limit * part.bit_count() // size)
            laid = line(index, part)
            pairs = _pairs(laid, share)
            thinned += len(laid.cuts) * (len(laid.cuts) - 1) // 2 > len(pairs)
            found += [(laid.run(start, end), "interval") for start, end in pairs]
            found += [(nodes, "branch") for nodes in branches(index, part)]
        proposals = distinct((scope.proposal(nodes, rule) for nodes, rule in found), self.name)
        note = f"{self.name}: intervals of {thinned} large regions were thinned to about {limit}"
        return Proposals(proposals, (note,) if thinned else ())

    @staticmethod
    def _components(index: GraphIndex, supported: int) -> Iterator[int]:
        for nodes in maximal_regions(index, supported):
            yield from components(index, nodes)


def maximal_regions(index: GraphIndex, supported: int) -> list[int]:
    """What greedy partitioning gives a target: turns from the inputs on, then from the outputs back."""
    forward = turns(index, supported)
    backward = _turns(index.successors, index.predecessors, supported, len(index.nodes))
    return list(dict.fromkeys((*forward, *reversed(backward))))


def turns(index: GraphIndex, supported: int) -> list[int]:
    """The supported turns of greedy partitioning from the inputs on, in the order they can run."""
    return _turns(index.predecessors, index.successors, supported, len(index.nodes))


def _turns(before: Sequence[int], after: Sequence[int], supported: int, count: int) -> list[int]:
    waiting = [mask.bit_count() for mask in before]
    ready: tuple[list[int], list[int]] = ([], [])  # refused nodes, taken nodes
    for i in range(count):
        if not waiting[i]:
            ready[supported >> i & 1].append(i)
    found = []
    taken = bool(ready[1])
    while ready[taken]:
        turn = 0
        while ready[taken]:
            node = ready[taken].pop()
            turn |= 1 << node
            for i in bits(after[node]):
                waiting[i] -= 1
                if not waiting[i]:
                    ready[supported >> i & 1].append(i)
        if taken:
            found.append(turn)
        taken = not taken
    return found


def components(index: GraphIndex, nodes: int) -> list[int]:
    """The connected parts of a set, by their first nodes."""
    found = []
    while nodes:
        part, frontier = 0, nodes & -nodes
        while frontier:
            part |= frontier
            touched = 0
            for i in bits(frontier):
                touched |= index.predecessors[i] | index.successors[i]
            frontier = touched & nodes & ~part
        found.append(part)
        nodes &= ~part
    return found


def branches(index: GraphIndex, nodes: int) -> list[int]:
    """Sets of at least two nodes that only one side of a join or a fork needs.

    What one node's ancestors have over another's is convex, and so is its part inside a convex set; the
    same holds for descendants.
    """
    found: dict[int, None] = {}
    sides = ((index.predecessors, index.ancestors), (index.successors, index.descendants))
    for node in bits(nodes):
        for neighbors, reach in sides:
            near = bits(neighbors[node] & nodes)
            if len(near) < 2:
                continue
            cones = [reach[i] | 1 << i for i in near]
            shared = [0]
            for cone in reversed(cones[1:]):
                shared.append(shared[-1] | cone)
            seen = 0
            for cone, later in zip(cones, reversed(shared), strict=True):
                own = cone & ~seen & ~later & nodes
                seen |= cone
                if own.bit_count() >= 2:
                    found[own] = None
    for branch in list(found):
        found.update(dict.fromkeys(_chain_runs(index, branch)))
    return list(found)


def _chain_runs(index: GraphIndex, nodes: int) -> Iterator[int]:
    """Every run of two or more nodes of a short plain chain; nothing for other sets."""
    chain = bits(nodes)
    if len(chain) > _CHAIN:
        return
    for i, node in enumerate(chain[1:], 1):
        if index.predecessors[node] & nodes != 1 << chain[i - 1]:
            return
    for start in range(len(chain)):
        for end in range(start + 2, len(chain) + 1):
            yield sum(1 << i for i in chain[start:end])


def _pairs(laid: Line, limit: int) -> list[tuple[int, int]]:
    """Positions (start, end) of the intervals: all of them, or about `limit` at every scale."""
    if len(laid.cuts) * (len(laid.cuts) - 1) // 2 <= limit:
        return [(a, b) for i, a in enumerate(laid.cuts) for b in laid.cuts[i + 1 :]]
    if len(laid.waists) < len(laid.cuts) and len(laid.waists) > 2:
        both = (*_thinned(laid.waists, limit // 2), *_thinned(laid.cuts, limit // 2))
        return list(dict.fromkeys(both))
    return _thinned(laid.cuts, limit)


def _thinned(cuts: Sequence[int], limit: int) -> list[tuple[int, int]]:
    """Short intervals everywhere, long ones on a coarser and coarser grid, prefixes and suffixes."""
    count = len(cuts) - 1
    if count * (count + 1) // 2 <= limit:
        return [(a, b) for i, a in enumerate(cuts) for b in cuts[i + 1 :]]
    ends = {*range(1, _ENDS + 1), *range(count - _ENDS, count), *range(0, count, -(-count // _ENDS))}
    inner = [at for at in sorted(ends) if 0 < at < count]
    outer = [pair for at in inner for pair in ((0, at), (at, count))]
    stride = 1
    while len(grid := _grid(count, stride, _REACH)) > limit:
        stride *= 2
    low, high = _REACH, count
    while high - low > 1:
        middle = (low + high) // 2
        wider = _grid(count, stride, middle)
        if len(wider) <= limit:
            low, grid = middle, wider
        else:
            high = middle
    return [(cuts[a], cuts[b]) for a, b in dict.fromkeys((*outer, *grid))]


def _grid(count: int, stride: int, reach: int) -> dict[tuple[int, int], None]:
    """Intervals of 1 to `reach` steps from everywhere, with steps of `stride` and its doubles."""
    found: dict[tuple[int, int], None] = {}
    while stride < count:
        for start in range(0, count, stride):
            last = min(start + reach * stride, count)
            found.update(dict.fromkeys((start, end) for end in range(start + stride, last + 1, stride)))
        stride *= 2
    return found
