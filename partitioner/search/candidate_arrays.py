"""Candidates as arrays: the part of a search that does not depend on costs.

Terms: nodes stand in a *line*, a topological order. A candidate is a few *runs* of that line, most
often one. To cover every node once is to cover the first one and to end, at every later position, as
many runs as begin there: so a candidate has two entries per run in the program.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from collage.partitioner.candidate import Candidate, bits
from collage.partitioner.graph.graph_index import GraphIndex
from collage.partitioner.graph.linear_order import linear_order
from collage.partitioner.search.milp import Ints
from collage.partitioner.search.transition import Crossing, crossings
from collage.partitioner.target import Target

Bools = npt.NDArray[np.bool_]

_CHUNK = 4096


@dataclass(frozen=True, eq=False)
class CandidateArrays:
    """The candidates of one graph."""

    index: GraphIndex
    candidates: tuple[Candidate, ...]  # in the order in which costs are given
    line: Ints  # node at each position
    position: Ints  # position of each node
    run_owner: Ints  # per run the candidate; runs of one candidate stand together and ascend
    run_start: Ints  # per run its first position
    run_end: Ints  # per run the position after its last

    @classmethod
    def build(cls, index: GraphIndex, candidates: Sequence[Candidate]) -> CandidateArrays:
        """Lay candidates out as runs of the model's order or of `linear_order`, whichever gives fewer."""
        line = position = own = np.arange(len(index.nodes))
        runs = _own_runs(candidates)
        if len(runs.start) > len(candidates):
            other = np.array(linear_order(index, index.all_nodes), np.int64)
            place = np.empty_like(own)
            place[other] = own
            moved = _moved(runs, place)
            if len(moved.start) < len(runs.start):
                line, position, runs = other, place, moved
        return cls(
            index=index,
            candidates=tuple(candidates),
            line=line,
            position=position,
            run_owner=runs.owner,
            run_start=runs.start,
            run_end=runs.end,
        )

    @property
    def node_count(self) -> int:
        """Number of nodes."""
        return len(self.line)

    @cached_property
    def packed(self) -> npt.NDArray[np.uint8]:
        """Per candidate its nodes as bits, eight to an octet, the first one lowest."""
        width = (self.node_count + 7) // 8
        octets = b"".join(c.nodes.to_bytes(width, "little") for c in self.candidates)
        return np.frombuffer(octets, np.uint8).reshape(len(self.candidates), width)

    @cached_property
    def targets(self) -> tuple[Target, ...]:
        """The distinct targets, in order of first use."""
        return tuple(dict.fromkeys(c.target for c in self.candidates))

    @cached_property
    def target_of(self) -> Ints:
        """Per candidate the position of its target in `targets`."""
        number = {target: i for i, target in enumerate(self.targets)}
        return np.array([number[c.target] for c in self.candidates], np.int64)

    @cached_property
    def group_of(self) -> Ints:
        """Per candidate the number of its set of nodes."""
        number: dict[int, int] = {}
        return np.array([number.setdefault(c.nodes, len(number)) for c in self.candidates], np.int64)

    @cached_property
    def run_count(self) -> Ints:
        """Per candidate how many runs it has."""
        return np.bincount(self.run_owner, minlength=len(self.candidates))

    @cached_property
    def crossings(self) -> tuple[Crossing, ...]:
        """Every value that may cross a border."""
        return tuple(crossings(self.index))

    @cached_property
    def input_count(self) -> Ints:
        """Per candidate how many distinct values it reads that nodes outside make."""
        counts = np.zeros(len(self.candidates), np.int64)
        made = [value for value in self.crossings if value.readers and value.producer is not None]
        for first in range(0, len(self.candidates), _CHUNK):
            part = slice(first, first + _CHUNK)
            octets = np.unpackbits(self.packed[part], axis=1, count=self.node_count, bitorder="little")
            inside = np.ascontiguousarray(octets.T).view(np.bool_)
            for value in made:
                counts[part] += inside[list(value.readers)].any(axis=0) & ~inside[value.producer]
        return counts

    def uncovered(self, active: Ints) -> list[int]:
        """The nodes that none of some candidates holds, ascending."""
        kept = np.zeros(len(self.candidates), np.bool_)
        kept[active] = True
        runs = kept[self.run_owner]
        change = np.bincount(self.run_start[runs], minlength=self.node_count + 1)
        change -= np.bincount(self.run_end[runs], minlength=self.node_count + 1)
        return sorted(self.line[np.cumsum(change)[:-1] == 0].tolist())

    def holds(self, *nodes: int) -> Bools:
        """Per candidate whether it holds all these nodes."""
        found = np.ones(len(self.candidates), np.bool_)
        for node in nodes:
            found &= (self.packed[:, node >> 3] >> (node & 7) & 1).astype(np.bool_)
        return found


class _Runs(NamedTuple):
    """Per run its candidate, first position and the position after its last; sorted."""

    owner: Ints
    start: Ints
    end: Ints


def _own_runs(candidates: Sequence[Candidate]) -> _Runs:
    """Runs in the order of node indexes."""
    counts: list[int] = []
    starts: list[int] = []
    ends: list[int] = []
    for candidate in candidates:
        nodes = candidate.nodes
        begun = bits(nodes & ~(nodes << 1))
        counts.append(len(begun))
        starts += begun
        ends += bits(nodes << 1 & ~nodes)
    owner = np.repeat(np.arange(len(candidates)), np.array(counts, np.int64))
    return _Runs(owner, np.array(starts, np.int64), np.array(ends, np.int64))


def _moved(runs: _Runs, position: Ints) -> _Runs:
    """The same sets as runs of another order: cut where that order jumps, sorted, joined again."""
    jumps = np.flatnonzero(position[1:] != position[:-1] + 1) + 1
    first = np.searchsorted(jumps, runs.start, "right")
    pieces = 1 + np.searchsorted(jumps, runs.end, "left") - first
    owner = np.repeat(runs.owner, pieces)
    run_first = np.cumsum(pieces) - pieces
    nth = np.arange(len(owner)) - np.repeat(run_first, pieces)
    padded = np.append(jumps, 0)
    at = np.repeat(first, pieces) + nth
    start = np.where(nth == 0, np.repeat(runs.start, pieces), padded[at - 1])
    is_last = nth == np.repeat(pieces, pieces) - 1
    end = np.where(is_last, np.repeat(runs.end, pieces), padded[np.minimum(at, len(jumps))])
    new_start, new_end = position[start], position[end - 1] + 1
    order = np.argsort(owner * (len(position) + 1) + new_start, kind="stable")
    owner, new_start, new_end = owner[order], new_start[order], new_end[order]
    begins = np.ones(len(owner), np.bool_)
    begins[1:] = (owner[1:] != owner[:-1]) | (new_start[1:] != new_end[:-1])
    finishes = np.append(begins[1:], True)
    return _Runs(owner[begins], new_start[begins], new_end[finishes])
