"""Patterns: what is found, what is refused, and the traps of the matcher underneath."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

from collage.partitioner.graph.graph_index import GraphIndex
from collage.partitioner.rules.pattern import Pattern
from tests.partitioner.graphs import TextModel, names, text_model

CONV_RELU = Pattern("conv_relu", lambda op, x: op.Relu(op.Conv(x, _allow_other_inputs=True)))


def found(pattern: Pattern, model: TextModel) -> list[str]:
    return [names(model.index, nodes) for nodes in pattern.matches(model)]


def test_matches_are_found_at_every_root_and_may_overlap() -> None:
    model = text_model("""g (float[1,3,8,8] x, float[3,3,1,1] w) => (float[1,3,8,8] z) {
        a = Conv(x, w)  b = Relu(a)  c = Relu(a)  d = Conv(b, w)  e = Relu(d)  z = Add(c, e) }""")
    assert found(CONV_RELU, model) == ["Conv0 Relu1", "Conv0 Relu2", "Conv3 Relu4"]


def test_each_order_of_inputs_is_a_pattern_of_its_own() -> None:
    model = text_model("""g (float[4] x, float[4] b) => (float[4] y, float[4] z) {
        a = Relu(x)  y = Add(a, b)  z = Add(b, a) }""")
    left = Pattern("relu_add", lambda op, x, b: op.Add(op.Relu(x), b))
    right = Pattern("add_relu", lambda op, x, b: op.Add(b, op.Relu(x)))
    assert found(left, model) == ["Relu0 Add1"]
    assert found(right, model) == ["Relu0 Add2"]


def test_a_match_that_is_not_convex_is_refused() -> None:
    model = text_model("""g (float[4] x) => (float[4] y) {
        a = Relu(x)  b = Sqrt(a)  y = Add(a, b) }""")
    around = Pattern("relu_add", lambda op, x, b: op.Add(op.Relu(x), b))
    assert found(around, model) == []


def test_two_pattern_nodes_never_match_one_node() -> None:
    twice = Pattern("siblings", lambda op, x, y: (op.Relu(x), op.Relu(y)))
    assert found(twice, text_model("g (float[4] x) => (float[4] y) { y = Relu(x) }")) == []


def test_every_choice_of_several_roots_is_found_once() -> None:
    model = text_model("""g (float[4,4] x, float[4,4] w) => (float[4,4] p, float[4,4] q, float[4,4] r) {
        p = MatMul(x, w)  q = MatMul(x, w)  r = MatMul(x, w) }""")
    siblings = Pattern("siblings", lambda op, x, v, w: (op.MatMul(x, v), op.MatMul(x, w)))
    assert found(siblings, model) == ["MatMul0 MatMul1", "MatMul0 MatMul2", "MatMul1 MatMul2"]


def test_pattern_check_gets_nodes_in_pattern_order_and_can_refuse() -> None:
    seen: list[tuple[str, ...]] = []

    def check(index: GraphIndex, members: tuple[int, ...]) -> str | None:
        seen.append(tuple(index.nodes[i].name for i in members))
        return "no second one" if len(seen) > 1 else None

    model = text_model("""g (float[1,3,8,8] x, float[3,3,1,1] w) => (float[1,3,8,8] d) {
        a = Conv(x, w)  b = Relu(a)  c = Conv(b, w)  d = Relu(c) }""")
    assert found(Pattern("conv_relu", CONV_RELU.build, check), model) == ["Conv0 Relu1"]
    assert seen == [("Conv0", "Relu1"), ("Conv2", "Relu3")]


def test_other_inputs_and_absent_inputs_are_distinguished() -> None:
    model = text_model("""g (float[1,3,8,8] x, float[3,3,1,1] w, float[3] b) => (float[1,3,8,8] c) {
        a = Conv(x, w)  c = Conv(a, w, b) }""")
    assert found(Pattern("plain", lambda op, x, w: op.Conv(x, w)), model) == ["Conv0"]
    assert found(Pattern("bias", lambda op, x, w, b: op.Conv(x, w, b)), model) == ["Conv1"]


def test_attributes_named_in_the_pattern_must_agree() -> None:
    model = text_model("""g (float[2,3] x) => (float[2,3] z) {
        y = Transpose <perm = [1, 0]> (x)  z = Transpose <perm = [0, 1]> (y) }""")
    assert found(Pattern("t", lambda op, x: op.Transpose(x, perm=[1, 0])), model) == ["Transpose0"]


def test_bodies_are_not_searched() -> None:
    model = text_model("""g (bool c, float[4] x) => (float[4] y) {
        y = If (c) <then_branch = t () => (float[4] a) { a = Relu(x) },
                    else_branch = e () => (float[4] b) { b = Sqrt(x) }> }""")
    assert found(Pattern("relu", lambda op, x: op.Relu(x)), model) == []


def test_pattern_may_be_matched_by_many_threads() -> None:
    body = " ".join(
        f"v{i + 1} = {'Conv(v%d, w)' if i % 2 == 0 else 'Relu(v%d)'}" % i for i in range(40)
    )
    model = text_model(f"g (float[1,3,8,8] v0, float[3,3,1,1] w) => (float[1,3,8,8] v40) {{ {body} }}")

    def job(_: Any) -> list[int]:
        return CONV_RELU.matches(model)

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(job, range(32)))
    assert len(answers[0]) == 20
    assert all(answer == answers[0] for answer in answers)
