"""Small changes to a plan: shift a border, merge or split partitions, change a target or its options, or fork branches.

Terms: the *line* is the model's nodes branch by branch (`collage.partitioner.graph.linear_order`). A
move acts at a position on it, which stays valid however the plan changes. Two partitions are
*neighbors* when one reads a result of the other; their *border* is where the reader's first node is on
the line. The two halves of a *fork* get half of the threads each.

Invariants: `apply` is pure; its result covers the graph, can be run (`plan_check`), gives no node to a
target that refuses it, and differs from its argument.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Literal, get_args

from collage.backends.options import THREADS
from collage.backends.registry import backend_of
from collage.partitioner.candidate import Candidate, Plan, bits
from collage.partitioner.graph.graph_index import GraphIndex
from collage.partitioner.graph.linear_order import Line, line, linear_order
from collage.partitioner.graph.plan_check import PlanError, check_plan, execution_order, quotient
from collage.partitioner.rules.candidate_set import CandidateSet
from collage.partitioner.target import Target
from collage.refinement.branches import heavy_arms, joins, shared_out

Kind = Literal["border", "merge", "split", "retarget", "option", "fork"]
KINDS: tuple[Kind, ...] = get_args(Kind)
RULE = "local move"
LANES = 2
_NONE = Target("none")


@dataclass(frozen=True)
class Move:
    """One change."""

    kind: Kind  # what is done
    where: int  # position on the line; the nearest border, pair, partition or cut is meant
    # signed and not zero. `border`: so many steps the border moves. `split`: from the cut nearest to
    # `where` that many cuts forwards or back go to `target`.
    step: int = 0
    unit: Literal["node", "cut"] = "cut"  # whether a border moves node by node or from cut to cut
    target: Target = _NONE  # of the merged, split-off or retargeted partition
    option: tuple[str, str] = ("", "")  # name and value for the partition's target


class LocalMoves:
    """Applies moves to plans of one model; `kinds` are those that the model and targets leave room for.

    Args:
        candidates: has the refusals of targets.
        eligible: whether a plan keeps the caller's constraints.
        tunable: per target the values that its open options may take.
        threads: of one call; a fork needs at least two.
        kinds: the moves to make.
    """

    def __init__(
        self,
        index: GraphIndex,
        candidates: CandidateSet,
        targets: Sequence[Target],
        eligible: Callable[[Plan], bool] = lambda plan: True,
        tunable: Mapping[Target, Mapping[str, Sequence[str]]] = MappingProxyType({}),
        threads: int = 1,
        kinds: Sequence[Kind] = KINDS,
    ) -> None:
        self._index = index
        self._eligible = eligible
        self.targets = tuple(targets)
        self.length = len(index.nodes)
        self._tunable = tunable
        self._threads = threads
        everywhere = {_unmixed(t, index.all_nodes)[0]: t for t in self.targets}
        self._origins = everywhere | {t: t for t in self.targets}
        for target, options in tunable.items():
            for name, values in options.items():
                for value in values:  # plans may have such variants at the start
                    self._origins.setdefault(target.with_options(**{name: value}), target)
        self.settings = sorted({(n, v) for o in tunable.values() for n, vs in o.items() for v in vs})
        self._joins = joins(index, index.all_nodes) if threads >= LANES else []
        room: dict[Kind, object] = {"option": self.settings, "fork": self._joins}
        self.kinds = tuple(kind for kind in kinds if room.get(kind, True))
        order = linear_order(index, index.all_nodes)
        self._position = {node: position for position, node in enumerate(order)}
        self._taken = dict.fromkeys(self.targets, index.all_nodes)
        for node, target in candidates.refusals:
            if target in self._taken:
                self._taken[target] &= ~(1 << node)
        self._lines: dict[int, Line] = {}

    def apply(self, plan: Plan, move: Move) -> Plan | None:
        """The plan after a move, or None where the move cannot be made."""
        # A mixed target names nodes by their places in its partition, which a move shifts.
        parts = [(p.nodes, _unmixed(p.target, p.nodes)[0]) for p in plan.partitions]
        others = sum(_unmixed(p.target, p.nodes)[1] for p in plan.partitions)
        made = {
            "border": self._shift_border,
            "merge": self._merge,
            "split": self._split,
            "retarget": self._retarget,
            "option": self._set_option,
            "fork": self._fork,
        }[move.kind](parts, move)
        if made is None or set(made) == set(parts) or not all(self._takes(n, t) for n, t in made):
            return None
        lanes = LANES if move.kind == "fork" else plan.lanes
        made = [(nodes, self._mixed(target, nodes, others)) for nodes, target in made]
        changed = self._in_order(plan, made, lanes)
        return changed if changed is not None and self._eligible(changed) else None

    def settable(self, plan: Plan) -> list[Move]:
        """Moves that set an option, the largest partition's first; none without that kind."""
        found: list[Move] = []
        if "option" not in self.kinds:
            return found
        for part in sorted(plan.partitions, key=lambda p: -p.nodes.bit_count()):
            origin = self._origins[_unmixed(part.target, part.nodes)[0]]
            where = min(self._position[node] for node in bits(part.nodes))
            for name, values in sorted(self._tunable.get(origin, {}).items()):
                given = part.target.option(name, "")
                found += [Move("option", where, option=(name, v)) for v in values if v != given]
        return found

    def _mixed(self, target: Target, nodes: int, others: int) -> Target:
        """A target for nodes of which others are computed otherwise; the unprepared one where those are all."""
        backend = backend_of(target)
        plain = backend.unprepared(target)
        if plain == target:
            return target
        mixed = backend.mix(target, nodes, others)
        refused = backend.refuse_region(self._index, nodes, mixed)
        return plain if refused is not None and plain in self._origins else mixed

    def _takes(self, nodes: int, target: Target) -> bool:
        origin = self._origins.get(target)
        return bool(nodes) and origin is not None and not nodes & ~self._taken[origin]

    def _in_order(self, plan: Plan, parts: Sequence[tuple[int, Target]], lanes: int) -> Plan | None:
        kept = {(p.nodes, p.target): p for p in plan.partitions}
        try:
            order = execution_order(self._index, [nodes for nodes, _ in parts])
            ordered = [parts[i] for i in order]
            made = [kept.get((n, t), Candidate(n, t, RULE)) for n, t in ordered]
            changed = Plan(tuple(made), lanes)
            check_plan(self._index, changed)
        except PlanError:
            return None
        if lanes > 1 and not self._has_wave(changed):
            return replace(changed, lanes=1)
        return changed

    def _has_wave(self, plan: Plan) -> bool:
        """True when two partitions of a plan could run at once."""
        readers = quotient(self._index, [p.nodes for p in plan.partitions])
        depth = [0] * len(readers)
        for maker, found in enumerate(readers):
            for reader in found:
                depth[reader] = max(depth[reader], depth[maker] + 1)
        return len(set(depth)) < len(depth)

    def _shift_border(
        self, parts: list[tuple[int, Target]], move: Move
    ) -> list[tuple[int, Target]] | None:
        """Forwards the maker takes the reader's first nodes; back, the reader the maker's last."""
        pair = self._pair(parts, move.where)
        if pair is None:
            return None
        giver, taker = pair[::-1] if move.step > 0 else pair
        nodes = parts[giver][0]
        laid = self._line(nodes)
        count = len(laid.order)
        stops = range(count + 1) if move.unit == "node" else laid.cuts
        if abs(move.step) >= len(stops) - 1:  # all of them would be a merge
            return None
        stop = stops[move.step] if move.step > 0 else stops[move.step - 1]
        given = laid.run(0, stop) if move.step > 0 else laid.run(stop, count)
        made = list(parts)
        made[giver] = (nodes & ~given, parts[giver][1])
        made[taker] = (parts[taker][0] | given, parts[taker][1])
        return made

    def _merge(self, parts: list[tuple[int, Target]], move: Move) -> list[tuple[int, Target]] | None:
        pair = self._pair(parts, move.where)
        if pair is None:
            return None
        rest = [part for i, part in enumerate(parts) if i not in pair]
        return [*rest, (parts[pair[0]][0] | parts[pair[1]][0], move.target)]

    def _split(self, parts: list[tuple[int, Target]], move: Move) -> list[tuple[int, Target]] | None:
        """Give a run between two cuts to a target; the rest keeps its own."""
        nodes, target = self._holder(parts, move.where)
        laid = self._line(nodes)
        last = len(laid.cuts) - 1
        near = min(range(last + 1), key=lambda i: (abs(self._at(laid, i) - move.where), i))
        low, high = sorted((near, min(max(near + move.step, 0), last)))
        pieces = [
            (laid.run(laid.cuts[a], laid.cuts[b]), owner)
            for a, b, owner in ((0, low, target), (low, high, move.target), (high, last, target))
            if a < b
        ]
        if len(pieces) < 2 or low == high:
            return None
        return [*(part for part in parts if part[0] != nodes), *pieces]

    def _at(self, laid: Line, cut: int) -> int:
        """The position on the model's line of a cut of a partition's line."""
        at = laid.cuts[cut]
        return self._position[laid.order[at]] if at < len(laid.order) else self.length

    def _retarget(self, parts: list[tuple[int, Target]], move: Move) -> list[tuple[int, Target]] | None:
        nodes, _ = self._holder(parts, move.where)
        return [(own, move.target if own == nodes else target) for own, target in parts]

    def _set_option(
        self, parts: list[tuple[int, Target]], move: Move
    ) -> list[tuple[int, Target]] | None:
        """Set an option, or leave it open again where it has the value."""
        nodes, target = self._holder(parts, move.where)
        name, value = move.option
        if value not in self._tunable.get(self._origins[target], {}).get(name, ()):
            return None
        options = dict(target.options)
        if options.get(name) == value:
            del options[name]
        else:
            options[name] = value
        variant = self._variant(target, options)
        return [(own, variant if own == nodes else other) for own, other in parts]

    def _variant(self, target: Target, options: Mapping[str, str]) -> Target:
        variant = Target(target.backend, tuple(sorted(options.items())))
        self._origins.setdefault(variant, self._origins[target])
        return variant

    def _fork(self, parts: list[tuple[int, Target]], move: Move) -> list[tuple[int, Target]] | None:
        """Cut the arms of the nearest join out of its partition, in two sets."""
        if not self._joins:
            return None
        join = min(self._joins, key=lambda node: abs(self._position[node] - move.where))
        nodes, target = next(part for part in parts if part[0] >> join & 1)
        offered = self._tunable.get(self._origins[target], {}).get(THREADS.name, ())
        fitting = [value for value in offered if int(value) <= self._threads // LANES]
        groups = shared_out(heavy_arms(self._index, nodes, join), LANES)
        if not fitting or len(groups) < LANES:
            return None
        half = self._variant(target, {**dict(target.options), THREADS.name: max(fitting, key=int)})
        forked = sum(groups)
        after = 0
        for node in bits(forked):
            after |= self._index.descendants[node]
        after &= nodes & ~forked
        before = nodes & ~forked & ~after
        rest = [(piece, target) for piece in (before, after) if piece]
        return [*(p for p in parts if p[0] != nodes), *((group, half) for group in groups), *rest]

    def _holder(self, parts: Sequence[tuple[int, Target]], where: int) -> tuple[int, Target]:
        def distance(part: tuple[int, Target]) -> int:
            return min(abs(self._position[node] - where) for node in bits(part[0]))

        return min(parts, key=distance)

    def _pair(self, parts: Sequence[tuple[int, Target]], where: int) -> tuple[int, int] | None:
        """Maker and reader at the border nearest to a position."""
        readers = quotient(self._index, [nodes for nodes, _ in parts])
        first = [min(self._position[node] for node in bits(nodes)) for nodes, _ in parts]
        pairs = [(maker, reader) for maker, found in enumerate(readers) for reader in found]
        return min(pairs, key=lambda p: (abs(first[p[1]] - where), p), default=None)

    def _line(self, nodes: int) -> Line:
        if nodes not in self._lines:
            self._lines[nodes] = line(self._index, nodes)
        return self._lines[nodes]


def _unmixed(target: Target, nodes: int) -> tuple[Target, int]:
    return backend_of(target).unmix(target, nodes)
