"""Sub-graphs: entries, exits, inputs, outputs, taps, depth, and validity under limits."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collage.partitioner.graph.sub_graph import Limits, SubGraph
from tests.partitioner.graphs import TextModel, names, text_model
from tests.partitioner.random_graphs import random_models

MODEL = text_model("""g (float[4] x, float[4] v) => (float[4] y, float[4] q) <float[4] w = {1, 2, 3, 4}> {
    [a] p = Relu(x) [b] q = Add(p, w) [c] r = Add(q, v) [d] y = Add(q, r) }""")


def sub(members: str) -> SubGraph:
    index = MODEL.index
    return SubGraph(index, sum(1 << n.index for n in index.nodes if n.name in members.split()))


@pytest.mark.parametrize(
    ("members", "exits", "inputs", "outputs", "taps", "depth"),
    [
        ("a", "a", ("x",), ("p",), "", 1),
        ("b", "b", ("p",), ("q",), "", 1),
        ("a b", "b", ("x",), ("q",), "", 2),
        ("b c", "b c", ("p", "v"), ("q", "r"), "b", 2),
        ("b c d", "b d", ("p", "v"), ("q", "y"), "b", 3),
        ("a b c d", "b d", ("x", "v"), ("q", "y"), "b", 4),
    ],
)
def test_sub_graph_lists_values_that_cross_its_border(
    members: str,
    exits: str,
    inputs: tuple[str, ...],
    outputs: tuple[str, ...],
    taps: str,
    depth: int,
) -> None:
    found = sub(members)
    assert names(MODEL.index, found.exits) == exits
    assert (found.inputs, found.outputs) == (inputs, outputs)
    assert (names(MODEL.index, found.taps), found.depth) == (taps, depth)


@pytest.mark.parametrize(
    ("members", "limits", "reason"),
    [
        ("", Limits(), "it is empty"),
        ("a c", Limits(), "not convex"),
        ("a b", Limits(max_depth=1), "depth 2 exceeds 1"),
        ("b c", Limits(max_exits=1), "2 exits exceed 1"),
        ("b c", Limits(allow_taps=False), "tap"),
    ],
)
def test_violations_say_which_limit(members: str, limits: Limits, reason: str) -> None:
    violation = sub(members).violation(limits)
    assert violation is not None and reason in violation


def test_valid_ones_have_no_violation() -> None:
    assert sub("a b").violation(Limits(max_depth=2, max_exits=1, allow_taps=False)) is None
    assert sub("b c d").violation(Limits()) is None


@settings(deadline=None)
@given(random_models(max_nodes=10), st.integers(min_value=0))
def test_borders_fit_together(model: TextModel, nodes: int) -> None:
    """Outputs of a set are inputs of the rest; no other value crosses."""
    index = model.index
    nodes &= index.all_nodes
    one, rest = SubGraph(index, nodes), SubGraph(index, index.all_nodes & ~nodes)
    graph = set(index.inputs) | set(index.outputs)
    assert set(one.inputs) - set(index.inputs) == set(rest.outputs) & set(one.inputs)
    assert set(one.outputs) - set(rest.inputs) <= graph
    assert set(rest.inputs) - set(index.inputs) <= set(one.outputs)
    assert not one.taps & ~one.exits and not one.exits & ~nodes
    assert one.depth <= len(one.members) and (one.depth > 0) == bool(nodes)
