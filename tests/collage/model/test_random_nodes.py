"""Random numbers are noticed wherever they are drawn."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from collage.model.random_nodes import random_nodes
from collage.model.reference import Reference, ingest
from collage.partitioner.errors import ModelError
from tests.shipped_models.test_ingest import saved

LOOP = """
    m (float[4] x, float scale) => (float[4] y) <int64 M = {3}> {
        a = Tanh(x)
        y = Loop(M, , a) <body = g (int64 i, bool c, float[4] v) => (bool d, float[4] w) {
            [draw] noise = RandomNormalLike(v)
            k = Mul(noise, scale)
            w = Add(v, k)
            d = Identity(c)
        }>
    }
"""
DROPOUT = """
    m (float[64] x{}) => (float[64] y) <float r = {{0.5}}, bool t = {{{}}}> {{
        a = Tanh(x)
        y = Dropout(a, r, {})
    }}
"""


def test_noise_inside_a_loop_is_refused_with_its_node(tmp_path: Path) -> None:
    model, _ = ingest(saved(LOOP, tmp_path), tmp_path)
    sample = {"x": np.ones(4, np.float32), "scale": np.array(1, np.float32)}
    with pytest.raises(
        ModelError, match=r"\(RandomNormalLike\) inside '.*' \(Loop\) draws random numbers"
    ):
        Reference(model, [sample], tmp_path / "r").values(["y"])


def test_noise_inside_a_loop_that_inputs_switch_off_is_no_fault(tmp_path: Path) -> None:
    model, _ = ingest(saved(LOOP, tmp_path), tmp_path)
    sample = {"x": np.ones(4, np.float32), "scale": np.array(0, np.float32)}
    reference = Reference(model, [sample], tmp_path / "r")
    (found,) = reference.values(["y"])
    np.testing.assert_allclose(found["y"], np.tanh(1.0), rtol=1e-6)
    assert reference.draws


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "count"),
    [
        (DROPOUT.format("", 1, "t"), 1),
        (DROPOUT.format(", bool f", 1, "f"), 1),
        (DROPOUT.format("", 0, "t"), 0),
        (DROPOUT.format("", 0, "t").replace(", r, t", ", r"), 0),
    ],
)
def test_dropout_draws_where_it_may_train(text: str, count: int, tmp_path: Path) -> None:
    model, _ = ingest(saved(text, tmp_path), tmp_path)
    assert len(random_nodes(model)) == count
