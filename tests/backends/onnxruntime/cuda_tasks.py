"""What is done on a CUDA device, in a child."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
from onnx import numpy_helper

from collage.backends.contract import SubModel
from collage.partitioner.target import Target
from collage.partitioner.tensor import TensorSpec
from collage.runtime.compiled import CompiledRegions
from collage.runtime.executor import Executor
from collage.runtime.step import Step
from tests.partitioner.graphs import text_model

NET = """
<ir_version: 10, opset_import: ["" : 17]>
net (float[1,64] x) => (float[1,64] y) { [a] p = Tanh (x)  [b] q = Sin (p)  [c] y = Tanh (q) }
"""
PRODUCT = """
<ir_version: 10, opset_import: ["" : 17]>
product (float[256,256] x) => (float[256,256] y) { y = MatMul (x, w) }
"""


def check_residence(first_target: str, second_target: str) -> None:
    """Two partitions on a device: the value between them is never on the host, the numbers are right."""
    path = Path("model.onnx").absolute()
    ir.save(text_model("g (float[1,64] x) => (float[1,64] y) { y = Tanh (x) }").ir, path)
    x, between, y = (TensorSpec(name, "float32", (1, 64)) for name in ("x", "between", "y"))
    compiled = CompiledRegions(1)
    model = SubModel(path, (x,), (y,))
    first = compiled.get("first", model, Target.parse(first_target))
    second = compiled.get("second", model, Target.parse(second_target))
    assert first.domain == second.domain == "cuda:0"
    # The second one's input is the first one's output under another name.
    executor = Executor([Step(first, (x,), (between,)), Step(second, (between,), (y,))], [x], ["y"])
    executor.bind()
    for end in (1, 2, 3):  # a graph is recorded at the first run, and launched at the others
        given = np.linspace(-1, end, 64, dtype=np.float32).reshape(1, 64)
        executor.feed({"x": given})
        executor.run()
        np.testing.assert_allclose(executor.value("y"), np.tanh(np.tanh(given)), rtol=1e-4)
        np.testing.assert_allclose(executor.value("between"), np.tanh(given), rtol=1e-4)
    executor.close()
    compiled.close()


def product_error(target: str) -> float:
    """The error of a product of 256 by 256, relative to its norm."""
    generator = np.random.default_rng(0)
    left, right = (generator.standard_normal((256, 256)).astype(np.float32) for _ in range(2))
    proto = onnx.parser.parse_model(PRODUCT)
    proto.graph.initializer.append(numpy_helper.from_array(right, "w"))
    path = Path("product.onnx").absolute()
    onnx.save(proto, path)
    x, y = (TensorSpec(name, "float32", (256, 256)) for name in ("x", "y"))
    compiled = CompiledRegions(1)
    executable = compiled.get("product", SubModel(path, (x,), (y,)), Target.parse(target))
    made = np.empty((256, 256), np.float32)
    executable.bind([left], [made])
    executable.run()
    exact = left.astype(np.float64) @ right.astype(np.float64)
    compiled.close()
    return float(np.linalg.norm(made - exact) / np.linalg.norm(exact))
