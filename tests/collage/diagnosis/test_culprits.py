"""The search for the smallest failing regions, on graphs of 500 nodes whose trials are reckoned."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from collage.diagnosis.culprits import Culprit, OutOfTrialsError, find_culprits
from collage.diagnosis.trial import Trial
from collage.partitioner.candidate import bits
from collage.partitioner.graph.graph_index import GraphIndex
from tests.partitioner.graphs import text_model

MOST_TRIALS = 40
_OPS = ("Relu", "Exp", "Neg", "Abs", "Tanh")


def chain(count: int) -> GraphIndex:
    """A chain of operators; with a skip connection over every tenth node."""
    lines = []
    for i in range(count):
        if i % 10 == 9:
            lines.append(f"v{i} = Add(v{i - 1}, v{i - 9})")
        else:
            source = f"v{i - 1}" if i else "x"
            lines.append(f"v{i} = {_OPS[i % len(_OPS)]}({source})")
    body = "\n".join(lines)
    return text_model(f"g (float[4] x) => (float[4] v{count - 1}) {{ {body} }}").index


GRAPH = chain(500)


def found(fails: Callable[[set[int]], float], most: int = MOST_TRIALS) -> tuple[list[Culprit], int]:
    """The culprits where a set of nodes has such an error, and how many trials that took."""
    tried: dict[int, Trial] = {}

    def test(nodes: int) -> Trial:
        assert GRAPH.is_convex(nodes) and nodes
        if nodes not in tried:
            if len(tried) == most:
                raise OutOfTrialsError
            error = fails(set(bits(nodes)))
            tried[nodes] = Trial("wrong" if error else "right", errors={"y": error})
        return tried[nodes]

    return find_culprits(GRAPH, [GRAPH.all_nodes], test), len(tried)


def nodes_of(culprits: list[Culprit]) -> list[list[int]]:
    return [bits(culprit.nodes) for culprit in culprits]


@pytest.mark.parametrize("node", [0, 17, 249, 250, 301, 499])
def test_one_culprit_is_found(node: int) -> None:
    culprits, trials = found(lambda nodes: float(node in nodes))
    assert nodes_of(culprits) == [[node]] and culprits[0].is_smallest
    assert trials <= MOST_TRIALS


@pytest.mark.parametrize("pair", [(3, 4), (100, 400), (0, 499), (249, 250)])
def test_two_independent_culprits_are_found(pair: tuple[int, int]) -> None:
    culprits, trials = found(lambda nodes: float(bool(nodes & set(pair))))
    assert nodes_of(culprits) == [[pair[0]], [pair[1]]]
    assert trials <= MOST_TRIALS


def test_culprits_that_are_equal_nodes_are_found_sooner() -> None:
    """Every hundredth node is the same operator on the same shape."""
    wrong = {11, 111, 211, 311}
    alone = [found(lambda nodes, n=node: float(n in nodes))[1] for node in wrong]  # type: ignore[misc]
    culprits, trials = found(lambda nodes: float(bool(nodes & wrong)), most=200)
    assert nodes_of(culprits) == [[n] for n in sorted(wrong)]
    assert trials < sum(alone)


def test_equal_nodes_that_are_right_cost_one_trial() -> None:
    """A hundred nodes equal the culprit 11; of these 406 alone fails too."""
    culprits, trials = found(lambda nodes: float(bool(nodes & {11, 406})))
    assert nodes_of(culprits) == [[11], [406]]
    assert trials <= MOST_TRIALS


def test_nodes_that_fail_only_together_are_found() -> None:
    culprits, trials = found(lambda nodes: float({240, 258} <= nodes))
    assert nodes_of(culprits)[0][0] == 240 and nodes_of(culprits)[0][-1] == 258
    assert trials <= MOST_TRIALS


def test_a_fault_beyond_a_size_gives_the_smallest_size() -> None:
    culprits, trials = found(lambda nodes: float(len(nodes) > 60))
    assert culprits[0].nodes.bit_count() == 61 and culprits[0].is_smallest
    assert trials <= MOST_TRIALS


def test_nodes_inside_that_do_not_matter_are_left_out() -> None:
    index = text_model(
        """g (float[4] x) => (float[4] y) {
            a = Relu(x)  b = Exp(a)  c = Neg(b)  d = Abs(a)  e = Tanh(d)  y = Add(c, e) }"""
    ).index
    names = {node.op_type: node.index for node in index.nodes}
    needed = {names["Relu"], names["Exp"], names["Neg"]}

    def test(nodes: int) -> Trial:
        return Trial("wrong" if needed <= set(bits(nodes)) else "right")

    (culprit,) = find_culprits(index, [index.all_nodes], test)
    assert set(bits(culprit.nodes)) == needed


def test_without_trials_left_what_fails_is_told_as_not_narrowed() -> None:
    culprits, trials = found(lambda nodes: float(7 in nodes), most=6)
    assert trials == 6
    assert [c.is_smallest for c in culprits] == [False]
    assert 7 in nodes_of(culprits)[0]


def test_a_model_that_is_right_has_no_culprit() -> None:
    assert found(lambda nodes: 0.0) == ([], 1)


def test_the_worst_part_is_looked_in_first() -> None:
    culprits, _ = found(lambda nodes: 2.0 * (400 in nodes) + 1.0 * (100 in nodes), most=19)
    assert nodes_of(culprits)[0] == [400]
