"""The OpenVINO backend keeps the contract, and maps its profile to nodes."""

import errno
import os
import sys
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from collage.backends.contract import CompileContext
from collage.backends.onnxruntime.backend import OnnxRuntimeBackend
from collage.backends.openvino.backend import OpenVinoBackend
from collage.backends.testing.conformance import BackendConformance
from collage.partitioner.graph.graph_index import GraphIndex
from collage.partitioner.target import Target
from tests.backends.quantization.test_quantize import matrix, model_of


class TestOpenVino(BackendConformance):
    backend = OpenVinoBackend()


def test_layout_change_counts_for_the_node_that_makes_or_reads_the_value(tmp_path: Path) -> None:
    """Convolutions here compute with channels last: the input and the result are turned, the latter for longer than all else."""
    text = """
    <ir_version: 10, opset_import: ["" : 18]>
    g (float[1, 3, 32, 32] x) => (float[1, 21, 256, 256] y) {
       [size] sizes = Constant<value_ints: ints = [1, 21, 256, 256]>()
       [conv] c = Conv(x, w)
       [grow] y = Resize<mode: string = "linear">(c, , , sizes)
    }
    """
    model = model_of(text, {"w": matrix(21, 3).reshape(21, 3, 1, 1)}, tmp_path)
    target = Target.parse("openvino")
    executable = OpenVinoBackend().compile(model, target, CompileContext(1, tmp_path))
    executable.bind([np.ones((1, 3, 32, 32), np.float32)], [None])
    steps = executable.profile(5)
    executable.close()
    assert {name for step in steps for name in step.nodes} >= {"conv", "grow"}
    assert all(step.nodes for step in steps), steps


@pytest.mark.parametrize(
    "nodes",
    [
        "y = com.microsoft.Gelu(x)",
        "y = com.microsoft.QuickGelu(x)",
        "y = com.microsoft.BiasGelu(x, b)",
        "y = com.microsoft.FusedMatMul<alpha = 0.5, transB = 1>(x, w)",
        "y = com.microsoft.SkipLayerNormalization<epsilon = 1e-5>(x, x, b, b)",
    ],
)
def test_operators_of_optimized_models_are_taken(nodes: str, tmp_path: Path) -> None:
    text = f"""
    <ir_version: 10, opset_import: ["" : 18, "com.microsoft" : 1]>
    g (float[2, 4, 8] x) => (float[2, 4, 8] y) {{ [n] {nodes} }}
    """
    weights = {"w": matrix(8, 8), "b": matrix(1, 8).reshape(8)}
    model = model_of(text, {n: a for n, a in weights.items() if f", {n}" in nodes}, tmp_path)
    index = GraphIndex.from_ir(ir.load(model.path))
    assert OpenVinoBackend().supports(index, 0, Target.parse("openvino")) is None
    x = np.linspace(-2, 2, 64, dtype=np.float32).reshape(2, 4, 8) ** 3
    made = []
    for backend in (OpenVinoBackend(), OnnxRuntimeBackend()):
        made.append(np.full(x.shape, np.nan, np.float32))
        folder = tmp_path / backend.name
        folder.mkdir()
        target = Target.parse(backend.name)
        executable = backend.compile(model, target, CompileContext(1, folder))
        executable.bind([x], made[-1:])
        executable.run()
        executable.close()
    np.testing.assert_allclose(*made, rtol=1e-3, atol=1e-4)


@pytest.mark.skipif(sys.platform != "linux", reason="asks the kernel what it keeps of a file")
def test_blobs_in_the_cache_stay_in_the_systems_memory(tmp_path: Path) -> None:
    text = """
    <ir_version: 10, opset_import: ["" : 18]>
    g (float[1, 1024] x) => (float[1, 1024] y) { [n] y = MatMul(x, w) }
    """
    model = model_of(text, {"w": matrix(1024, 1024)}, tmp_path)
    cache, target = tmp_path / "cache", Target.parse("openvino")
    for nth in range(2):
        (work := tmp_path / str(nth)).mkdir()
        OpenVinoBackend().compile(model, target, CompileContext(1, work, cache)).close()
        os.sync()  # only what is on the disk can be let go of
    (blob,) = cache.glob("openvino-*/*.blob")
    assert blob.stat().st_size > 1 << 20
    with blob.open("rb") as file:
        try:
            os.preadv(file.fileno(), [bytearray(4096)], blob.stat().st_size // 2, os.RWF_NOWAIT)
        except BlockingIOError:
            pytest.fail("the blob would be read from the disk")
        except OSError as error:
            if error.errno != errno.EOPNOTSUPP:
                raise
            pytest.skip("this file system does not tell what is in memory")
