"""Cycles of partitions that wait for each other, and rows of the program that forbid them.

A cycle is given by *legs*: per partition a pair (entry, exit) of its nodes such that each exit feeds the
next partition's entry. Partitions that hold the legs wait for each other unless one holds them all. So
of m legs at most m - 1 lie inside one partition, unless one holds them all: a cut on every candidate
that joins a leg.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from collage.partitioner.candidate import bits
from collage.partitioner.graph.graph_index import GraphIndex
from collage.partitioner.graph.plan_check import quotient

Leg = tuple[int, int]


@dataclass(frozen=True)
class Cycle:
    """Legs in the order in which they feed each other, the smallest first."""

    legs: tuple[Leg, ...]


def cycles(index: GraphIndex, node_sets: Sequence[int]) -> list[Cycle]:
    """The shortest cycles through each of some disjoint sets (bitsets); empty when they can be ordered."""
    readers = quotient(index, node_sets)
    found: dict[Cycle, None] = {}
    for component in _components(readers):
        for position in component:
            path = _shortest_cycle(readers, position, component)
            for last in (False, True):
                found[_cycle(index, [node_sets[p] for p in path], last)] = None
    return list(found)


def _components(readers: Sequence[set[int]]) -> list[set[int]]:
    """Strongly connected components of at least two vertices (Tarjan, without recursion)."""
    number: dict[int, int] = {}
    low: dict[int, int] = {}
    stack: list[int] = []
    on_stack: set[int] = set()
    found = []
    for root in range(len(readers)):
        if root in number:
            continue
        work = [(root, iter(sorted(readers[root])))]
        number[root] = low[root] = len(number)
        stack.append(root)
        on_stack.add(root)
        while work:
            vertex, rest = work[-1]
            for nearby in rest:
                if nearby not in number:
                    number[nearby] = low[nearby] = len(number)
                    stack.append(nearby)
                    on_stack.add(nearby)
                    work.append((nearby, iter(sorted(readers[nearby]))))
                    break
                if nearby in on_stack:
                    low[vertex] = min(low[vertex], number[nearby])
            else:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[vertex])
                if low[vertex] == number[vertex]:
                    component = set()
                    while vertex not in component:
                        component.add(stack.pop())
                    on_stack -= component
                    if len(component) > 1:
                        found.append(component)
    return found


def _shortest_cycle(readers: Sequence[set[int]], start: int, component: set[int]) -> list[int]:
    """The partitions of a shortest cycle through one partition, by breadth first search."""
    before: dict[int, int] = {}
    queue = deque([start])
    while queue:
        vertex = queue.popleft()
        if start in readers[vertex]:
            path = [vertex]
            while path[-1] != start:
                path.append(before[path[-1]])
            return path[::-1]
        for nearby in sorted(readers[vertex] & component):
            if nearby not in before and nearby != start:
                before[nearby] = vertex
                queue.append(nearby)
    raise AssertionError("every vertex of a strongly connected component lies on a cycle")


def _cycle(index: GraphIndex, sets: Sequence[int], last: bool) -> Cycle:
    """Legs of a cycle of partitions, by the first or the last edge between each two of them."""
    edges = []
    for here, following in zip(sets, [*sets[1:], sets[0]], strict=True):
        makers = [i for i in bits(here) if index.successors[i] & following]
        exit_node = makers[-1 if last else 0]
        entries = bits(index.successors[exit_node] & following)
        edges.append((exit_node, entries[-1 if last else 0]))
    legs = [(edges[i - 1][1], edges[i][0]) for i in range(len(edges))]
    first = legs.index(min(legs))
    return Cycle(tuple(legs[first:] + legs[:first]))
