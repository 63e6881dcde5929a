"""Latency over work: lines between measured points, checked by a point that they did not see."""

from __future__ import annotations

import pytest

from collage.costs.shape_fit import ShapeFit
from collage.costs.work import work_of
from tests.partitioner.graphs import text_model

_LINE = ShapeFit.of([(0.0, 10.0), (100.0, 110.0), (400.0, 410.0)])
_BEND = ShapeFit.of([(0.0, 10.0), (100.0, 400.0), (400.0, 410.0)])


@pytest.mark.parametrize(
    ("work", "us"), [(0.0, 10.0), (50.0, 60.0), (200.0, 210.0), (500.0, 510.0), (-50.0, 0.0)]
)
def test_points_between_and_beyond_lie_on_the_lines(work: float, us: float) -> None:
    assert _LINE.at(work) == pytest.approx(us)


def test_only_a_fit_that_a_held_out_point_confirms_is_trusted() -> None:
    assert _LINE.held_out_error == pytest.approx(0.0) and _LINE.is_trusted
    error = _BEND.held_out_error
    assert error is not None and error > 0.7 and not _BEND.is_trusted


@pytest.mark.parametrize("points", [[], [(1.0, 2.0)], [(1.0, 2.0), (2.0, 3.0)]])
def test_few_points_are_never_trusted(points: list[tuple[float, float]]) -> None:
    fit = ShapeFit.of(points)
    assert not fit.is_trusted and fit.held_out_error is None
    assert (fit.at(1.5) is None) == (len(points) < 2)


@pytest.mark.parametrize("work", [0.0, 50.0, 400.0])
def test_a_trusted_fit_is_expected_between_its_ends(work: float) -> None:
    assert _LINE.expected_us(work) == pytest.approx(work + 10.0)


@pytest.mark.parametrize("work", [-1.0, 401.0])
def test_beyond_the_measured_sizes_nothing_is_expected(work: float) -> None:
    assert _LINE.is_trusted and _LINE.expected_us(work) is None


def test_a_fit_that_is_not_trusted_expects_nothing() -> None:
    assert _BEND.expected_us(50.0) is None
    assert ShapeFit.of([(0.0, 10.0), (100.0, 110.0)]).expected_us(50.0) is None


def test_of_several_points_at_one_work_the_fastest_counts() -> None:
    assert ShapeFit.of([(1.0, 5.0), (1.0, 3.0)]).points == ((1.0, 3.0),)


@pytest.mark.parametrize(
    ("body", "factor"),
    [
        ("(float[R,64] x) => (float[R,64] y) <float[64,64] w> {{ y = MatMul(x, w) }}", 64 * 64),
        (
            "(float[R,4,9,9] x) => (float[R,8,7,7] y) <float[8,4,3,3] w> {{ y = Conv(x, w) }}",
            8 * 7 * 7 * 4 * 9,
        ),
    ],
)
def test_multiply_adds_grow_with_the_rows(body: str, factor: int) -> None:
    def work(rows: int) -> float:
        text = body.replace("R", str(rows)).replace("{{", "{").replace("}}", "}")
        shape = text.split("w>")[0].rsplit("<float", 1)[1].strip()
        count = 1
        for size in shape.strip("[]").split(","):
            count *= int(size)
        values = ", ".join(["1"] * count)
        return work_of(text_model(f"g {text.replace(' w>', ' w = {' + values + '}>')}").index)

    more = work(11) - work(1)
    assert more >= 10 * factor / 20.0
    assert work(21) - work(11) == pytest.approx(more)


def test_the_work_of_parts_adds_up() -> None:
    index = text_model(
        "g (float[64] x) => (float[64] y) { a = Relu(x)  b = Exp(a)  y = Add(a, b) }"
    ).index
    parts = [work_of(index, 1 << i) for i in range(3)]
    assert all(part > 0 for part in parts) and work_of(index, 0b011) == parts[0] + parts[1]
    assert work_of(index) == pytest.approx(sum(parts))


def test_unknown_shapes_count_nothing() -> None:
    assert work_of(text_model("g (float[N] x) => (float[N] y) { y = Relu(x) }").index) == 0.0
