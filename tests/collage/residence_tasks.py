"""What is done on a real device, in a child."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from backends.contract import SubModel
from collage.compiled import CompiledRegions
from collage.executor import Executor, Step
from partitioner.target import Target
from partitioner.tensor import TensorSpec
from tests.partitioner.graphs import text_model


def check_cuda(target: str) -> None:
    """Two partitions on a device: the value between them is never on the host, the numbers are right."""
    import onnx_ir as ir

    path = Path("model.onnx").absolute()
    ir.save(text_model("g (float[1,64] x) => (float[1,64] y) { y = Tanh (x) }").ir, path)
    x, between, y = (TensorSpec(name, "float32", (1, 64)) for name in ("x", "between", "y"))
    compiled = CompiledRegions(1)
    model = SubModel(path, (x,), (y,))
    first = compiled.get("first", model, Target.parse(target))
    second = compiled.get("second", model, Target.parse(target))
    assert first.domain == second.domain == "cuda:0"
    # The second one's input is the first one's output under another name.
    executor = Executor([Step(first, (x,), (between,)), Step(second, (between,), (y,))], [x], ["y"])
    executor.bind()
    given = np.linspace(-1, 1, 64, dtype=np.float32).reshape(1, 64)
    executor.feed({"x": given})
    executor.run()
    np.testing.assert_allclose(executor.value("y"), np.tanh(np.tanh(given)), rtol=1e-4)
    np.testing.assert_allclose(executor.value("between"), np.tanh(given), rtol=1e-4)
    executor.close()
    compiled.close()
