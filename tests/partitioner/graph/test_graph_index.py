"""The index: structure as bitsets, what bodies capture, and the errors of a bad order or name."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collage.partitioner.errors import ModelError
from collage.partitioner.graph.graph_index import GraphIndex
from collage.partitioner.tensor import TensorSpec
from tests.partitioner.graphs import TextModel, names, text_model
from tests.partitioner.random_graphs import random_models

DIAMOND = text_model("""g (float[4] x) => (float[4] y) <float[4] w = {1, 2, 3, 4}, float[2000] big> {
    [a] p = Relu(x) [b] q = Exp(p) [c] r = Add(p, w) [d] y = Add(q, r) }""")


def test_structure() -> None:
    index = DIAMOND.index
    assert index.inputs == ("x",) and index.outputs == ("y",) and index.all_nodes == 0b1111
    assert [names(index, mask) for mask in index.predecessors] == ["", "a", "a", "b c"]
    assert [names(index, mask) for mask in index.successors] == ["b c", "d", "d", ""]
    assert [names(index, mask) for mask in index.ancestors] == ["", "a", "a", "a b c"]
    assert [names(index, mask) for mask in index.descendants] == ["b c d", "d", "d", ""]
    assert index.producer == {"p": 0, "q": 1, "r": 2, "y": 3}
    assert names(index, index.consumers["p"]) == "b c"


def test_constants_are_values_and_no_nodes() -> None:
    index = DIAMOND.index
    assert "w" in index.constants
    np.testing.assert_array_equal(index.constant_values["w"], [1, 2, 3, 4])
    assert index.values["w"] == TensorSpec("w", "float32", (4,))
    assert index.input_spec(2, 1) == index.values["w"]
    assert index.input_spec(2, 5) is None


def test_free_dimensions_are_unknown() -> None:
    index = text_model("g (float[N,4] x) => (float[N,4] y) { y = Relu(x) }").index
    assert index.values["y"].shape == (None, 4)


def test_operators_of_other_domains_are_written_in_full() -> None:
    index = text_model("g (float[4] x) => (float[4] y) { t = Gelu(x) y = com.microsoft.Gelu(t) }").index
    assert [node.op for node in index.nodes] == ["Gelu", "com.microsoft::Gelu"]
    assert [node.opset for node in index.nodes] == [20, 1]


def test_values_captured_by_bodies_are_read_in_order_of_use() -> None:
    index = text_model("""g (bool c, float[4] x) => (float[4] y) {
        [late] z = Exp(x) [early] a = Relu(x)
        [if] y = If (c) <
            then_branch = t () => (float[4] p) {
                p = If (c) <then_branch = u () => (float[4] s) { s = Add(z, z) },
                            else_branch = v () => (float[4] t) { t = Identity(a) }> },
            else_branch = e () => (float[4] q) { q = Neg(a) }> }""").index
    node = index.nodes[2]
    assert node.has_body and node.body_digest and not node.attributes
    assert set(node.captured) == {"z", "a"}
    assert names(index, index.predecessors[2]) == "late early"


def test_a_missing_or_repeated_name_is_an_error() -> None:
    model = DIAMOND.ir.clone()
    model.graph[1].name = "a"
    with pytest.raises(ModelError, match="'a'"):
        GraphIndex.from_ir(model)
    model.graph[1].name = None
    with pytest.raises(ModelError, match="missing"):
        GraphIndex.from_ir(model)


def test_a_value_that_is_used_before_it_is_made_is_an_error() -> None:
    model = DIAMOND.ir.clone()
    order: list[ir.Node] = list(model.graph)
    model.graph.remove(order)
    model.graph.extend(order[::-1])
    with pytest.raises(ModelError, match="which nothing before it makes"):
        GraphIndex.from_ir(model)


def reaches(index: GraphIndex, start: int, end: int) -> bool:
    """Brute force: a path of at least one edge."""
    outputs = set(index.nodes[start].outputs)
    readers = [n.index for n in index.nodes if outputs & set(n.inputs)]
    return any(reader == end or reaches(index, reader, end) for reader in readers)


@settings(deadline=None, max_examples=50)
@given(random_models(max_nodes=9), st.integers(min_value=0))
def test_masks_and_convexity_agree_with_walking(model: TextModel, nodes: int) -> None:
    index = model.index
    nodes &= index.all_nodes
    everyone = range(len(index.nodes))
    inside = [i for i in everyone if nodes >> i & 1]
    for i in everyone:
        assert index.descendants[i] == sum(1 << j for j in everyone if reaches(index, i, j))
        assert index.ancestors[i] == sum(1 << j for j in everyone if reaches(index, j, i))
    leaves_and_comes_back = any(
        reaches(index, i, k) and reaches(index, k, j)
        for i in inside
        for j in inside
        for k in everyone
        if not nodes >> k & 1
    )
    assert index.is_convex(nodes) == (not leaves_and_comes_back)
