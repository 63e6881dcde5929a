"""The rule algebra: text models in, proposals out as text. Each rule tree of RFC 0062 is a test."""

from __future__ import annotations

import pytest
from hypothesis import given, settings

from collage.partitioner.graph.graph_index import GraphIndex
from collage.partitioner.graph.op_kind import OpKind
from collage.partitioner.graph.sub_graph import Limits, SubGraph
from collage.partitioner.rules.combiners import (
    ByKind,
    Combiner,
    ConstantInputs,
    JoinAnything,
    MultiOutputs,
    VariadicInputs,
)
from collage.partitioner.rules.pattern import Pattern
from collage.partitioner.rules.proposal import Rule, Scope
from collage.partitioner.rules.rules import (
    FUSE_OPS,
    CombineRule,
    CompositeRule,
    HostRule,
    OnlyValidRule,
    OpKindRule,
    OpPredicateRule,
    PatternRule,
    PrimitiveRule,
    UnionRule,
)
from tests.partitioner.graphs import TextModel, names, text_model
from tests.partitioner.random_graphs import random_models

CONV_NET = """g (float[1,8,8,8] x, float[8,8,1,1] w) => (float[1,8,8,8] y) {
    [conv1] a = Conv(x, w) [add] b = Add(a, x) [relu] c = Relu(b) [conv2] y = Conv(c, w) }"""

ONE_KERNEL = Limits(max_depth=3, max_exits=1, allow_taps=False)
CONV_ADD = Pattern("conv_add", lambda op, x, w, b: op.Add(op.Conv(x, w), b))
CONV_ADD_RELU = Pattern("conv_add_relu", lambda op, x, w, b: op.Relu(op.Add(op.Conv(x, w), b)))
CONV = Pattern("conv", lambda op, x, w: op.Conv(x, w))


def text(rule: Rule, model: TextModel, refused: str = "") -> list[str]:
    def supports(index: GraphIndex, node: int) -> str | None:
        return "refused" if index.nodes[node].name in refused.split() else None

    proposals = rule.candidates(Scope(model, supports))
    lines = [
        f"{p.rule} | {p.kind.name.lower()} | {names(model.index, p.nodes)}" for p in proposals.found
    ]
    return [*lines, *(f"note: {note}" for note in proposals.notes)]


def joins(combiner: Combiner, model: TextModel) -> set[str]:
    """What one combiner makes of all single nodes, the single nodes left out."""
    rule = CombineRule(OpPredicateRule(), (combiner,))
    found = rule.candidates(Scope(model, lambda index, node: None)).found
    return {names(model.index, p.nodes) for p in found if p.nodes.bit_count() > 1}


def test_pattern_rule() -> None:
    assert text(PatternRule(CONV_ADD), text_model(CONV_NET)) == ["conv_add | out_fusable | conv1 add"]


def test_pattern_with_a_node_refused_alone_is_proposed_by_default() -> None:
    """A target may run a node in a pattern that it refuses alone, unless the rule says otherwise."""
    model = text_model(CONV_NET)
    assert text(PatternRule(CONV_ADD), model, refused="add") != []
    assert text(PatternRule(CONV_ADD, each_supported=True), model, refused="add") == []


def test_op_predicate_rule() -> None:
    model = text_model(CONV_NET)
    assert text(OpPredicateRule(("Conv", "Re*")), model, refused="conv2") == [
        "Conv | out_fusable | conv1",
        "Relu | elementwise | relu",
    ]

    def reads_the_input(index: GraphIndex, node: int) -> str | None:
        return None if "x" in index.nodes[node].inputs else "it does not read x"

    assert text(OpPredicateRule(predicate=reads_the_input, name="near"), model) == [
        "near.Conv | out_fusable | conv1",
        "near.Add | broadcast | add",
    ]


def test_op_predicate_rule_names_other_domains_in_full() -> None:
    model = text_model("""g (float[4] x) => (float[4] z) {
        [own] y = Gelu(x) [other] z = com.microsoft.Gelu(y) }""")
    assert text(OpPredicateRule(("Gelu",)), model) == ["Gelu | elementwise | own"]
    assert text(OpPredicateRule(("com.microsoft::*",)), model) == ["Gelu | elementwise | other"]


CONTROL = """g (bool c, float[4] x) => (float[4] z) {
    [relu] r = Relu(x)
    [if] i = If (c) <then_branch = t () => (float[4] a) { a = Exp(r) },
                      else_branch = e () => (float[4] b) { b = Abs(r) }>
    [exp] z = Exp(i) }"""


def test_op_kind_rule_and_host_rule_share_the_nodes_between_them() -> None:
    model = text_model(CONTROL)
    assert text(OpKindRule(), model) == ["Relu | elementwise | relu", "Exp | elementwise | exp"]
    assert text(HostRule(), model) == ["host.If | opaque | if"]
    assert text(OpKindRule(max_kind=OpKind.ELEMENTWISE), text_model(CONV_NET)) == [
        "Relu | elementwise | relu"
    ]


def test_composite_and_primitive_rules_leave_their_trail() -> None:
    rule = PrimitiveRule("kernel", CompositeRule("library.conv_add", PatternRule(CONV_ADD)))
    assert text(rule, text_model(CONV_NET)) == [
        "kernel.library.conv_add.conv_add | out_fusable | conv1 add"
    ]


def test_union_rule_keeps_each_set_once_under_its_first_name() -> None:
    rule = UnionRule((PatternRule(CONV), OpPredicateRule(("Conv", "Relu"))), name="u")
    assert text(rule, text_model(CONV_NET)) == [
        "u.conv | out_fusable | conv1",
        "u.conv | out_fusable | conv2",
        "u.Relu | elementwise | relu",
    ]


def test_only_valid_rule_with_depth_exits_and_taps() -> None:
    model = text_model("""g (float[4] x) => (float[4] y, float[4] z) {
        [a] p = Relu(x) [b] y = Exp(p) [c] z = Abs(p) }""")
    everything = CombineRule(OpPredicateRule(), (JoinAnything(),))

    def valid(limits: Limits) -> set[str]:
        found = (
            OnlyValidRule(limits, everything).candidates(Scope(model, lambda index, node: None)).found
        )
        return {names(model.index, p.nodes) for p in found}

    assert valid(Limits()) == {"a", "b", "c", "a b", "a c", "a b c"}
    assert valid(Limits(max_depth=1)) == {"a", "b", "c"}
    assert valid(Limits(max_exits=1)) == {"a", "b", "c"}
    assert valid(Limits(allow_taps=False)) == {"a", "b", "c", "a b c"}


def test_by_kind_joins_what_fuse_ops_joins() -> None:
    model = text_model("""g (float[1,8,8,8] x, float[8,8,1,1] w) => (float[1,8,8,8] y) {
        [conv] a = Conv(x, w) [add] b = Add(a, x) [sum] c = ReduceSum(b) [exp] d = Exp(c)
        [tr] e = Transpose(d) [conv2] y = Conv(e, w) }""")
    assert joins(ByKind(OpKind.OUT_FUSABLE, OpKind.BROADCAST), model) == {"conv add", "sum exp"}
    assert joins(ByKind(OpKind.BROADCAST, OpKind.REDUCTION), model) == {"add sum", "exp tr"}
    assert joins(ByKind(OpKind.INJECTIVE, OpKind.INJECTIVE), model) == {"exp tr"}


def test_join_anything_joins_whatever_touches_and_stays_convex() -> None:
    model = text_model("""g (float[4] x) => (float[4] z) {
        [a] p = Relu(x) [b] q = Exp(p) [c] z = Add(p, q) }""")
    assert joins(JoinAnything(), model) == {"a b", "b c", "a b c"}


LISTS = """g (float[4] x, float[4] w) => (float[2] y, float[2] z) {
    [a] p = Relu(x) [b] q = Exp(w) [cat] r = Concat <axis = 0> (p, q)
    [split] y0, z0 = Split <num_outputs = 2> (r) [c] y = Abs(y0) [d] z = Neg(z0) }"""


def test_variadic_inputs_are_joined_all_at_once() -> None:
    assert joins(VariadicInputs(), text_model(LISTS)) == {"a b cat"}


def test_list_with_an_input_that_cannot_be_joined_is_left_alone() -> None:
    assert joins(VariadicInputs(), text_model(LISTS.replace("Exp(w)", "Softmax(w)"))) == set()


def test_all_readers_of_several_outputs_are_joined_at_once() -> None:
    assert joins(MultiOutputs(), text_model(LISTS)) == {"split c d"}


def test_nodes_of_constants_alone_go_with_their_reader() -> None:
    model = text_model("""g (float[1,4] x) => (float[1,2] y)
        <uint8[4,2] w = {1, 2, 3, 4, 5, 6, 7, 8}, float scale = {0.5}, uint8 zero = {4}> {
        [dq] d = DequantizeLinear(w, scale, zero) [cast] c = Cast <to = 1> (d)
        [relu] r = Relu(x) [mm] y = MatMul(r, c) }""")
    assert joins(ConstantInputs(), model) == {"dq cast", "dq cast mm"}


def test_a_bound_on_depth_or_count_is_noted() -> None:
    model = text_model(
        "g (float[4] v0) => (float[4] v9) { "
        + " ".join(f"v{i + 1} = Relu(v{i})" for i in range(9))
        + " }"
    )
    chain = CombineRule(OpPredicateRule(), (JoinAnything(),), max_depth=3, name="chain")
    lines = text(chain, model)
    assert len(lines) == 9 + 8 + 7 + 1
    assert lines[-1].startswith("note: combine chain: ") and "deeper than 3" in lines[-1]
    few = CombineRule(OpPredicateRule(), (JoinAnything(),), max_candidates=12)
    lines = text(few, model)
    assert len(lines) == 13
    assert lines[-1] == "note: combine: stopped at 12 candidates"


# The typical rule trees of RFC 0062, under "PartitionRule".


def test_rfc_classic_operator_predicates() -> None:
    """`AnnotateTarget`, `MergeCompilerRegions`, `PartitionGraph`, as TensorRT's integration has it."""
    rule = PrimitiveRule(
        "trt",
        OnlyValidRule(ONE_KERNEL, CombineRule(OpPredicateRule(("Conv", "Add")), (JoinAnything(),))),
    )
    assert text(rule, text_model(CONV_NET)) == [
        "trt.Conv | out_fusable | conv1",
        "trt.Add | broadcast | add",
        "trt.Conv | out_fusable | conv2",
        "trt.Conv+Add | out_fusable | conv1 add",
    ]


def test_rfc_classic_patterns() -> None:
    """`MergeComposite`, `AnnotateTarget`, `PartitionGraph`, as cutlass' integration has it."""
    composites = UnionRule(
        (
            CompositeRule("cutlass.conv_add_relu", PatternRule(CONV_ADD_RELU)),
            CompositeRule("cutlass.conv", PatternRule(CONV)),
        )
    )
    limits = Limits(max_depth=4, max_exits=1, allow_taps=False)
    rule = PrimitiveRule("cutlass", OnlyValidRule(limits, CombineRule(composites, (JoinAnything(),))))
    assert text(rule, text_model(CONV_NET)) == [
        "cutlass.cutlass.conv_add_relu.conv_add_relu | out_fusable | conv1 add relu",
        "cutlass.cutlass.conv.conv | out_fusable | conv1",
        "cutlass.cutlass.conv.conv | out_fusable | conv2",
        "cutlass.cutlass.conv_add_relu.conv_add_relu+cutlass.conv.conv | out_fusable"
        " | conv1 add relu conv2",
    ]


def test_rfc_consider_this_library() -> None:
    """A library's functions stand beside the native operators and fuse with them."""
    parts = UnionRule((OpKindRule(), CompositeRule("library", PatternRule(CONV_ADD))))
    rule = OnlyValidRule(ONE_KERNEL, CombineRule(parts, FUSE_OPS))
    assert text(rule, text_model(CONV_NET)) == [
        "Conv | out_fusable | conv1",
        "Add | broadcast | add",
        "Relu | elementwise | relu",
        "Conv | out_fusable | conv2",
        "library.conv_add | out_fusable | conv1 add",
        "Add+Relu | broadcast | add relu",
        "library.conv_add+Relu | out_fusable | conv1 add relu",
    ]


def test_rfc_classic_fuse_ops() -> None:
    rule = PrimitiveRule("tvm", OnlyValidRule(ONE_KERNEL, CombineRule(OpKindRule(), FUSE_OPS)))
    assert text(rule, text_model(CONV_NET)) == [
        "tvm.Conv | out_fusable | conv1",
        "tvm.Add | broadcast | add",
        "tvm.Relu | elementwise | relu",
        "tvm.Conv | out_fusable | conv2",
        "tvm.Conv+Add | out_fusable | conv1 add",
        "tvm.Add+Relu | broadcast | add relu",
        "tvm.Conv+Add+Relu | out_fusable | conv1 add relu",
    ]


def test_rfc_just_fuse_what_i_tell_you_to_fuse() -> None:
    told = UnionRule((PatternRule(CONV_ADD_RELU), PatternRule(CONV)))
    rule = PrimitiveRule("told", OnlyValidRule(ONE_KERNEL, told))
    assert text(rule, text_model(CONV_NET)) == [
        "told.conv_add_relu | out_fusable | conv1 add relu",
        "told.conv | out_fusable | conv1",
        "told.conv | out_fusable | conv2",
    ]


def test_rules_are_values() -> None:
    assert OpKindRule() == OpKindRule() and hash(CombineRule(OpKindRule(), FUSE_OPS))
    assert OpKindRule() != OpKindRule(max_kind=OpKind.INJECTIVE)


@pytest.mark.slow
@settings(deadline=None)
@given(random_models(max_nodes=10))
def test_every_join_is_convex_and_within_its_limits(model: TextModel) -> None:
    limits = Limits(max_depth=3, max_exits=2, allow_taps=False)
    combiners = (*FUSE_OPS, JoinAnything(), ConstantInputs())
    rule = OnlyValidRule(limits, CombineRule(OpPredicateRule(), combiners, max_depth=4))
    found = rule.candidates(Scope(model, lambda index, node: None)).found
    assert len({p.nodes for p in found}) == len(found)
    for proposal in found:
        sub_graph = SubGraph(model.index, proposal.nodes)
        assert sub_graph.violation(limits) is None
        assert proposal.kind == max(
            Scope(model, lambda index, node: None).kinds[i] for i in sub_graph.members
        )


def connected_convex_sets(index: GraphIndex) -> set[int]:
    """Brute force over all sets of nodes."""
    found = set()
    for nodes in range(1, index.all_nodes + 1):
        first = nodes & -nodes
        reached = grown = first
        while grown:
            touched = 0
            for i in range(len(index.nodes)):
                if grown >> i & 1:
                    touched |= index.predecessors[i] | index.successors[i]
            grown = touched & nodes & ~reached
            reached |= grown
        if reached == nodes and index.is_convex(nodes):
            found.add(nodes)
    return found


@settings(deadline=None, max_examples=30)
@given(random_models(max_nodes=8))
def test_join_anything_finds_every_connected_convex_set(model: TextModel) -> None:
    rule = CombineRule(OpPredicateRule(), (JoinAnything(),), max_depth=99, max_candidates=10**6)
    proposals = rule.candidates(Scope(model, lambda index, node: None))
    assert {p.nodes for p in proposals.found} == connected_convex_sets(model.index)
    assert not proposals.notes
