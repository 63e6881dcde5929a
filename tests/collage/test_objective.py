"""Objectives as text: one goal, or weights of several, and how good a setting is by them."""

from __future__ import annotations

import pytest

from collage.objective import canonical, gain, weights_of


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("throughput", {"throughput": 1.0}),
        ("memory=3", {"memory": 1.0}),
        ("memory=1, latency=3", {"latency": 0.75, "memory": 0.25}),
        ("latency=.5,throughput=.3,memory=.2", {"latency": 0.5, "throughput": 0.3, "memory": 0.2}),
    ],
)
def test_weights_sum_to_one(text: str, expected: dict[str, float]) -> None:
    assert weights_of(text) == pytest.approx(expected)
    assert weights_of(canonical(text)) == pytest.approx(expected)


def test_texts_that_say_the_same_are_one() -> None:
    assert canonical("memory=2,latency=6") == canonical("latency=0.75,memory=0.25")
    assert canonical("latency=7") == "latency"


@pytest.mark.parametrize(
    "text",
    [
        *(
            "",
            "speed",
            "latency=",
            "latency=x",
            "latency=0",
            "latency=-1",
            "latency=inf",
            "latency=nan",
        ),
        *("latency=1,latency=1", "latency,memory", "latency=1,", "latency:1"),
    ],
)
def test_other_texts_are_refused_with_the_form(text: str) -> None:
    with pytest.raises(
        ValueError, match=r"'latency', 'throughput' or 'memory', or weights .* as latency"
    ):
        weights_of(text)


def test_gain_weighs_ratios() -> None:
    def value(text: str, us: float = 100.0, rate: float = 10.0, rss: float = 1000.0) -> float:
        return gain(text, median_us=us, throughput_per_s=rate, peak_rss_bytes=rss)

    assert value("throughput", rate=20.0) == pytest.approx(2 * value("throughput"))
    assert value("memory", rss=500.0) == pytest.approx(2 * value("memory"))
    both = "latency=1,throughput=1"
    assert value(both, us=200.0, rate=20.0) == pytest.approx(value(both))
    assert value("latency=3,throughput=1", us=200.0, rate=20.0) < value("latency=3,throughput=1")
    assert value("latency=1,throughput=3", us=200.0, rate=20.0) > value("latency=1,throughput=3")
