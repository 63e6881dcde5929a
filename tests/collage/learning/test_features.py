"""What a part is in numbers, and how a model is cut into parts."""

from __future__ import annotations

import math

import pytest

from collage.learning.features import NAMES, features, nominal_us
from collage.learning.parts import PARTS, parts_of
from collage.partitioner.graph.graph_index import GraphIndex
from tests.collage.stated_world import chain
from tests.partitioner.graphs import text_model

_HEAD = "g (float[1,8,16,16] x, float[4,8,3,3] w, float[8,1,3,3] d, float[4,8,1,1] p, float[16,6] m)"


def _index(body: str) -> GraphIndex:
    """The graph of a body that makes y, whose rank is four, and of nothing else that counts."""
    return text_model(f"{_HEAD} => (int64[4] z) {{ {body}  z = Shape(y) }}").index


def _features(index: GraphIndex) -> tuple[float, ...]:
    return features(index, index.all_nodes >> 1)


def _of(body: str) -> dict[str, float]:
    index = _index(body)
    return dict(zip(NAMES, _features(index), strict=True))


@pytest.mark.parametrize(
    ("body", "kernel", "work"),
    [
        ("y = Conv<pads = [1,1,1,1]>(x, w)", "3x3", 2 * 4 * 256 * 8 * 9),
        ("y = Conv<strides = [2,2], pads = [1,1,1,1]>(x, w)", "3x3 strided", 2 * 4 * 64 * 8 * 9),
        ("y = Conv<group = 8, pads = [1,1,1,1]>(x, d)", "depthwise", 2 * 8 * 256 * 9),
        ("y = Conv(x, p)", "1x1", 2 * 4 * 256 * 8),
        ("y = MatMul(x, m)", "product", 2 * 8 * 16 * 6 * 16),
    ],
)
def test_work_is_counted_by_kernel(body: str, kernel: str, work: int) -> None:
    found = _of(body)
    assert found["work"] == pytest.approx(math.log1p(work))
    assert found[f"work of {kernel}"] == 1.0


def test_light_operators_are_told_by_what_they_write() -> None:
    found = _of("a = Relu(x)  y = Transpose(a)")
    assert found["traffic of elementwise"] == found["traffic of layout"] == 0.5
    assert found["work"] == 0.0
    assert found["traffic"] == pytest.approx(math.log1p(2 * 8 * 256 * 4))


def test_a_larger_part_takes_longer_at_the_nominal_pace() -> None:
    small = _index("y = Conv(x, p)")
    large = _index("a = Conv<pads = [1,1,1,1]>(x, w)  y = Relu(a)")
    times = [nominal_us(_features(index)) for index in (small, large)]
    assert 0 < times[0] < times[1]


def test_parts_make_up_the_model_and_take_about_the_same_time() -> None:
    index = text_model(
        "g (float[1,4,8,8] v0, float[4,4,1,1] w) => (int64[4] y) { "
        + "  ".join(f"c{i} = Conv(v{i}, w)  v{i + 1} = Relu(c{i})" for i in range(60))
        + "  y = Shape(v60) }"
    ).index
    times = dict.fromkeys(range(len(index.nodes)), 1.0)
    parts = parts_of(index, times)
    assert sum(parts) == index.all_nodes
    assert PARTS / 2 < len(parts) <= PARTS
    # What is fused to an operator stays with it.
    first = [index.nodes[(part & -part).bit_length() - 1].op for part in parts]
    assert set(first) <= {"Conv", "Shape"}


def test_a_model_of_light_operators_alone_is_one_part() -> None:
    index = chain(8).index
    assert parts_of(index, dict.fromkeys(range(8), 1.0)) == [index.all_nodes]
