"""What the borders of a plan cost, beside what its partitions cost.

The objective of a plan is the sum of its partitions' costs and of

* `call_us`: once per partition, by its target;
* `border_us`: by its target, for each distinct value that a partition reads and another one makes;
* a *copy*, once for each value and each memory domain other than its own in which it is read. Graph
  inputs come from, and graph outputs go to, the host.

`Transitions.plan_cost` defines it; the program that search solves writes the same sum in another way.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from collage.partitioner.candidate import Candidate, bits
from collage.partitioner.errors import BadInputError
from collage.partitioner.graph.graph_index import GraphIndex
from collage.partitioner.target import HOST_MEMORY, Target

_MIB = 1 << 20


@dataclass(frozen=True)
class CopyCost:
    """What it takes to copy a value from one memory domain to another."""

    fixed_us: float = 0.0  # per copy
    us_per_mib: float = 0.0  # per 2^20 bytes

    def us(self, size_bytes: int) -> float:
        """Microseconds for a value; one of unknown size counts as empty."""
        return self.fixed_us + self.us_per_mib * size_bytes / _MIB


@dataclass(frozen=True)
class Transitions:
    """Costs of borders in microseconds; none may be negative."""

    # per target; `default_call_us` where it is not named
    call_us: Mapping[Target, float] = field(default_factory=dict)
    # small, so that of two plans of equal cost the one with fewer partitions wins
    default_call_us: float = 0.01
    # per target; nothing where it is not named
    border_us: Mapping[Target, float] = field(default_factory=dict)
    # per target its memory domain; `host` where it is not named
    domains: Mapping[Target, str] = field(default_factory=dict)
    # per (from, to) pair of memory domains; a pair that is not named costs nothing
    copies: Mapping[tuple[str, str], CopyCost] = field(default_factory=dict)

    def __post_init__(self) -> None:
        times = [self.default_call_us, *self.call_us.values(), *self.border_us.values()]
        times += [time for cost in self.copies.values() for time in (cost.fixed_us, cost.us_per_mib)]
        if any(not math.isfinite(time) or time < 0 for time in times):
            raise BadInputError("a transition cost is negative or not a number; give microseconds >= 0")

    def domain(self, target: Target) -> str:
        """The memory domain in which a target reads and writes."""
        return self.domains.get(target, HOST_MEMORY)

    def partition_us(self, target: Target) -> float:
        """What one call of a partition costs."""
        return self.call_us.get(target, self.default_call_us)

    def copy_us(self, source: str, destination: str, size_bytes: int) -> float:
        """What it costs to bring a value from one memory domain to another; nothing within one."""
        cost = self.copies.get((source, destination))
        return 0.0 if cost is None or source == destination else cost.us(size_bytes)

    def plan_cost(self, index: GraphIndex, partitions: Sequence[Candidate]) -> float:
        """What a cover of the graph costs beside its partitions' own costs, in microseconds."""
        owner = {i: p for p, partition in enumerate(partitions) for i in bits(partition.nodes)}
        total = sum(self.partition_us(partition.target) for partition in partitions)
        for value in crossings(index):
            maker = None if value.producer is None else owner[value.producer]
            readers = {owner[reader] for reader in value.readers} - {maker}
            wanted = {self.domain(partitions[reader].target) for reader in readers}
            if value.is_output:
                wanted.add(HOST_MEMORY)
            source = HOST_MEMORY if maker is None else self.domain(partitions[maker].target)
            total += sum(self.copy_us(source, domain, value.size_bytes) for domain in wanted)
            if maker is not None:
                total += sum(self.border_us.get(partitions[reader].target, 0.0) for reader in readers)
        return total


@dataclass(frozen=True)
class Crossing:
    """A value that may cross a border."""

    producer: int | None  # the node that makes it; None for a graph input
    readers: tuple[int, ...]  # the nodes that read it
    is_output: bool  # True for a graph output
    size_bytes: int  # 0 where it is not known


def crossings(index: GraphIndex) -> list[Crossing]:
    """Every value that a node or a graph output reads, constants left out."""
    outputs = frozenset(index.outputs)
    found = []
    for name in (*index.inputs, *index.producer):
        readers = tuple(bits(index.consumers.get(name, 0)))
        producer = index.producer.get(name)
        is_output = producer is not None and name in outputs
        if readers or is_output:
            found.append(Crossing(producer, readers, is_output, index.values[name].size_bytes))
    return found
