"""Convolutional models: ResNeXt-50, MobileNet-v2, 3-D ResNet-18 and DCGAN's generator."""

from __future__ import annotations

import math

import onnx

from benchmarks.support.zoo.net import Feature, Net


def resnext50() -> onnx.ModelProto:
    """ResNeXt-50 32x4d on 224 x 224. Source: Xie et al., CVPR 2017, table 1."""
    net = Net("resnext50_32x4d", seed=11)
    x = Feature(net.input("x", (1, 3, 224, 224)), 3)
    x = net.relu(net.batch_norm(net.conv(x, 64, 7, 2)))
    pooled = net.op("MaxPool", x.name, kernel_shape=(3, 3), strides=(2, 2), pads=(1, 1, 1, 1))
    x = Feature(pooled, 64)
    for stage, blocks in enumerate([3, 4, 6, 3]):
        for block in range(blocks):
            x = _resnext_block(net, x, 128 << stage, 2 if stage and not block else 1)
    return net.model({"logits": net.classify(x, 1000)})


def _resnext_block(net: Net, x: Feature, width: int, stride: int) -> Feature:
    y = net.relu(net.batch_norm(net.conv(x, width, 1)))
    y = net.relu(net.batch_norm(net.conv(y, width, 3, stride, groups=32)))
    y = net.batch_norm(net.conv(y, 2 * width, 1))
    if x.channels != y.channels or stride > 1:
        x = net.batch_norm(net.conv(x, 2 * width, 1, stride))
    return net.relu(net.add(y, x))


def mobilenet_v2() -> onnx.ModelProto:
    """MobileNet-v2 1.0 on 224 x 224. Source: Sandler et al., CVPR 2018, table 2."""
    net = Net("mobilenet_v2", seed=12)
    x = Feature(net.input("x", (1, 3, 224, 224)), 3)
    x = _relu6(net, net.batch_norm(net.conv(x, 32, 3, 2)))
    x = _inverted_residual(net, x, 1, 16, 1)
    rows = [(24, 2, 2), (32, 3, 2), (64, 4, 2), (96, 3, 1), (160, 3, 2), (320, 1, 1)]
    for channels, blocks, first_stride in rows:
        for block in range(blocks):
            x = _inverted_residual(net, x, 6, channels, 1 if block else first_stride)
    x = _relu6(net, net.batch_norm(net.conv(x, 1280, 1)))
    return net.model({"logits": net.classify(x, 1000)})


def _relu6(net: Net, x: Feature) -> Feature:
    return Feature(net.op("Clip", x.name, net.constant(0.0), net.constant(6.0)), x.channels)


def _inverted_residual(net: Net, x: Feature, expansion: int, channels: int, stride: int) -> Feature:
    y = x
    if expansion > 1:
        y = _relu6(net, net.batch_norm(net.conv(y, expansion * x.channels, 1)))
    y = _relu6(net, net.batch_norm(net.conv(y, y.channels, 3, stride, groups=y.channels)))
    y = net.batch_norm(net.conv(y, channels, 1))
    return net.add(x, y) if stride == 1 and x.channels == channels else y


def resnet18_3d() -> onnx.ModelProto:
    """3-D ResNet-18 on 16 frames of 112 x 112. Source: Tran et al., CVPR 2018 (R3D)."""
    net = Net("r3d_18", seed=13)
    x = Feature(net.input("x", (1, 3, 16, 112, 112)), 3)
    x = net.relu(net.batch_norm(net.conv(x, 64, (3, 7, 7), (1, 2, 2))))
    for stage in range(4):
        for block in range(2):
            x = _block_3d(net, x, 64 << stage, 2 if stage and not block else 1)
    return net.model({"logits": net.classify(x, 400)})


def _block_3d(net: Net, x: Feature, channels: int, stride: int) -> Feature:
    y = net.relu(net.batch_norm(net.conv(x, channels, (3, 3, 3), stride)))
    y = net.batch_norm(net.conv(y, channels, (3, 3, 3)))
    if stride > 1:
        x = net.batch_norm(net.conv(x, channels, (1, 1, 1), stride))
    return net.relu(net.add(y, x))


def dcgan() -> onnx.ModelProto:
    """DCGAN's generator, 64 x 64, as wide as PyTorch's. Source: Radford et al., ICLR 2016, figure 1."""
    net = Net("dcgan", seed=14)
    x = Feature(net.input("z", (1, 100, 1, 1)), 100)
    for i, channels in enumerate([512, 256, 128, 64, 3]):
        std = math.sqrt(2 / (x.channels * 16 / (4 if i else 16)))
        weight = net.normal(x.channels, channels, 4, 4, std=std)
        stride, pad = (2, 1) if i else (1, 0)
        up = net.op(
            "ConvTranspose", x.name, weight, kernel_shape=(4, 4), strides=(stride,) * 2, pads=(pad,) * 4
        )
        x = Feature(up, channels)
        if channels > 3:
            x = net.relu(net.batch_norm(x))
    return net.model({"image": net.op("Tanh", x.name)})
