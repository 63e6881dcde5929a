"""Calls at shapes of which each comes once, on a real runtime."""

from __future__ import annotations

import math
from pathlib import Path

import onnx
import onnx.parser

from collage.model.sub_models import RegionFiles
from collage.partitioner.graph.model import Model
from collage.partitioner.target import Target
from collage.partitioner.tensor import TensorSpec
from collage.timing.changing import changing_us

_TEXT = """<ir_version: 10, opset_import: ["" : 17]>
    g (float[N] x) => (float[N] y) { [a] h = Relu(x) [b] y = Neg(h) }"""


def test_what_choices_have_in_common_runs_once(tmp_path: Path) -> None:
    onnx.save(onnx.parser.parse_model(_TEXT), tmp_path / "free.onnx")
    model = Model.open(tmp_path / "free.onnx")
    part = RegionFiles(model, tmp_path / "regions", mapped=True).get(model.index.all_nodes)
    one, other = (Target.parse(text) for text in ("onnxruntime", "onnxruntime -threads=1"))
    sizes = range(10, 50)
    spent = changing_us(
        [
            [(30, [(part, one)]), (None, [(part, other)])],
            [(None, [(part, one)])],
            [(None, [(part, other)])],
        ],
        [model.index.values["x"]],
        [(size, [TensorSpec("x", "float32", (size,))]) for size in sizes],
        {},
        ["y"],
        1,
        60.0,
    )
    assert [len(times) for times in spent] == [len(sizes) - 1] * 3
    assert all(0 < us < math.inf for times in spent for us in times)
    split, small, large = spent
    count = 30 - sizes[0]
    assert split == [*small[:count], *large[count:]]
    assert split != small and split != large
