"""Channels that a model puts last between convolutions stay first, where that leaves fewer Transposes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from collage.backends.contract import CompileContext, SubModel
from collage.backends.numerics.comparison import output_error
from collage.backends.numerics.reference import run_reference
from collage.backends.rewriting.graph import RewriteGraph
from collage.backends.rewriting.passes.channels_first import keep_channels_first
from collage.backends.rewriting.rewrite import changes, rewritten
from collage.backends.sandbox.run import run_in_child
from collage.partitioner.graph.model import Model
from collage.partitioner.target import Target
from tests.forms import converted, parsed, weights
from tests.models import seeded_input

_TO_LAST, _TO_FIRST = "perm = [0, 2, 3, 1]", "perm = [0, 3, 1, 2]"
# ConvNeXt's block, with a response normalization, a gate, two halves, a softmax and an embedding of places.
_BLOCK = f"""g (float[2, 4, 5, 6] x) => (float[2, 4, 5, 6] y, float[2, 8] z) {{
    a = Conv <pads = [1, 1, 1, 1]> (x, w)
    b = Transpose <{_TO_LAST}> (a)
    n = LayerNormalization <axis = -1, epsilon = 0.01> (b, scale, bias)
    m = MatMul(n, up)
    u = Add(m, up_bias)
    e = Erf(u)
    g1 = Add(e, one)
    g2 = Mul(u, g1)
    r = ReduceL2 <REDUCED, keepdims = 1> (g2)
    s = Mul(g2, r)
    z = ReduceMean <REDUCED, keepdims = 0> (s)
    h, i = Split <axis = -1> (s, halves)
    j = Softmax <axis = -1> (h)
    k = Mul(i, j)
    l = Concat <axis = 3> (k, h)
    p = Sub(l, places)
    q = MatMul(p, down)
    o = Mul(q, layer_scale)
    t = Transpose <{_TO_FIRST}> (o)
    y = Add(x, t)
}}"""


def block(opset: int) -> onnx.ModelProto:
    axes = "axes = [1, 2]" if opset < 18 else ""
    text = _BLOCK.replace("<REDUCED, ", f"<{axes}, " if axes else "<")
    if opset >= 18:
        text = text.replace("(g2)\n    s", "(g2, over)\n    s").replace(
            "(s)\n    h", "(s, over)\n    h"
        )
    return parsed(
        text,
        opset,
        w=weights(4, 4, 3, 3),
        scale=weights(4) + 2,
        bias=weights(4, seed=1),
        up=weights(4, 8),
        up_bias=weights(8),
        one=np.ones((), np.float32),
        halves=np.array([4, 4]),
        places=weights(1, 5, 6, 8),
        down=weights(8, 4),
        layer_scale=weights(1, 1, 1, 4),
        **({"over": np.array([1, 2])} if opset >= 18 else {}),
    )


@pytest.mark.parametrize("opset", [17, 18])
def test_a_block_between_two_transposes_is_computed_without_them(opset: int, tmp_path: Path) -> None:
    model = block(opset)
    found, kinds, error = converted(model, keep_channels_first, tmp_path)
    assert found == 2 and error < 1e-6
    assert not {"MatMul", "LayerNormalization"} & set(kinds)
    # Of weights and of the embedding, which are folded when a runtime compiles.
    given = {tensor.name for tensor in model.graph.initializer}
    assert all(node.input[0] in given for node in model.graph.node if node.op_type == "Transpose")


def test_products_before_a_convolution_are_convolutions(tmp_path: Path) -> None:
    """What no Transpose comes before has one now, in place of the one behind."""
    model = parsed(
        f"""g (float[1, 5, 6, 4] x) => (float[1, 8, 5, 6] y, float[1, 8, 3, 4] z) {{
            a = MatMul(x, w)   y = Transpose <{_TO_FIRST}> (a)
            b = Relu(a)   c = Transpose <{_TO_FIRST}> (b)   z = Conv(c, v)
        }}""",
        w=weights(4, 8),
        v=weights(8, 8, 3, 3),
    )
    found, kinds, error = converted(model, keep_channels_first, tmp_path)
    assert (found, kinds.count("Conv"), error < 1e-6) == (1, 2, True)


def test_model_without_fewer_transposes_stays_as_it_is() -> None:
    """Windows are cut out of what a product made, and a sum with a value of another rank is last, too."""
    model = parsed(
        f"""g (float[1, 4, 6, 6] x, float[6, 4] other) => (float[1, 36, 4] y, float[1, 6, 6, 4] z) {{
            a = Transpose <{_TO_LAST}> (x)   b = MatMul(a, w)   y = Reshape(b, rows)   z = Add(b, other)
        }}""",
        w=weights(4, 4),
        rows=np.array([1, 36, 4]),
    )
    before = model.SerializeToString()
    assert keep_channels_first(RewriteGraph(model)) == 0
    assert model.SerializeToString() == before


def test_normalization_without_bias_or_with_computed_scale_is_rewritten(tmp_path: Path) -> None:
    """The second gets its input with channels last, and what follows is entered again."""
    model = parsed(
        f"""g (float[1, 4, 6, 6] x, float[4] given) => (float[1, 4, 6, 6] y) {{
            a = Transpose <{_TO_LAST}> (x)   b = LayerNormalization(a, scale)   c = Transpose <{_TO_FIRST}> (b)
            d = Relu(c)   e = Transpose <{_TO_LAST}> (d)   f = LayerNormalization(e, given)
            y = Transpose <{_TO_FIRST}> (f)
        }}""",
        scale=weights(4) + 2,
    )
    found, kinds, error = converted(model, keep_channels_first, tmp_path)
    assert (found, kinds.count("LayerNormalization"), error < 1e-6) == (2, 1, True)


@pytest.mark.parametrize("dtype", ["float16", "double"])
def test_other_numbers_stay(dtype: str) -> None:
    """Runtimes have their normalizations and convolutions for float32."""
    model = parsed(
        f"""g ({dtype}[1, 4, 6, 6] x) => ({dtype}[1, 4, 6, 6] y) {{
            a = Transpose <{_TO_LAST}> (x)   b = LayerNormalization(a, scale)   c = MatMul(b, w)
            y = Transpose <{_TO_FIRST}> (c)
        }}""",
        w=weights(4, 4).astype(dtype),
        scale=weights(4).astype(dtype),
    )
    assert keep_channels_first(RewriteGraph(model)) == 0


def test_values_that_are_read_both_ways_are_right(tmp_path: Path) -> None:
    model = parsed(
        f"""g (float[1, 4, 6, 6] x, float[6, 4] other)
            => (float[1, 4, 6, 6] y, float[1, 6, 6, 4] z, float[1, 6, 6] s, float[1, 6, 4] t) {{
            a = Transpose <{_TO_LAST}> (x)   b = Sigmoid(a)
            c = Transpose <{_TO_FIRST}> (b)   d = Conv(c, w)
            e = Transpose <{_TO_LAST}> (d)   f = Tanh(e)   y = Transpose <{_TO_FIRST}> (f)
            z = Add(f, other)   s = ReduceMax <axes = [3], keepdims = 0> (f)
            t = ReduceMin <axes = [1], keepdims = 0> (f)
        }}""",
        w=weights(4, 4, 1, 1),
    )
    found, kinds, error = converted(model, keep_channels_first, tmp_path)
    # Four went; one came back for the sum and the reduction that leaves the axes in another order.
    assert (found, kinds.count("Transpose"), error < 1e-6) == (3, 1, True)


def _attention() -> onnx.ModelProto:
    """Talking heads: products over the heads of an attention, whose queries and keys are cut out of one value.

    ONNX Runtime would join the first product and its sum into one of rows.
    """
    return parsed(
        f"""g (float[1, 6, 3, 4, 8] x) => (float[1, 4, 6, 8] y) {{
            v = Transpose <perm = [2, 0, 3, 1, 4]> (x)
            q = Gather <axis = 0> (v, zero)   k = Gather <axis = 0> (v, one)   u = Gather <axis = 0> (v, two)
            kt = Transpose <perm = [0, 1, 3, 2]> (k)   a = MatMul(q, kt)
            b = Transpose <{_TO_LAST}> (a)   c = MatMul(b, before)   w = Add(c, bias)   d = Transpose <{_TO_FIRST}> (w)
            e = Softmax <axis = -1> (d)
            f = Transpose <{_TO_LAST}> (e)   h = MatMul(f, after)   i = Transpose <{_TO_FIRST}> (h)
            y = MatMul(i, u)
        }}""",
        zero=np.array(0),
        one=np.array(1),
        two=np.array(2),
        before=weights(4, 4),
        after=weights(4, 4, seed=1),
        bias=weights(4),
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", ["openvino", "ncnn", "mnn"])
def test_channels_first_file_goes_to_runtimes_that_prefer_it(name: str, tmp_path: Path) -> None:
    """Not moved by ONNX Runtime first, where that would leave more Transposes."""
    path = tmp_path / "m.onnx"
    onnx.save(_attention(), path)
    index = Model.open(path).index
    model = SubModel(path, (index.values["x"],), (index.values["y"],))
    work = tmp_path / "work"
    work.mkdir()
    made = rewritten(model, Target.parse(f"{name} -rewrite=on"), CompileContext(1, work))
    assert run_in_child(changes, path.resolve()).found == {"channels_first": 4}
    kinds = [node.op_type for node in onnx.load(made.path).graph.node]
    assert kinds.count("Conv") == (0 if name == "mnn" else 2)
    given = {"x": seeded_input((1, 6, 3, 4, 8), "float32", 3)}
    wanted, found = (run_reference(file, given, ["y"])["y"] for file in (path, made.path))
    assert output_error("max", [found], [wanted]) < 1e-6
    assert not (made.path.parent / "unmoved").exists()
