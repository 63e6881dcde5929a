"""Symbolic fingerprints: sizes of values do not count; all else does."""

from __future__ import annotations

import pytest

from collage.partitioner.graph.fingerprint import fingerprint, symbolic_fingerprint
from collage.partitioner.graph.graph_index import GraphIndex
from tests.partitioner.graphs import text_model


def _index(body: str) -> GraphIndex:
    return text_model(body).index


def _whole(body: str) -> str:
    index = _index(body)
    return symbolic_fingerprint(index, index.all_nodes)


def _ones(*sizes: int) -> str:
    count = 1
    for size in sizes:
        count *= size
    return ", ".join(["1"] * count)


def _block(
    rows: int,
    wide: int = 16,
    op: str = "Relu",
    alpha: float = 0.1,
    added: str = "h",
    dtype: str = "float",
    axis: int = 1,
) -> str:
    """A product, an activation, a reshape to a known shape, and a sum over an axis; `rows` is a free size."""
    return f"""g ({dtype}[{rows},8] x) => ({dtype}[{rows},{wide}] y, {dtype}[a,b,c] s)
        <{dtype}[8,{wide}] w = {{{_ones(8, wide)}}}, int64[3] shape = {{{rows}, 2, {wide // 2}}},
         int64[1] axis = {{{axis}}}> {{
        h = MatMul(x, w)  i = {op}(h)  j = LeakyRelu <alpha = {alpha}> (i)  y = Add(j, {added})
        r = Reshape(y, shape)  s = ReduceSum(r, axis) }}"""


@pytest.mark.parametrize("rows", [2, 3, 64, 2000])
def test_sizes_of_values_do_not_count(rows: int) -> None:
    one, two = _index(_block(1)), _index(_block(rows))
    for nodes in (0b1, 0b111, one.all_nodes):
        assert symbolic_fingerprint(one, nodes) == symbolic_fingerprint(two, nodes)
        assert fingerprint(one, nodes) != fingerprint(two, nodes)


def test_weights_operators_attributes_types_and_wiring_count() -> None:
    bodies = [
        _block(4),
        _block(4, wide=32),
        _block(4, op="Sqrt"),
        _block(4, alpha=0.2),
        _block(4, added="i"),
        _block(4, dtype="double"),
        _block(4, axis=2),
    ]
    assert len({_whole(body) for body in bodies}) == len(bodies)


def test_ranks_and_values_needed_outside_count() -> None:
    bodies = [
        "g (float[4] x) => (float[4] y) { a = Relu(x)  y = Exp(a) }",
        "g (float[4,4] x) => (float[4,4] y) { a = Relu(x)  y = Exp(a) }",
        "g (float[4] x) => (float[4] y, float[4] a) { a = Relu(x)  y = Exp(a) }",
    ]
    assert len({_whole(body) for body in bodies}) == len(bodies)


def _masked(rows: int) -> str:
    """Positions and a mask that follow a size, as constants that are kept by value or not."""
    count = 30 * rows
    positions = ", ".join(map(str, range(count)))
    return f"""g (float[{rows},{rows}] x, float[5000,4] table) => (float[{rows},{rows}] y, float[{count},4] p)
        <bool[{rows},{rows}] mask = {{{_ones(rows, rows)}}}, int64[{count}] at = {{{positions}}},
         float zero = {{0}}> {{ y = Where(mask, x, zero)  p = Gather(table, at) }}"""


def test_positions_and_masks_of_any_size_are_alike() -> None:
    assert len({_whole(_masked(rows)) for rows in (9, 32, 40)}) == 1


def test_free_dimensions_are_as_any_size() -> None:
    bodies = [f"g (float[{n},8] x) => (float[{n},8] y) {{ y = Relu(x) }}" for n in ("N", "3")]
    assert len({_whole(body) for body in bodies}) == 1


def test_the_order_of_independent_branches_does_not_count() -> None:
    """At another size too, where exact labels would sort otherwise."""
    first = "a = Relu(x)  y = Exp(a)  b = Sqrt(x)  z = Exp(b)"
    other = "b = Sqrt(x)  z = Exp(b)  a = Relu(x)  y = Exp(a)"
    found = {
        _whole(f"g (float[{n}] x) => (float[{n}] y, float[{n}] z) {{ {text} }}")
        for n in range(1, 9)
        for text in (first, other)
    }
    assert len(found) == 1


def test_a_symbolic_fingerprint_is_the_same_in_every_process() -> None:
    """A change here only makes sizes unknown to each other."""
    body = "g (float[4] x) => (float[4] y) <float[1] b = {2}> { t = Relu(x)  y = Mul(t, b) }"
    assert _whole(body) == PINNED


PINNED = "144012f4657d02fe271cc2fa86129907c35dbd77bbeafeff22518426a88444ea"
