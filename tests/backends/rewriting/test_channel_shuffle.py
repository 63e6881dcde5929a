"""Shuffles of channels go into the weights of the convolutions that read them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from collage.backends.rewriting.graph import RewriteGraph
from collage.backends.rewriting.passes.channel_shuffle import absorb_shuffles
from tests.forms import Array, converted, parsed, weights


def shuffle(value: str, result: str) -> str:
    return f"""{result}_1 = Reshape({value}, groups)   {result}_2 = Transpose <perm = [0, 2, 1, 3, 4]> ({result}_1)
        {result} = Reshape({result}_2, whole)"""


_SHAPES = {"groups": np.array([2, 2, 4, 5, 6]), "whole": np.array([2, 8, 5, 6])}
_ENDS = {
    name: np.array([end]) for name, end in {"none": 0, "half": 4, "all": 99, "channels": 1}.items()
}
_SLICED = "b{i} = Slice({x}, none, half, channels)   c{i} = Slice({x}, half, all, channels)"
_SPLIT = "b{i}, c{i} = Split <axis = 1> ({x}, halves)"


@pytest.mark.parametrize(
    ("cut", "more"), [(_SPLIT, {"halves": np.array([4, 4])}), (_SLICED, _ENDS)], ids=["Split", "Slice"]
)
def test_units_one_after_the_other_shuffle_nothing(
    cut: str, more: dict[str, Array], tmp_path: Path
) -> None:
    """ShuffleNetV2: two units, and the next stage's, of which a branch is one convolution for each channel."""
    model = parsed(
        f"""g (float[2, 8, 5, 6] x) => (float[2, 8, 3, 3] y, float[2, 4, 5, 6] z) {{
            p = Relu(x)   q = Relu(p)   {shuffle("q", "s")}
            {cut.format(i=0, x="s")}   d0 = Conv(c0, w0, v)   e0 = Relu(d0)   f0 = Concat <axis = 1> (b0, e0)
            {shuffle("f0", "t")}
            {cut.format(i=1, x="t")}   d1 = Conv(c1, w1)   e1 = Sigmoid(d1)   f1 = Concat <axis = 1> (b1, e1)
            {shuffle("f1", "u")}
            m = Conv <group = 8, pads = [1, 1, 1, 1], strides = [2, 2]> (u, each, bias)
            y = Conv(m, last)   z = Conv(u, pointwise)
        }}""",
        w0=weights(4, 4, 1, 1),
        v=weights(4),
        w1=weights(4, 4, 1, 1, seed=1),
        each=weights(8, 1, 3, 3),
        bias=weights(8, seed=2),
        last=weights(8, 8, 1, 1),
        pointwise=weights(4, 8, 1, 1, seed=3),
        **_SHAPES,
        **more,
    )
    found, kinds, error = converted(model, absorb_shuffles, tmp_path)
    assert found == 3 and error < 1e-6
    assert not {"Transpose", "Reshape", "Split"} & set(kinds)
    # Of weights alone, which are folded when a runtime compiles.
    given = {tensor.name for tensor in model.graph.initializer}
    assert all(node.input[0] in given for node in model.graph.node if node.op_type == "Gather")


def test_readers_of_unshuffled_channels_get_them_unshuffled(tmp_path: Path) -> None:
    """An output, an elementwise operator, and a cut along another axis; one shuffle less is left to compute."""
    model = parsed(
        f"""g (float[2, 8, 5, 6] x) => (float[2, 8, 5, 6] y, float[2, 4, 5, 6] z, float[2, 4, 5, 3] t) {{
            p = Relu(x)   {shuffle("p", "s")}   a = Conv(s, w)   {shuffle("a", "b")}
            c, d = Split <axis = 1> (b, halves)   z = Conv(d, v)   y = Concat <axis = 1> (d, c)
            e, t = Split <axis = 3> (z, thirds)
        }}""",
        w=weights(8, 8, 1, 1),
        v=weights(4, 4, 1, 1),
        halves=np.array([4, 4]),
        thirds=np.array([3, 3]),
        **_SHAPES,
    )
    found, kinds, error = converted(model, absorb_shuffles, tmp_path)
    assert (found, "Transpose" in kinds, error < 1e-6) == (1, False, True)


@pytest.mark.parametrize("reader", ["Conv <group = 2> (s, w)", "Conv(s, v)", "Relu(s)", "Add(s, p)"])
def test_where_nobody_can_take_it_the_shuffle_stays(reader: str) -> None:
    """ShuffleNet's own convolutions are of groups, and weights may be computed."""
    model = parsed(
        f"""g (float[2, 8, 5, 6] x) => (float[2, 8, 5, 6] y) {{
            p = Relu(x)   {shuffle("p", "s")}   v = Relu(u)   y = {reader}
        }}""",
        w=weights(8, 4, 1, 1),
        u=weights(8, 8, 1, 1),
        **_SHAPES,
    )
    before = model.SerializeToString()
    assert absorb_shuffles(RewriteGraph(model)) == 0
    assert model.SerializeToString() == before


def test_other_transposes_are_no_channel_shuffle() -> None:
    """Space to depth, and a Reshape that joins other axes."""
    model = parsed(
        """g (float[2, 8, 5, 6] x) => (float[2, 8, 30] y) {
            a = Reshape(x, groups)   b = Transpose <perm = [0, 2, 1, 3, 4]> (a)   y = Reshape(b, whole)
        }""",
        groups=np.array([2, 2, 4, 5, 6]),
        whole=np.array([2, 8, 30]),
    )
    assert absorb_shuffles(RewriteGraph(model)) == 0
