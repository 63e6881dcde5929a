"""Int8 of MNN's own and of ncnn, all the way: tuned, emitted, loaded, and run as a package."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

import collage
from collage.backends.contract import Available
from collage.backends.registry import backends
from collage.deploy import runner
from collage.deploy.package import write_package
from collage.partitioner.emit.annotate import read_plan
from collage.partitioner.graph.model import Model
from collage.partitioner.ingest.normalize import normalize
from tests.backends.quantization.test_quantize import model_of

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not all(isinstance(backends()[name].probe(), Available) for name in ("mnn", "ncnn")),
        reason="MNN or ncnn is not installed",
    ),
]
MNN, NCNN = "mnn -precision=int8", "ncnn -quant=static_int8"
TEXT = """
<ir_version: 10, opset_import: ["" : 17]>
g (float[1, 16, 24, 24] x) => (float[1, 16, 24, 24] y) {
   [one] a = Conv<pads: ints = [1, 1, 1, 1]>(x, w1)
   [clip] b = Relu(a)
   [two] c = Conv<pads: ints = [1, 1, 1, 1]>(b, w2)
   [clip_too] d = Relu(c)
   [three] e = Conv<pads: ints = [1, 1, 1, 1]>(d, w3)
   [sum] y = Add(e, b)
}
"""


@pytest.mark.parametrize("parts", [{MNN: 2, NCNN: 6}, {"ncnn -float=4 -quant=static_int8": 6}])
def test_the_artifact_and_its_package_compute_alike(parts: dict[str, int], tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    weights = {name: rng.standard_normal((16, 16, 3, 3)) / 12 for name in ("w1", "w2", "w3")}
    source = model_of(TEXT, weights, tmp_path).path
    model = Model.open(normalize(source, tmp_path / "normalized", {}, least_opset=13).path)
    names, ends = [node.name for node in model.index.nodes], [0, *parts.values()]
    artifact = collage.tune(
        source,
        ["mnn", *(target.replace("-float=4 ", "") for target in parts)],
        output=tmp_path / "tuned.onnx",
        database=f"sqlite:///{tmp_path / 'costs.db'}",
        plan={
            "format": 1,
            "model_sha256": model.sha256,
            "partitions": [
                {"target": target, "nodes": names[ends[i] : ends[i + 1]]}
                for i, target in enumerate(parts)
            ],
        },
        tolerance=0.1,
        threads=1,
    )
    assert 1e-4 < artifact.report["max_relative_error"] <= 0.1
    stored = read_plan(artifact.path)
    assert [str(p.target) for p in stored.plan.partitions] == list(parts)
    numbers = {MNN: "int8 inside the runtime", NCNN: "int8 in the file"}
    wanted = [numbers.get(target, "int8 and float in the file") for target in parts]
    assert [note.numbers for note in stored.notes] == wanted
    integers = ir.DataType.INT8
    kept = [v.dtype for v in stored.model.ir.graph.initializers.values() if len(v.shape or ()) == 4]
    assert kept.count(integers) == 2 and len(kept) == 3

    feed = {"x": rng.standard_normal((1, 16, 24, 24)).astype(np.float32)}
    with collage.load(artifact.path, threads=1) as session:
        (ours,) = session.run(None, feed)
    with runner.Session(write_package(artifact.path, tmp_path / "package").folder) as session:
        (packaged,) = session.run(None, feed)
    np.testing.assert_allclose(packaged, ours, rtol=1e-4, atol=1e-5)
