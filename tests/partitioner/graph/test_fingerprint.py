"""Fingerprints: equal for equal work, whatever it is called, and never equal for different wiring."""

from __future__ import annotations

import random
import time

import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collage.partitioner.graph.fingerprint import fingerprint
from collage.partitioner.graph.graph_index import GraphIndex
from tests.partitioner.graphs import TextModel, text_model


def whole(body: str, opset: int = 20) -> str:
    index = text_model(body, opset).index
    return fingerprint(index, index.all_nodes)


def test_names_do_not_count() -> None:
    one = whole("g (float[4] x, float[4] b) => (float[4] y) { t = Relu(x)  y = Add(t, b) }")
    two = whole("h (float[4] in, float[4] c) => (float[4] q) { [n] r = Relu(in) [m] q = Add(r, c) }")
    assert one == two


def test_the_order_of_independent_branches_does_not_count() -> None:
    first = "a = Relu(x)  b = Sqrt(x)  y = Sub(a, b)"
    other = "b = Sqrt(x)  a = Relu(x)  y = Sub(a, b)"
    assert len({whole(f"g (float[4] x) => (float[4] y) {{ {t} }}") for t in (first, other)}) == 1
    first = "a = Relu(x)  y = Exp(a)  b = Sqrt(x)  z = Exp(b)"
    other = "b = Sqrt(x)  z = Exp(b)  a = Relu(x)  y = Exp(a)"
    assert (
        len({whole(f"g (float[4] x) => (float[4] y, float[4] z) {{ {t} }}") for t in (first, other)})
        == 1
    )


def test_fingerprint_differs_for_other_operators_or_values() -> None:
    """Every one of these differs from every other in wiring, type, shape, attribute or opset."""
    bodies = [
        "g (float[4] x, float[4] b) => (float[4] y) { t = Relu(x)  y = Sub(t, b) }",
        "g (float[4] x, float[4] b) => (float[4] y) { t = Relu(x)  y = Sub(b, t) }",
        "g (float[4] x, float[4] b) => (float[4] y) { t = Relu(x)  y = Sub(t, x) }",
        "g (float[4] x, float[4] b) => (float[4] y) { t = Relu(x)  y = Sub(t, t) }",
        "g (float[4] x, float[4] b) => (float[4] y, float[4] t) { t = Relu(x)  y = Sub(t, b) }",
        "g (float[4] x, float[4] b) => (float[4] y) { t = Sqrt(x)  y = Sub(t, b) }",
        "g (float[5] x, float[5] b) => (float[5] y) { t = Relu(x)  y = Sub(t, b) }",
        "g (double[4] x, double[4] b) => (double[4] y) { t = Relu(x)  y = Sub(t, b) }",
        "g (float[4] x) => (float[4] y) <float[4] b = {1, 2, 3, 4}> { t = Relu(x)  y = Sub(t, b) }",
        "g (float[4] x) => (float[4] y) <float[4] b = {1, 2, 3, 5}> { t = Relu(x)  y = Sub(t, b) }",
        "g (float[4] x) => (float[4] y) { t = Relu(x)  y = LeakyRelu <alpha = 0.1> (t) }",
        "g (float[4] x) => (float[4] y) { t = Relu(x)  y = LeakyRelu <alpha = 0.2> (t) }",
    ]
    assert len({whole(body) for body in bodies} | {whole(bodies[0], opset=19)}) == len(bodies) + 1


def test_which_output_of_a_node_is_read_counts() -> None:
    bodies = [
        "g (float[4] x) => (float[2] y) { a, b = Split <num_outputs = 2> (x)  y = Sub(a, b) }",
        "g (float[4] x) => (float[2] y) { a, b = Split <num_outputs = 2> (x)  y = Sub(b, a) }",
        "g (float[4] x) => (float[2] y) { a, b = Split <num_outputs = 2> (x)  y = Sub(b, b) }",
    ]
    assert len({whole(body) for body in bodies}) == 3


def test_sharing_an_input_or_a_weight_counts() -> None:
    shared = "g (float[4] x, float[4] z) => (float[4] p, float[4] q) { p = Relu(x)  q = Relu(x) }"
    apart = "g (float[4] x, float[4] z) => (float[4] p, float[4] q) { p = Relu(x)  q = Relu(z) }"
    assert whole(shared) != whole(apart)


def test_large_constants_count_by_shape_so_repeated_blocks_are_one() -> None:
    """Two blocks with other biases and other names are measured once; shapes count by value."""
    values = ", ".join(str(i) for i in range(16))
    model = text_model(f"""g (float[1,16] x) => (float[1,16] y)
        <float[16] b = {{{values}}}, float[16] c = {{{values.replace("15", "7")}}},
         int64[2] s = {{1, 16}}, int64[2] t = {{16, 1}}> {{
        h = Add(x, b)  i = Relu(h)  j = Add(i, c)  k = Relu(j)
        l = Reshape(k, s)  m = Reshape(l, t)  y = Reshape(m, s) }}""")
    index = model.index
    assert fingerprint(index, 0b0011) == fingerprint(index, 0b1100)
    assert fingerprint(index, 0b0110000) != fingerprint(index, 0b1100000)


def test_fingerprint_depends_on_values_needed_outside() -> None:
    model = text_model("""g (float[4] x) => (float[4] z) {
        a = Relu(x)  b = Exp(a)  c = Relu(b)  d = Exp(c)  z = Add(c, d) }""")
    assert fingerprint(model.index, 0b00011) != fingerprint(model.index, 0b01100)


def branch(then: str, captured: str = "x") -> str:
    return f"""g (bool c, float[4] x, float[4] w) => (float[4] y) {{ w2 = Relu(w)
        y = If (c) <then_branch = t () => (float[4] a) {{ {then} }},
                    else_branch = e () => (float[4] b) {{ b = Sqrt({captured}) }}> }}"""


def test_bodies_count_but_not_their_names() -> None:
    assert whole(branch("a = Relu(x)")) == whole(
        branch("q = Relu(x)").replace("float[4] a", "float[4] q")
    )
    bodies = [branch("a = Relu(x)"), branch("a = Exp(x)"), branch("a = Relu(x)", captured="w2")]
    assert len({whole(body) for body in bodies}) == 3


def test_renaming_what_a_body_captures_changes_nothing() -> None:
    body = branch("r = Relu(x)  a = Add(r, w2)", captured="w2")
    assert whole(body) == whole(
        body.replace("w2", "a0").replace("(x)", "(zz)").replace("] x,", "] zz,")
    )


def shuffled(model: TextModel, seed: int) -> TextModel:
    """The same graph, other names, listed in another topological order."""
    pick = random.Random(seed)
    copy = model.ir.clone()
    waiting, done, order = list(copy.graph), set(), []
    while waiting:
        ready = [
            n for n in waiting if all(v is None or v.producer() in done | {None} for v in n.inputs)
        ]
        node = pick.choice(ready)
        waiting.remove(node)
        done.add(node)
        order.append(node)
    copy.graph.remove(order)
    copy.graph.extend(order)
    for i, node in enumerate(pick.sample(order, len(order))):
        node.name = f"n{i}"
        for value in node.outputs:
            value.name = f"v{i}_{value.index()}"
    return TextModel(copy, GraphIndex.from_ir(copy))


@st.composite
def random_models(draw: st.DrawFn) -> TextModel:
    """Random graphs of one- and two-input operators of few kinds, so nearly symmetric."""
    count = draw(st.integers(2, 12))
    steps = []
    for i in range(count):
        before = st.sampled_from([f"v{j}" for j in range(i)] + ["x", "w"])
        one, two = draw(before), draw(before)
        form = draw(st.sampled_from([f"Relu({one})", f"Sub({one}, {two})", f"Add({one}, {two})"]))
        steps.append(f"v{i} = {form}")
    outputs = ", ".join(f"float[4] v{j}" for j in sorted({count - 1, draw(st.integers(0, count - 1))}))
    return text_model(f"g (float[4] x, float[4] w) => ({outputs}) {{ {'  '.join(steps)} }}")


def test_equal_sinks_differ_by_the_other_readers_of_their_input() -> None:
    """The two Relu look alike; which of them shares the first input of Sub is what matters."""
    one = "p = Relu(x)  q = Relu(w)  r = Sub(x, w)"
    two = "p = Relu(w)  q = Relu(x)  r = Sub(x, w)"
    head = "g (float[4] x, float[4] w) => (float[4] p, float[4] q, float[4] r)"
    assert whole(f"{head} {{ {one} }}") == whole(f"{head} {{ {two} }}")


def test_many_equal_sinks_take_no_time() -> None:
    steps = " ".join(f"y{i} = Relu(x)" for i in range(500))
    model = text_model(f"g (float[4] x) => (float[4] y0) {{ {steps} }}")
    start = time.process_time()
    fingerprint(model.index, model.index.all_nodes ^ 1)
    assert time.process_time() - start < 1


@pytest.mark.slow
@settings(deadline=None)
@given(random_models(), st.integers(0, 1000))
def test_renaming_and_reordering_changes_no_fingerprint(model: TextModel, seed: int) -> None:
    other = shuffled(model, seed)
    assert [n.name for n in model.index.nodes] != [n.name for n in other.index.nodes]
    assert fingerprint(model.index, model.index.all_nodes) == fingerprint(
        other.index, other.index.all_nodes
    )


def isomorphic(one: GraphIndex, two: GraphIndex) -> bool:
    """Brute force: is there a renaming of nodes and graph inputs that keeps operators and wiring?"""
    if len(one.nodes) != len(two.nodes):
        return False

    def extend(i: int, to: dict[str, str]) -> bool:
        if i == len(one.nodes):
            return {to[name] for name in one.outputs} == set(two.outputs)
        node = one.nodes[i]
        for image in two.nodes:
            if image.op_type != node.op_type or image.outputs[0] in to.values():
                continue
            new = dict(to)
            for a, b in zip(
                (*node.inputs, *node.outputs), (*image.inputs, *image.outputs), strict=True
            ):
                if (a in one.inputs) != (b in two.inputs) or new.setdefault(a, b) != b:
                    break
            else:
                if len(set(new.values())) == len(new) and extend(i + 1, new):
                    return True
        return False

    return extend(0, {})


@pytest.mark.slow
@settings(deadline=None)
@given(st.lists(random_models(), min_size=2, max_size=2))
def test_equal_fingerprints_mean_isomorphic(models: list[TextModel]) -> None:
    one, two = (m.index for m in models)
    if fingerprint(one, one.all_nodes) == fingerprint(two, two.all_nodes):
        assert isomorphic(one, two)
    else:
        assert not isomorphic(one, two)


def test_fingerprint_is_the_same_in_every_process() -> None:
    """A change here makes every stored cost unknown; then raise the protocol's version."""
    body = "g (float[4] x) => (float[4] y) <float[1] b = {2}> { t = Relu(x)  y = Mul(t, b) }"
    assert whole(body) == PINNED


PINNED = "483ee89c4dbcf87d5ed266f3d077f17ad10fdb805c35bec513ea59ab010df92b"


def test_a_written_and_reloaded_model_agrees() -> None:
    model = text_model("g (float[4] x) => (float[4] y) { t = Relu(x)  y = Exp(t) }")
    again = ir.from_proto(ir.to_proto(model.ir))
    index = GraphIndex.from_ir(again)
    assert fingerprint(index, index.all_nodes) == fingerprint(model.index, model.index.all_nodes)
