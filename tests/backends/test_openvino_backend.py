from pathlib import Path

import numpy as np

from backends.conformance import BackendConformance
from backends.contract import CompileContext
from backends.openvino_backend import OpenVinoBackend
from partitioner.target import Target
from tests.backends.test_onnxruntime_quantisation import matrix, model_of


class TestOpenVino(BackendConformance):
    backend = OpenVinoBackend()


def test_a_change_of_layout_is_the_time_of_who_makes_or_reads_the_value(tmp_path: Path) -> None:
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
