"""A model whose opset is raised computes what it computed; what cannot be raised so keeps its opset."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from collage.backends.numerics.reference import run_reference
from collage.partitioner.graph.model import Model
from collage.partitioner.ingest.normalize import normalize
from tests.shipped_models.test_ingest import saved

SCALES = "float[4] s = {1, 1, 2, 2}"
LINEAR, NEAREST = ('u = Upsample<mode = "' + mode + '">(x, s)' for mode in ("linear", "nearest"))


@pytest.mark.parametrize(
    ("opset", "body", "raised"),
    [
        (9, f"{LINEAR}  y = Relu(u)", 9),
        (9, f"{NEAREST}  y = Relu(u)", 13),
        (10, 'u = Resize<mode = "linear">(x, s)  y = Relu(u)', 10),
        (11, "y = Hardmax<axis = 1>(x)", 11),
        (10, "d, k = Dropout(x)  c = Cast<to = 1>(k)  y = Add(x, c)", 10),
        (10, "d, k = Dropout(x)  y = Relu(d)", 13),
    ],
)
def test_raised_models_compute_the_same(opset: int, body: str, raised: int, tmp_path: Path) -> None:
    path = saved(
        f"m (float[1, 2, 3, 3] x) => (float[a, b, c, d] y) <{SCALES}> {{ {body} }}", tmp_path, opset
    )
    x = {"x": np.sin(np.arange(18, dtype=np.float32)).reshape(1, 2, 3, 3)}
    info = normalize(path, tmp_path / "n", {}, least_opset=13)
    assert Model.open(info.path).ir.opset_imports[""] == raised
    assert any("makes another computation of" in text for text in info.warnings) == (raised == opset)
    (wanted, made) = (run_reference(each, x, ["y"])["y"] for each in (path, info.path))
    np.testing.assert_allclose(made, wanted, rtol=1e-6)
