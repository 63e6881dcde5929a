"""A product whose result is split becomes one for each part, where nothing else reads what lies between."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import pytest

from collage.backends.rewriting.graph import RewriteGraph
from collage.backends.rewriting.passes.channels_first import keep_channels_first
from collage.backends.rewriting.passes.split_product import split_products
from tests.forms import Array, converted, parsed, weights

_GATE = """g (float[2, 6, 5, 4] x) => (float[2, 4, 5, 4] y) {
    a = Conv(x, w, b)   c = Mul(a, scale)   d = Sigmoid(c)   e = Mul(c, d)   f = PRelu(e, slope)   h = Add(f, one)
    i, j = SPLIT
    k = Tanh(j)   l = Mul(k, i)   y = Identity(l)
}"""


def gate(opset: int, split: str, **more: Array) -> onnx.ModelProto:
    return parsed(
        _GATE.replace("i, j = SPLIT", split),
        opset,
        w=weights(8, 6, 1, 1),
        b=weights(8, seed=1),
        scale=weights(1, 8, 1, 1) + 2,
        slope=weights(8, 1, 1),
        one=np.ones((), np.float32),
        **more,
    )


_SLICES = "i = Slice(h, zero, four, along)   j = Slice(h, four, many, along)"
_ENDS = {"zero": np.array([0]), "four": np.array([4]), "many": np.array([99]), "along": np.array([-3])}


@pytest.mark.parametrize(
    ("opset", "split", "more"),
    [
        (12, "i, j = Split <axis = 1, split = [4, 4]> (h)", {}),
        (17, "i, j = Split <axis = -3> (h, sizes)", {"sizes": np.array([4, 4])}),
        (18, "i, j = Split <axis = 1, num_outputs = 2> (h)", {}),
        (17, _SLICES, _ENDS),
    ],
)
def test_a_gate_is_computed_in_its_parts(
    opset: int, split: str, more: dict[str, Array], tmp_path: Path
) -> None:
    model = gate(opset, split, **more)
    found, kinds, error = converted(model, split_products, tmp_path)
    assert found == 1 and error < 1e-6
    count = Counter(kinds)
    assert count["Conv"] == count["PRelu"] == 2 and count["Slice"] == 0
    # Of constants alone, which are folded when a runtime compiles.
    given = {tensor.name for tensor in model.graph.initializer}
    assert all(node.input[0] in given for node in model.graph.node if node.op_type == "Split")
    names = [node.name for node in model.graph.node]
    assert len(set(names)) == len(names)


def test_slices_that_stand_in_another_order_are_parts_too(tmp_path: Path) -> None:
    """Three parts, of which one comes before the others, and one is an output."""
    model = parsed(
        """g (float[2, 6, 5, 4] x) => (float[2, 3, 5, 4] y, float[2, 2, 5, 4] z) {
            a = Conv(x, w)   c = Add(b, a)   f = Relu(c)
            last = Slice(f, five, seven, along)   z = Slice(f, zero, two, along)   m = Slice(f, two, five, along)
            r = ReduceSum <keepdims = 1> (last, along)   y = Add(m, r)
        }""",
        w=weights(7, 6, 1, 1),
        b=weights(7, 1, 1, seed=1),
        **{
            n: np.array([i])
            for n, i in {"zero": 0, "two": 2, "five": 5, "seven": 7, "along": 1}.items()
        },
    )
    found, kinds, error = converted(model, split_products, tmp_path)
    assert (found, kinds.count("Conv"), error < 1e-6) == (1, 3, True)


@pytest.mark.parametrize(("parts", "products"), [(2, 2), (3, 1)])
def test_rows_are_split_in_two(parts: int, products: int, tmp_path: Path) -> None:
    """Three are an attention's queries, keys and values."""
    names = ["y", "z", "u"][:parts]
    outputs = ", ".join(f"float[2, 5, 2] {name}" for name in names)
    model = parsed(
        f"""g (float[2, 5, 6] x) => ({outputs}) {{
            a = MatMul(x, w)   c = Add(b, a)   {", ".join(names)} = Split <axis = -1> (c)
        }}""",
        w=weights(6, 2 * parts),
        b=weights(2 * parts, seed=1),
    )
    found, kinds, error = converted(model, split_products, tmp_path)
    assert (found, kinds.count("MatMul"), error < 1e-6) == (products > 1, products, True)


def test_product_made_by_channels_first_is_split_too(tmp_path: Path) -> None:
    model = parsed(
        """g (float[1, 6, 5, 4] x) => (float[1, 4, 5, 4] y) {
            a = Transpose <perm = [0, 2, 3, 1]> (x)   c = MatMul(a, w)   d = Add(b, c)
            i, j = Split <axis = -1> (d, sizes)   k = Mul(i, j)   y = Transpose <perm = [0, 3, 1, 2]> (k)
        }""",
        w=weights(6, 8),
        b=weights(8),
        sizes=np.array([4, 4]),
    )

    def both(graph: RewriteGraph) -> int:
        assert keep_channels_first(graph) == 2
        return split_products(RewriteGraph(graph.proto))

    found, kinds, error = converted(model, both, tmp_path)
    assert (found, kinds.count("Conv"), error < 1e-6) == (1, 2, True)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ("overlap", "i = Slice(h, zero, five, along)   j = Slice(h, four, many, along)"),
        ("gap", "i = Slice(h, zero, three, along)   j = Slice(h, four, many, along)"),
        ("step", "i = Slice(h, zero, many, along, two)   j = Slice(h, four, many, along)"),
        ("other axis", "i, j = Split <axis = 2> (h)"),
        ("many parts", "i, j, k, l = Split <axis = 1> (h)"),
        ("read besides", "i, j = Split <axis = 1> (h)   k = Relu(e)"),
        ("grouped", "i, j = Split <axis = 1> (h)"),
        ("of places", "i, j = Split <axis = 1> (h)"),
        ("two products", "i, j = Split <axis = 1> (h)"),
        ("weights computed", "i, j = Split <axis = 1> (h)"),
    ],
)
def test_other_splits_stay(change: str, text: str) -> None:
    first = {
        "grouped": "a = Conv <group = 2> (x, half, b)",
        "of places": "a = Conv <pads = [1, 1, 1, 1]> (x, wide, b)",
        "two products": "p = Conv(x, w, b)   q = Conv(x, w)   a = Add(p, q)",
        "weights computed": "v = Relu(w)   a = Conv(x, v, b)",
    }.get(change, "a = Conv(x, w, b)")
    model = parsed(
        f"""g (float[1, 6, 6, 4] x) => (float[1] y, float[1] z) {{
            {first}   e = Sigmoid(a)   h = Mul(a, e)
            {text}
            y = Relu(i)   z = Relu(j)
        }}""",
        w=weights(8, 6, 1, 1),
        half=weights(8, 3, 1, 1),
        wide=weights(8, 6, 3, 3),
        b=weights(8),
        **{
            n: np.array([i]) for n, i in {"zero": 0, "two": 2, "three": 3, "five": 5, "four": 4}.items()
        },
        many=np.array([99]),
        along=np.array([1]),
    )
    assert split_products(RewriteGraph(model)) == 0


def test_split_product_cuts_a_constant_for_the_outputs_alone(
    tmp_path: Path,
) -> None:
    """The constant is read for the outputs and as positions; the second use keeps the whole."""
    model = parsed(
        """g (float[1, 6, 5, 8] x) => (float[1, 4, 5, 8] y) {
            a = Conv(x, w, b)   c = Add(a, b)   i, j = Split <axis = 1> (c)   y = Mul(i, j)
        }""",
        w=weights(8, 6, 1, 1),
        b=weights(8, seed=1),
    )
    found, _, error = converted(model, split_products, tmp_path)
    assert found == 1 and error < 1e-6
