"""NASNet-A (4 @ 1056), known as NASNet-mobile, on 224 x 224.

Source: Zoph et al., CVPR 2018, figures 2 and 4, in the form in which Keras and timm build it: the very
branched graph (more than 500 operators) that separates partitioners.
"""

from __future__ import annotations

import numpy as np
import onnx

from benchmarks.support.zoo.net import Feature, Net

_FILTERS = 44
_CELLS_PER_STAGE = 4


def nasnet_mobile() -> onnx.ModelProto:
    net = Net("nasnet_mobile", seed=15)
    image = Feature(net.input("x", (1, 3, 224, 224)), 3)
    before = net.batch_norm(net.conv(image, 32, 3, 2, pad=(0, 0)))
    previous = _stem_cell_0(net, before, _FILTERS // 4)
    x = _stem_cell_1(net, previous, before, _FILTERS // 2)
    for stage in range(3):
        filters = _FILTERS << stage
        if stage:
            previous, x = x, _reduction(net, x, _squeezed(net, previous, filters), filters)
        for cell in range(_CELLS_PER_STAGE):
            left = _squeezed(net, previous, filters) if cell else _halved(net, previous, filters)
            previous, x = x, _normal(net, x, left, filters)
    return net.model({"logits": net.classify(net.relu(x), 1000)})


def _squeezed(net: Net, x: Feature, filters: int) -> Feature:
    return net.batch_norm(net.conv(net.relu(x), filters, 1))


def _halved(net: Net, x: Feature, filters: int) -> Feature:
    """Factorized reduction: two 1 x 1 convolutions on the even and the odd pixels."""
    x = net.relu(x)
    pads = net.constant([0, 0, 0, 0, 0, 0, 1, 1], np.int64)
    starts, ends, axes = (net.constant(v, np.int64) for v in ([1, 1], [1 << 31] * 2, [2, 3]))
    shifted = net.op("Slice", net.op("Pad", x.name, pads), starts, ends, axes)
    paths = []
    for path in (x.name, shifted):
        sampled = net.op("AveragePool", path, kernel_shape=(1, 1), strides=(2, 2))
        paths.append(net.conv(Feature(sampled, x.channels), filters // 2, 1))
    return net.batch_norm(net.concat(paths))


def _separable(
    net: Net, x: Feature, filters: int, kernel: int, stride: int = 1, *, stem: bool = False
) -> Feature:
    middle = filters if stem else x.channels
    for channels, step in ((middle, stride), (filters, 1)):
        x = net.conv(net.relu(x), x.channels, kernel, step, groups=x.channels)
        x = net.batch_norm(net.conv(x, channels, 1))
    return x


def _pool(net: Net, op_type: str, x: Feature, stride: int) -> Feature:
    name = net.op(op_type, x.name, kernel_shape=(3, 3), strides=(stride, stride), pads=(1, 1, 1, 1))
    return Feature(name, x.channels)


def _normal(net: Net, x: Feature, left: Feature, filters: int) -> Feature:
    right = _squeezed(net, x, filters)
    parts = [
        left,
        net.add(_separable(net, right, filters, 5), _separable(net, left, filters, 3)),
        net.add(_separable(net, left, filters, 5), _separable(net, left, filters, 3)),
        net.add(_pool(net, "AveragePool", right, 1), left),
        net.add(_pool(net, "AveragePool", left, 1), _pool(net, "AveragePool", left, 1)),
        net.add(_separable(net, right, filters, 3), right),
    ]
    return net.concat(parts)


def _reduction(net: Net, x: Feature, left: Feature, filters: int) -> Feature:
    return _reduced(net, _squeezed(net, x, filters), left, filters)


def _stem_cell_0(net: Net, x: Feature, filters: int) -> Feature:
    return _reduced(net, _squeezed(net, x, filters), x, filters, stem=True)


def _stem_cell_1(net: Net, x: Feature, before: Feature, filters: int) -> Feature:
    return _reduced(net, _squeezed(net, x, filters), _halved(net, before, filters), filters)


def _reduced(net: Net, x: Feature, other: Feature, filters: int, *, stem: bool = False) -> Feature:
    first = net.add(_separable(net, x, filters, 5, 2), _separable(net, other, filters, 7, 2, stem=stem))
    second = net.add(_pool(net, "MaxPool", x, 2), _separable(net, other, filters, 7, 2, stem=stem))
    third = net.add(_pool(net, "AveragePool", x, 2), _separable(net, other, filters, 5, 2, stem=stem))
    fourth = net.add(_pool(net, "AveragePool", first, 1), second)
    fifth = net.add(_separable(net, first, filters, 3), _pool(net, "MaxPool", x, 2))
    return net.concat([second, third, fourth, fifth])
