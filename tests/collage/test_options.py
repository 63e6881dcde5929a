"""The default patience: how long a run searches for better plans."""

from __future__ import annotations

import pytest

from collage.options import TuneOptions

MIB = 1 << 20


def test_large_weights_get_more_time() -> None:
    options = TuneOptions()
    seconds = [options.limit_s(size) for size in (0, 100 * MIB, 232 * MIB)]
    assert seconds[0] == seconds[1] and seconds[2] == pytest.approx(seconds[1] + 66)


def test_a_stated_limit_is_the_only_one() -> None:
    options = TuneOptions(time_limit_s=7.0)
    assert options.limit_s(500 * MIB) == 7.0 and options.most_regions is None
    assert TuneOptions().most_regions is not None
