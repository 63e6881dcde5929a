"""Regions: what greedy partitioning would give, blocks at every scale, branches; always convex."""

from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collage.partitioner.candidate import bits
from collage.partitioner.graph.linear_order import line, linear_order
from collage.partitioner.rules.proposal import Proposals, Scope
from collage.partitioner.rules.regions import RegionRule, branches, components, maximal_regions, turns
from tests.partitioner.graphs import TextModel, names, text_model
from tests.partitioner.random_graphs import random_models

INCEPTION = """g (float[1,8,8,8] x, float[8,8,1,1] w) => (float[1,16,8,8] y) {
    [stem] s = Relu(x)
    [a1] a = Conv(s, w)  [a2] b = Relu(a)
    [b1] c = Conv(s, w)  [b2] d = Relu(c)  [b3] e = Conv(d, w)
    [cat] f = Concat <axis = 1> (b, e)
    [tail] y = Exp(f) }"""


def regions(model: TextModel, refused: str = "") -> Proposals:
    def supports(index: object, node: int) -> str | None:
        return "refused" if model.index.nodes[node].name in refused.split() else None

    return RegionRule().candidates(Scope(model, supports))


def found(model: TextModel, refused: str = "") -> set[str]:
    return {names(model.index, p.nodes) for p in regions(model, refused).found}


def test_a_chain_gives_every_interval() -> None:
    model = text_model(
        "g (float[4] x) => (float[4] z) { [a] p = Relu(x) [b] q = Exp(p) [c] z = Abs(q) }"
    )
    assert found(model) == {"a", "b", "c", "a b", "b c", "a b c"}
    assert not regions(model).notes


def test_inception_block_gives_its_branches_and_runs_inside_them() -> None:
    model = text_model(INCEPTION)
    assert {"a1 a2", "b1 b2 b3", "b1 b2", "b2 b3"} <= found(model)
    assert {"stem a1 a2 b1 b2 b3 cat tail", "stem a1 a2 b1 b2 b3 cat", "a1 a2 b1 b2 b3 cat"} <= found(
        model
    )
    rules = {names(model.index, p.nodes): p.rule for p in regions(model).found}
    assert rules["b1 b2 b3"] == "region.branch"
    assert rules["stem a1 a2 b1 b2 b3 cat tail"] == "region.maximal"


def test_refused_nodes_divide_the_regions() -> None:
    model = text_model(INCEPTION)
    assert found(model, refused="b2") >= {"stem a1 a2 b1", "b3 cat tail", "stem a1 a2"}
    assert all("b2" not in nodes for nodes in found(model, refused="b2"))


def test_greedy_turns_run_one_after_the_other() -> None:
    model = text_model(INCEPTION)
    supported = model.index.all_nodes & ~(1 << 4)  # b2
    assert [names(model.index, turn) for turn in turns(model.index, supported)] == [
        "stem a1 a2 b1",
        "b3 cat tail",
    ]


def test_regions_without_a_connection_are_offered_apart_too() -> None:
    model = text_model("""g (float[4] x, float[4] w) => (float[4] y, float[4] z) {
        [a] p = Relu(x) [b] y = Exp(p) [c] q = Relu(w) [d] z = Exp(q) }""")
    assert {"a b", "c d", "a b c d"} <= found(model)


def test_a_mask_that_all_layers_read_does_not_hide_the_cuts() -> None:
    layers = " ".join(
        f"[m{i}] a{i} = MatMul(h{i}, w) [s{i}] b{i} = Add(a{i}, mask) [r{i}] h{i + 1} = Relu(b{i})"
        for i in range(6)
    )
    model = text_model(f"""g (float[4,4] h0, float[4,4] w, float[4,4] raw) => (float[4,4] h6) {{
        [mask] mask = Neg(raw) {layers} }}""")
    laid = line(model.index, model.index.all_nodes)
    assert len(laid.waists) == len(model.index.nodes) + 1
    assert "m2 s2 r2 m3 s3 r3" in found(model)


def test_residual_is_cut_between_blocks_and_its_branch_is_proposed() -> None:
    blocks = " ".join(
        f"[p{i}] a{i} = Conv(h{i}, w) [q{i}] b{i} = Relu(a{i}) [r{i}] h{i + 1} = Add(b{i}, h{i})"
        for i in range(4)
    )
    model = text_model(f"g (float[1,8,8,8] h0, float[8,8,1,1] w) => (float[1,8,8,8] h4) {{ {blocks} }}")
    laid = line(model.index, model.index.all_nodes)
    # The first block's residual is a graph input, which does not count as live.
    assert laid.waists == (0, 1, 2, 3, 6, 9, 12)
    assert {"p1 q1 r1", "p1 q1 r1 p2 q2 r2", "p1 q1"} <= found(model)


def test_long_stretch_without_a_waist_is_cut_where_few_values_live() -> None:
    steps = " ".join(f"a{i + 1} = Relu(a{i})  b{i + 1} = Add(b{i}, a{i + 1})" for i in range(12))
    model = text_model(f"g (float[4] x) => (float[4] b12) {{ a0 = Exp(x)  b0 = Abs(x)  {steps} }}")
    laid = line(model.index, model.index.all_nodes)
    assert len(laid.cuts) > len(laid.waists)
    assert max(end - start for start, end in zip(laid.cuts, laid.cuts[1:], strict=False)) <= 8


def test_a_limit_thins_the_intervals_and_says_so() -> None:
    steps = " ".join(f"v{i + 1} = Relu(v{i})" for i in range(200))
    model = text_model(f"g (float[4] v0) => (float[4] v200) {{ {steps} }}")
    scope = Scope(model, lambda index, node: None)
    proposals = RegionRule(max_intervals=600).candidates(scope)
    assert 400 <= len(proposals.found) <= 700
    assert proposals.notes == ("region: intervals of 1 large regions were thinned to about 600",)
    sizes = {p.nodes.bit_count() for p in proposals.found}
    assert {1, 2, 199, 200} <= sizes and len(sizes) > 30
    starts = {min(bits(p.nodes)) for p in proposals.found}
    assert len(starts) > 100


@pytest.mark.slow
def test_three_thousand_nodes_take_less_than_two_seconds() -> None:
    blocks = " ".join(
        f"a{i} = Conv(h{i}, w)  b{i} = Relu(a{i})  c{i} = Conv(b{i}, w)  h{i + 1} = Add(c{i}, h{i})"
        for i in range(750)
    )
    model = text_model(
        f"g (float[1,8,8,8] h0, float[8,8,1,1] w) => (float[1,8,8,8] h750) {{ {blocks} }}"
    )
    start = time.process_time()
    proposals = regions(model)
    assert time.process_time() - start < 2
    assert 3000 < len(proposals.found) < 12000


@pytest.mark.slow
@settings(deadline=None)
@given(random_models(), st.integers(min_value=0))
def test_every_region_is_convex_and_taken(model: TextModel, supported: int) -> None:
    index = model.index
    supported &= index.all_nodes
    scope = Scope(model, lambda _, node: None if supported >> node & 1 else "refused")
    found = [p.nodes for p in RegionRule().candidates(scope).found]
    assert len(set(found)) == len(found)
    for nodes in found:
        assert nodes and not nodes & ~supported
        assert not index.ancestors_of(nodes) & index.descendants_of(nodes) & ~nodes
    union = 0
    for nodes in maximal_regions(index, supported):
        union |= nodes
        assert sum(components(index, nodes)) == nodes
    assert union == supported


@pytest.mark.slow
@settings(deadline=None)
@given(random_models())
def test_the_line_is_a_topological_order(model: TextModel) -> None:
    order = linear_order(model.index, model.index.all_nodes)
    assert sorted(order) == list(range(len(model.index.nodes)))
    placed = 0
    for node in order:
        assert not model.index.predecessors[node] & ~placed
        placed |= 1 << node


@pytest.mark.slow
@settings(deadline=None)
@given(random_models())
def test_branches_are_convex_inside_any_convex_set(model: TextModel) -> None:
    index = model.index
    for nodes in (index.all_nodes, *components(index, index.all_nodes)):
        for branch in branches(index, nodes):
            assert branch.bit_count() >= 2 and not branch & ~nodes
            assert not index.ancestors_of(branch) & index.descendants_of(branch) & ~branch
