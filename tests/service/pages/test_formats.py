"""Numbers with the digits they need, times with their zone, one color per target, fields of all options."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from collage.service.pages import formats
from collage.service.pages.option_fields import common_fields
from collage.service.pages.target_colors import color_class


@pytest.mark.parametrize(
    ("latency_us", "shown"),
    [
        (None, "–"),
        (8.94, "8.94 µs"),
        (99.96, "100 µs"),
        (289.6165, "0.290 ms"),
        (1500.0, "1.50 ms"),
        (47123.0, "47.1 ms"),
        (2.5e6, "2.50 s"),
    ],
)
def test_latencies_have_three_digits(latency_us: float | None, shown: str) -> None:
    assert formats.latency(latency_us) == shown


def test_a_spread_has_the_unit_of_its_latency() -> None:
    assert formats.beside(4.55, 786.0) == "0.005"
    assert formats.beside(45.5, 7860.0) == "0.05"
    assert formats.beside(None, 1.0) == "–"


@pytest.mark.parametrize(
    ("spent_s", "shown"),
    [(0.4, "0.40 s"), (59.4, "59 s"), (140.0, "2 min 20 s"), (7500.0, "2 h 5 min")],
)
def test_durations_are_in_words(spent_s: float, shown: str) -> None:
    assert formats.seconds(spent_s) == shown


def test_sizes_have_a_unit_that_fits() -> None:
    assert [formats.size(n) for n in (96, 6240, 5 << 20)] == ["96 B", "6.09 kB", "5.00 MB"]


def test_moments_carry_their_zone() -> None:
    shown = formats.moment(datetime(2026, 1, 31, 12, 0, 5, tzinfo=UTC))
    assert (
        'datetime="2026-01-31T12:00:05+00:00"' in shown and 'title="2026-01-31 12:00:05 UTC"' in shown
    )
    assert formats.moment("<soon>") == "&lt;soon&gt;"


def test_a_sentence_keeps_the_names_in_it() -> None:
    assert formats.sentence("the guard of MNN refuses Conv") == "The guard of MNN refuses Conv."


def test_default_options_are_left_out() -> None:
    known = {
        "openvino": [{"name": "precision", "default": "f32"}, {"name": "hint", "default": "latency"}]
    }
    target = "openvino -hint=latency -precision=bf16"
    assert formats.without_defaults(target, known) == "openvino -precision=bf16"
    assert formats.without_defaults("mnn -threads=2", known) == "mnn -threads=2"


def test_a_target_has_one_color_and_options_a_shade() -> None:
    assert color_class("openvino") == "c1 v0"
    assert color_class("openvino -threads=1") == color_class(" openvino -threads=1 ")
    assert color_class("openvino -threads=1").startswith("c1 v") and "v0" not in color_class(
        "openvino -x=1"
    )
    backends = ["onnxruntime", "openvino", "mnn", "ncnn", "torch"]
    assert len({color_class(name) for name in backends}) == 5


def test_fields_have_the_limits_of_their_options() -> None:
    tolerance = next(field for field in common_fields() if field.name == "tolerance")
    assert (tolerance.control, tolerance.default, tolerance.most) == ("number", 1e-3, 1)
