"""What is spread over all places and concatenated is multiplied once, in what reads the concatenation."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from collage.backends.rewriting.graph import RewriteGraph
from collage.backends.rewriting.passes.broadcast_concat import split_broadcast_concat
from tests.forms import Array, converted, parsed, weights

_IMAGE = """g (float[2, 6, 5, 4] x) => (float[2, 8, 5, 4] y) {
    m = ReduceMean <axes = [2, 3]> (x)   w = Conv(m, wide)   s = SPREAD
    j = Concat <axis = 1> (s, x)   c = Conv(j, k, b)   y = Relu(c)
}"""


def image(
    spread: str, opset: int = 17, text: str = _IMAGE, **more: Array
) -> tuple[str, int, dict[str, Array]]:
    given = {"wide": weights(40, 6, 1, 1), "k": weights(8, 46, 1, 1, seed=1), "b": weights(8, seed=2)}
    return text.replace("SPREAD", spread), opset, given | more


_SHAPE = np.array([2, 40, 5, 4])


@pytest.mark.parametrize(
    ("spread", "opset", "more"),
    [
        ("Expand(w, shape)", 17, {"shape": _SHAPE}),
        ("Expand(w, shape)", 12, {"shape": np.array([5, 4])}),
        ("Tile(w, repeats)", 17, {"repeats": np.array([1, 1, 5, 4])}),
        ('Resize <mode = "linear"> (w, , , shape)', 17, {"shape": _SHAPE}),
        ("Resize(w, , scales)", 17, {"scales": np.array([1, 1, 5, 4], np.float32)}),
        ("Upsample(w, scales)", 9, {"scales": np.array([1, 1, 5, 4], np.float32)}),
    ],
)
def test_an_image_that_sees_its_mean(
    spread: str, opset: int, more: dict[str, Array], tmp_path: Path
) -> None:
    text, opset, given = image(spread, opset, **more)
    model = parsed(text, opset, **given)
    found, kinds, error = converted(model, split_broadcast_concat, tmp_path)
    assert found == 1 and error < 1e-6
    assert kinds == ["ReduceMean", "Conv", "Split", "Conv", "Conv", "Add", "Relu"]
    names = [node.name for node in model.graph.node]
    assert len(set(names)) == len(names)


def test_statistics_of_a_sound(tmp_path: Path) -> None:
    """Two values that are spread make one product, and the two in between them another."""
    model = parsed(
        """g (float[1, 24, 50] x) => (float[1, 8, 25] y) {
            m = ReduceMean <axes = [2]> (x)   d = Exp(m)   a = Expand(m, shape)   c = Expand(d, shape)   r = Relu(x)
            j = Concat <axis = -2> (a, x, c, r)   z = Conv <strides = [2]> (j, k)   y = Tanh(z)
        }""",
        shape=np.array([1, 1, 50]),
        k=weights(8, 96, 1),
    )
    found, kinds, error = converted(model, split_broadcast_concat, tmp_path)
    assert (found, kinds.count("Conv"), kinds.count("Expand")) == (1, 2, 0)
    assert error < 1e-6


def test_rows_that_see_the_whole(tmp_path: Path) -> None:
    """Of what is as large along one axis as along another, only what has the fewest places is a product of its own."""
    model = parsed(
        """g (float[2, 5, 4, 6] x) => (float[2, 5, 4, 8] y) {
            m = ReduceMax <axes = [1, 2]> (x)   w = MatMul(m, wide)   s = Expand(w, shape)
            n = ReduceMax <axes = [1]> (x)   t = Expand(n, shape)
            j = Concat <axis = -1> (x, t, s)   c = MatMul(j, k)   y = Add(c, b)
        }""",
        wide=weights(6, 40),
        shape=np.array([2, 5, 4, 1]),
        k=weights(52, 8, seed=1),
        b=weights(8),
    )
    found, kinds, error = converted(model, split_broadcast_concat, tmp_path)
    assert (found, kinds.count("MatMul"), kinds.count("Expand")) == (1, 3, 1)
    assert error < 1e-6


@pytest.mark.parametrize(
    ("given", "shapes"),
    [
        ("transB = 1, alpha = 0.5, beta = 2.0", [(8, 46), (8,)]),
        ("beta = 3.0", [(46, 8), (1, 8)]),
        ("alpha = 2.0", [(46, 8)]),
    ],
)
def test_rows_of_a_table_with_a_code(given: str, shapes: list[tuple[int, ...]], tmp_path: Path) -> None:
    names = ["k", "b"][: len(shapes)]
    model = parsed(
        f"""g (float[50, 6] x, float[1, 40] code) => (float[50, 8] y) {{
            s = Expand(code, shape)   j = Concat <axis = 1> (x, s)   g = Gemm <{given}> (j, {", ".join(names)})
            y = Relu(g)
        }}""",
        shape=np.array([50, 1]),
        **{name: weights(*shape) for name, shape in zip(names, shapes, strict=True)},
    )
    found, kinds, error = converted(model, split_broadcast_concat, tmp_path)
    assert (found, kinds.count("Gemm"), kinds.count("Expand")) == (1, 2, 0)
    assert error < 1e-6


@pytest.mark.parametrize(
    ("opset", "gemm"),
    [
        (10, "Gemm(j, k, row)"),
        (17, "Gemm(j, k, table)"),
        (17, "Gemm(j, k, column)"),
        (17, "Gemm <transA = 1> (j, square)"),
    ],
)
def test_a_table_of_another_kind_is_left(opset: int, gemm: str) -> None:
    """Without a bias where one must be, with one that is no row, or read the other way round."""
    model = parsed(
        f"""g (float[50, 6] x, float[1, 40] code) => (float y) {{
            s = Expand(code, shape)   j = Concat <axis = 1> (x, s)   y = {gemm}
        }}""",
        opset,
        shape=np.array([50, 1]),
        k=weights(46, 8),
        square=weights(50, 8),
        row=weights(8),
        table=weights(50, 8),
        column=weights(50, 1),
    )
    assert split_broadcast_concat(RewriteGraph(model)) == 0


def test_value_broadcast_over_channels_too_is_added_in_each_position(tmp_path: Path) -> None:
    model = parsed(
        """g (float[2, 6, 5, 4] x) => (float[2, 8, 5, 4] y) {
            m = ReduceMean <axes = [2, 3]> (x)   w = Conv(m, wide)   s = Expand(w, shape)
            n = ReduceMean <axes = [1, 2, 3]> (x)   t = Expand(n, shape)
            j = Concat <axis = 1> (t, s, x)   c = Conv(j, k)   y = Relu(c)
        }""",
        wide=weights(40, 6, 1, 1),
        shape=_SHAPE,
        k=weights(8, 86, 1, 1, seed=1),
    )
    found, kinds, error = converted(model, split_broadcast_concat, tmp_path)
    assert (found, kinds.count("Conv"), kinds.count("Expand")) == (1, 3, 1)
    assert error < 1e-6


def test_rows_one_below_the_other_are_no_channels() -> None:
    model = parsed(
        """g (float[2, 40, 5, 4] x) => (float[2, 8, 10, 4] y) {
            m = ReduceMean <axes = [2, 3]> (x)   s = Expand(m, shape)   j = Concat <axis = 2> (s, x)   y = Conv(j, k)
        }""",
        shape=_SHAPE,
        k=weights(8, 40, 1, 1),
    )
    assert split_broadcast_concat(RewriteGraph(model)) == 0


@pytest.mark.parametrize(("other", "kinds"), [("s", ["Expand"]), ("j", ["Expand", "Concat"])])
def test_other_readers_of_a_broadcast_value_still_get_it(
    other: str, kinds: list[str], tmp_path: Path
) -> None:
    text, opset, given = image("Expand(w, shape)", shape=_SHAPE)
    text = text.replace("y = Relu(c)", f"y = Relu(c)   z = Exp({other})")
    model = parsed(text.replace("=> (", "=> (float[2, 40, 5, 4] z, "), opset, **given)
    found, left, error = converted(model, split_broadcast_concat, tmp_path)
    assert found == 1 and error < 1e-6
    assert [kind for kind in left if kind in ("Expand", "Concat")] == kinds


def test_a_code_that_is_concatenated_again(tmp_path: Path) -> None:
    """As in an implicit field whose layer in the middle reads what the first one read, too."""
    model = parsed(
        """g (float[50, 3] x, float[1, 40] code) => (float[50, 8] y) {
            s = Expand(code, shape)   i = Concat <axis = 1> (s, x)   a = MatMul(i, k)   b = Relu(a)
            j = Concat <axis = -1> (b, i)   c = MatMul(j, l)   y = Relu(c)
        }""",
        shape=np.array([50, 1]),
        k=weights(43, 6),
        l=weights(49, 8),
    )
    found, kinds, error = converted(model, split_broadcast_concat, tmp_path)
    assert (found, kinds.count("MatMul"), kinds.count("Expand")) == (2, 4, 0)
    assert error < 1e-6


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ("Expand(w, shape)", _IMAGE.replace("Conv(j, k, b)", "Conv <group = 2> (j, half, b)")),
        ("Expand(w, shape)", _IMAGE.replace("Conv(j, k, b)", "Conv <pads = [1, 1, 1, 1]> (j, k, b)")),
        ("Expand(w, shape)", _IMAGE.replace("Conv(j, k, b)", "Conv(j, three, b)")),
        ("Expand(w, shape)", _IMAGE.replace("(s, x)", "(s, s)").replace("(j, k, b)", "(j, twice, b)")),
        (
            "Expand(w, few_shape)",
            _IMAGE.replace("Conv(m, wide)", "Conv(m, few)").replace("(j, k, b)", "(j, less, b)"),
        ),
        ('Resize <mode = "cubic"> (w, , , shape)', _IMAGE),
        ('Resize <coordinate_transformation_mode = "tf_crop_and_resize"> (w, roi, , shape)', _IMAGE),
        ("Resize(w, , scales)", _IMAGE.replace("<axes = [2, 3]>", "<axes = [3]>")),
        ("Add(w, zeros)", _IMAGE),
    ],
    ids=["groups", "edges", "three places", "all", "few", "cubic", "beyond", "rows", "no spread"],
)
def test_broadcast_concat_leaves_the_expected_nodes(change: str, text: str, tmp_path: Path) -> None:
    text, opset, given = image(
        change,
        text=text,
        shape=_SHAPE,
        half=weights(8, 23, 1, 1),
        three=weights(8, 46, 3, 3),
        twice=weights(8, 80, 1, 1),
        few=weights(31, 6, 1, 1),
        few_shape=np.array([2, 31, 5, 4]),
        less=weights(8, 37, 1, 1),
        zeros=np.zeros((2, 40, 5, 4), np.float32),
        scales=np.array([1, 1, 1.1, 4], np.float32),
        roi=np.array([0, 0, 0, 0, 1, 1, 1, 1], np.float32),
    )
    model = parsed(text, opset, **given)
    assert split_broadcast_concat(RewriteGraph(model)) == 0
