"""A detector in the form of YOLOv8n: SiLU, split blocks, a pyramid in both directions, box distributions."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx

from benchmarks.support.zoo.net import Feature, Net

_BINS, _CLASSES = 16, 80


def yolo_v8n(side: int | str = 320) -> onnx.ModelProto:
    """YOLOv8n without its decoding of boxes. Source: ultralytics `cfg/models/v8/yolov8.yaml`, scale n.

    Args:
        side: of the square image, or the name of a free dimension.
    """
    net = Net("yolo_v8n", seed=31)
    x = Feature(net.input("images", (1, 3, side, side)), 3)
    x = _conv(net, _conv(net, x, 16, 3, 2), 32, 3, 2)
    x = _split_block(net, x, 32, 1, shortcut=True)
    fine = _split_block(net, _conv(net, x, 64, 3, 2), 64, 2, shortcut=True)
    middle = _split_block(net, _conv(net, fine, 128, 3, 2), 128, 2, shortcut=True)
    x = _split_block(net, _conv(net, middle, 256, 3, 2), 256, 1, shortcut=True)
    coarse = _pyramid_pool(net, x)
    middle = _split_block(net, net.concat([_twice(net, coarse), middle]), 128, 1)
    fine = _split_block(net, net.concat([_twice(net, middle), fine]), 64, 1)
    middle = _split_block(net, net.concat([_conv(net, fine, 64, 3, 2), middle]), 128, 1)
    coarse = _split_block(net, net.concat([_conv(net, middle, 128, 3, 2), coarse]), 256, 1)
    boxes, scores = zip(*(_head(net, level) for level in (fine, middle, coarse)), strict=True)
    places = -1 if isinstance(side, str) else sum((side // stride) ** 2 for stride in (8, 16, 32))
    bins = net.reshape(net.op("Concat", *boxes, axis=2), 1, 4, _BINS, places)
    weights = net.op("Softmax", net.op("Transpose", bins, perm=(0, 2, 1, 3)), axis=1)
    steps = net.constant(np.arange(_BINS).reshape(1, _BINS, 1, 1))
    distances = net.reshape(net.op("Conv", weights, steps), 1, 4, places)
    found = net.op("Sigmoid", net.op("Concat", *scores, axis=2))
    return net.model({"output": net.op("Concat", distances, found, axis=1)})


def _conv(net: Net, x: Feature, channels: int, kernel: int, stride: int = 1) -> Feature:
    y = net.batch_norm(net.conv(x, channels, kernel, stride))
    return Feature(net.op("Mul", y.name, net.op("Sigmoid", y.name)), channels)


def _split_block(net: Net, x: Feature, channels: int, count: int, shortcut: bool = False) -> Feature:
    half = channels // 2
    halves = net.ops(
        "Split", 2, _conv(net, x, channels, 1).name, net.constant([half, half], np.int64), axis=1
    )
    parts = [Feature(name, half) for name in halves]
    for _ in range(count):
        inner = _conv(net, _conv(net, parts[-1], half, 3), half, 3)
        parts.append(net.add(parts[-1], inner) if shortcut else inner)
    return _conv(net, net.concat(parts), channels, 1)


def _pyramid_pool(net: Net, x: Feature) -> Feature:
    parts: list[Feature] = [_conv(net, x, x.channels // 2, 1)]
    for _ in range(3):
        pooled = net.op(
            "MaxPool", parts[-1].name, kernel_shape=(5, 5), pads=(2, 2, 2, 2), strides=(1, 1)
        )
        parts.append(Feature(pooled, parts[-1].channels))
    return _conv(net, net.concat(parts), x.channels, 1)


def _twice(net: Net, x: Feature) -> Feature:
    scales: Sequence[float] = (1, 1, 2, 2)
    return Feature(net.op("Resize", x.name, "", net.constant(scales), mode="nearest"), x.channels)


def _head(net: Net, x: Feature) -> tuple[str, str]:
    """Distributions of box sides, and class scores, each with one axis of places."""
    made = []
    for width, channels in ((64, 4 * _BINS), (_CLASSES, _CLASSES)):
        y = _conv(net, _conv(net, x, width, 3), width, 3)
        made.append(net.reshape(net.conv(y, channels, 1).name, 1, channels, -1))
    return made[0], made[1]
