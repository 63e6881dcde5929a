"""A candidate: a sub-graph on a target; and a plan: candidates that cover the graph.

Node sets are Python integers used as bitsets: bit *i* is set when node *i* of the `GraphIndex` is
inside. Node indexes are positions in a topological order.

Invariants of a `Plan`: its partitions cover every node exactly once, the quotient graph is acyclic, and
the partitions stand in an order in which they can run. `graph.plan_check` proves it for plans from
elsewhere.

Source: RFC 0062 (candidate partitions), extended by the global check for cycles.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from collage.partitioner.target import Target

_FEW = 24  # above this many bits numpy unpacks them faster than a loop


@dataclass(frozen=True)
class Candidate:
    """A set of nodes (bitset) offered to one target, and the rule that proposed it."""

    nodes: int
    target: Target
    rule: str = ""


@dataclass(frozen=True)
class Instances:
    """How many requests a plan was tuned to run at once."""

    count: int
    threads: int  # of one request
    cores: int  # that it was tuned on
    rows: int = 1  # requests of one row that one call computes
    stages: tuple[int, ...] = ()  # of a pipeline: how many partitions each has


@dataclass(frozen=True)
class Plan:
    """Candidates that cover every node exactly once, in an order in which they can run."""

    partitions: tuple[Candidate, ...]  # the candidates
    lanes: int = 1  # how many partitions that do not wait for each other may run at once
    instances: Instances | None = None  # None where it was tuned for one request at a time

    @property
    def targets(self) -> tuple[Target, ...]:
        """The distinct targets used, sorted."""
        return tuple(sorted({partition.target for partition in self.partitions}))


def bits(mask: int) -> list[int]:
    """The indexes of the set bits, ascending."""
    if mask.bit_count() > _FEW:
        octets = np.frombuffer(mask.to_bytes((mask.bit_length() + 7) // 8, "little"), np.uint8)
        indexes: list[int] = np.flatnonzero(np.unpackbits(octets, bitorder="little")).tolist()
        return indexes
    found = []
    while mask:
        low = mask & -mask
        found.append(low.bit_length() - 1)
        mask ^= low
    return found
