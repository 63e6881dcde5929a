"""Styles and candidate sets: the candidates of each target, and the reasons for the others."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collage.partitioner.candidate import Candidate, bits
from collage.partitioner.graph.fingerprint import fingerprint
from collage.partitioner.graph.graph_index import GraphIndex
from collage.partitioner.graph.model import Model
from collage.partitioner.rules.candidate_set import CandidateSet
from collage.partitioner.rules.pattern import Pattern
from collage.partitioner.rules.rules import OpPredicateRule
from collage.partitioner.rules.target_spec import Style, TargetSpec, enumerate_candidates
from collage.partitioner.target import Target
from tests.partitioner.graphs import TextModel, dump, names, text_model
from tests.partitioner.random_graphs import random_models

MODEL = text_model("""g (float[1,8,8,8] x, float[8,8,1,1] w, float[M] m)
    => (float[1,8,8,8] y, int64[1,K] z) {
    [conv] a = Conv(x, w) [relu] b = Relu(a) [sum] c = ReduceSum(b) [add] y = Add(b, c)
    [odd] z = NonZero(m) }""")
CONV_RELU = Pattern("conv_relu", lambda op, x, w: op.Relu(op.Conv(x, w)))


def no_odd_ones(index: GraphIndex, node: int) -> str | None:
    return "it has no NonZero" if index.nodes[node].op_type == "NonZero" else None


def spec(style: Style, *patterns: Pattern) -> TargetSpec:
    return TargetSpec(Target(style), style, no_odd_ones, patterns)


def test_a_library_gets_nodes_patterns_and_regions() -> None:
    found = enumerate_candidates(MODEL, [spec("library", CONV_RELU)])
    assert dump(MODEL.index, found.candidates).splitlines() == [
        "library | node.Conv | conv",
        "library | node.Relu | relu",
        "library | node.ReduceSum | sum",
        "library | node.Add | add",
        "library | pattern.conv_relu | conv relu",
        "library | region.maximal | conv relu sum add",
        "library | region.interval | relu sum add",
        "library | region.interval | sum add",
    ]


def test_a_fusion_target_also_gets_what_the_kinds_allow() -> None:
    found = enumerate_candidates(MODEL, [spec("fusion", CONV_RELU)])
    fused = [names(MODEL.index, c.nodes) for c in found.candidates if c.rule.startswith("fused")]
    assert fused == ["sum add", "relu sum add"]
    assert "conv relu" in {names(MODEL.index, c.nodes) for c in found.candidates}


def test_a_match_with_a_tap_is_not_offered_to_a_library() -> None:
    model = text_model("""g (float[4] x) => (float[4] y, float[4] z) {
        [a] p = Relu(x) [b] y = Exp(p) [c] z = Abs(p) }""")
    pattern = Pattern("relu_exp", lambda op, x: op.Exp(op.Relu(x)))
    found = enumerate_candidates(model, [spec("library", pattern)])
    assert not [c for c in found.candidates if c.rule.startswith("pattern")]


@pytest.mark.parametrize("style", ["library", "fusion", "graph"])
def test_every_style_proposes_single_nodes_and_the_maximal_region(style: Style) -> None:
    found = enumerate_candidates(MODEL, [spec(style)])
    offered = {names(MODEL.index, c.nodes) for c in found.candidates}
    assert {"conv", "relu", "sum", "add", "conv relu sum add"} <= offered
    assert all("odd" not in nodes for nodes in offered)


def test_a_rule_of_its_own_replaces_the_default() -> None:
    own = TargetSpec(Target("own"), "graph", no_odd_ones, rule=OpPredicateRule(("Conv", "NonZero")))
    found = enumerate_candidates(MODEL, [own])
    assert dump(MODEL.index, found.candidates) == "own | Conv | conv"
    assert found.refusals == {
        **{(i, Target("own")): "the target's rules propose nothing for it" for i in (1, 2, 3)},
        (4, Target("own")): "it has no NonZero",
    }


def test_several_targets_stand_side_by_side() -> None:
    found = enumerate_candidates(MODEL, [spec("library"), spec("graph")])
    assert {c.target for c in found.candidates} == {Target("library"), Target("graph")}
    assert {(4, Target("library")), (4, Target("graph"))} == set(found.refusals)


def test_targets_that_join_later_give_what_all_at_once_give() -> None:
    first, later = spec("library", CONV_RELU), spec("fusion", CONV_RELU)
    known = enumerate_candidates(MODEL, [first])
    assert enumerate_candidates(MODEL, [later], known) == enumerate_candidates(MODEL, [first, later])


def test_notes_name_the_target_whose_bound_was_hit() -> None:
    steps = " ".join(f"v{i + 1} = Relu(v{i})" for i in range(80))
    model = text_model(f"g (float[4] v0) => (float[4] v80) {{ {steps} }}")
    notes = enumerate_candidates(model, [spec("library"), spec("fusion")]).notes
    assert any(note.startswith("fusion: combine: ") for note in notes)
    assert "library: region: intervals of 1 large regions were thinned to about 2000" in notes


def test_candidate_set_drops_duplicates_empty_and_non_convex() -> None:
    target = Target("t")
    given = [Candidate(n, target, str(i)) for i, n in enumerate([3, 0, 3, 6, 0b1010])]
    built = CandidateSet.build(MODEL.index, [*given, Candidate(3, Target("u"))])
    assert [(c.nodes, c.target.backend) for c in built.candidates] == [
        (3, "t"),
        (6, "t"),
        (3, "u"),
    ]
    assert built.by_node == ((0, 2), (0, 1, 2), (1,), (), ())


def test_repeated_blocks_are_few_distinct_pieces_of_work() -> None:
    """Twelve equal layers: the candidates are many, what there is to measure is not."""
    layers = " ".join(
        f"q{i} = MatMul(h{i}, w{i})  r{i} = Relu(q{i})  h{i + 1} = Add(r{i}, h{i})" for i in range(12)
    )
    weights = ", ".join(f"float[64,64] w{i}" for i in range(12))
    model = text_model(f"g (float[64,64] h0, {weights}) => (float[64,64] h12) {{ {layers} }}")
    found = enumerate_candidates(model, [spec("graph")])
    unique = {fingerprint(model.index, c.nodes) for c in found.candidates}
    assert len(found) > 140
    assert len(unique) < len(found) / 3
    layer = 0b111
    assert len({fingerprint(model.index, layer << 3 * i) for i in range(1, 11)}) == 1


@settings(deadline=None, max_examples=40)
@given(
    random_models(max_nodes=10),
    st.integers(min_value=0),
    st.sampled_from(["library", "fusion", "graph"]),
)
def test_candidates_are_convex_taken_distinct_and_indexed(
    model: TextModel, taken: int, style: Style
) -> None:
    index = model.index

    def supports(_: GraphIndex, node: int) -> str | None:
        return None if taken >> node & 1 else "refused"

    found = enumerate_candidates(model, [TargetSpec(Target("t"), style, supports)])
    assert len({c.nodes for c in found.candidates}) == len(found)
    for position, candidate in enumerate(found.candidates):
        assert (
            not index.ancestors_of(candidate.nodes)
            & index.descendants_of(candidate.nodes)
            & ~candidate.nodes
        )
        assert not candidate.nodes & ~taken
        assert all(position in found.by_node[i] for i in bits(candidate.nodes))
    for i in range(len(index.nodes)):
        assert bool(found.by_node[i]) == bool(taken >> i & 1)
        assert ((i, Target("t")) in found.refusals) == (not taken >> i & 1)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["light_squeezenet", "ppocr_cls", "silero_if"])
def test_real_models_are_covered_at_every_scale(name: str, normalized: Callable[[str], Model]) -> None:
    model = normalized(name)
    all_taken = TargetSpec(Target("t"), "graph", lambda index, node: None)
    found = enumerate_candidates(model, [all_taken])
    sizes = {c.nodes.bit_count() for c in found.candidates}
    assert {1, len(model.index.nodes)} <= sizes
    assert all(found.by_node) and not found.refusals
    assert len(found) < 3000 + len(model.index.nodes)


def test_values_smaller_than_a_byte_cross_no_border() -> None:
    model = text_model(
        """g (float[4] x, float s, int4 z) => (float[4] y) {
        [first] a = Abs(x) [pack] q = QuantizeLinear(a, s, z)
        [unpack] d = DequantizeLinear(q, s, z) [last] y = Relu(d) }""",
        21,
    )
    found = enumerate_candidates(model, [spec("fusion")])
    offered = {names(model.index, c.nodes) for c in found.candidates}
    assert "pack unpack" in offered and {"pack", "unpack"}.isdisjoint(offered)
