"""A model as exporters of TensorFlow write them: channels last, a Transpose before and after each convolution."""

from __future__ import annotations

import numpy as np
import onnx

_HEAD = '<ir_version: 10, opset_import: ["" : 18]>'
_TO_FIRST, _TO_LAST = "Transpose <perm = [0, 3, 1, 2]>", "Transpose <perm = [0, 2, 3, 1]>"


def channels_last_model(layers: int = 2, channels: int = 16, size: int = 20) -> onnx.ModelProto:
    """Convolutions with a hard swish between them; twice as many Transposes, of which two need to be run."""
    steps = []
    last = "x"
    for i in range(layers):
        steps.append(f"a{i} = {_TO_FIRST} ({last})")
        steps.append(f"b{i} = Conv <pads = [1, 1, 1, 1]> (a{i}, w{i})")
        steps.append(f"c{i} = {_TO_LAST} (b{i})")
        steps.append(f"d{i} = Add(c{i}, three)")
        steps.append(f"e{i} = Clip(d{i}, zero, six)")
        steps.append(f"f{i} = Mul(c{i}, e{i})")
        last = f"f{i}"
    shape = f"float[1, {size}, {size}, {channels}]"
    text = f"{_HEAD} g ({shape} x) => ({shape} {last}) {{ {' '.join(steps)} }}"
    model = onnx.parser.parse_model(text)
    random = np.random.default_rng(7)
    tensors = {
        f"w{i}": (random.standard_normal((channels, channels, 3, 3)) / 12).astype(np.float32)
        for i in range(layers)
    }
    tensors |= {"three": np.array(3, np.float32), "zero": np.array(0, np.float32)}
    tensors |= {"six": np.array(6, np.float32)}
    model.graph.initializer.extend(onnx.numpy_helper.from_array(a, n) for n, a in tensors.items())
    for i, node in enumerate(model.graph.node):
        node.name = f"{node.op_type}_{i}"
    return model
