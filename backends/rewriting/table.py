"""All graph passes, in the order in which they run.

Gains are of whole models, time as it is over time rewritten; all of them, and how they were measured,
stand in docs/results/rewriting.md and docs/results/winograd.md.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from collage.backends.options import Option
from collage.backends.rewriting.graph import RewriteGraph
from collage.backends.rewriting.passes.broadcast_concat import split_broadcast_concat
from collage.backends.rewriting.passes.channel_shuffle import absorb_shuffles
from collage.backends.rewriting.passes.channels_first import keep_channels_first
from collage.backends.rewriting.passes.conv1d_as_conv2d import conv1d_to_conv2d
from collage.backends.rewriting.passes.conv_bias import copy_shared_biases
from collage.backends.rewriting.passes.group_norm import expand_group_norm
from collage.backends.rewriting.passes.hard_swish import fuse_hard_swish
from collage.backends.rewriting.passes.split_product import split_products
from collage.backends.rewriting.passes.winograd import to_winograd
from collage.partitioner.target import Target

OFF, ON, WINOGRAD = "off", "on", "winograd"
TRANSPOSES, SPREADS, CHANNELS_FIRST = "transposes", "spreads", "channels_first"
_HELP = "First rewrite the model in an equal form that this runtime is quicker with"
REWRITE = Option(
    "rewrite", OFF, f"{_HELP}.", choices=(OFF, ON), is_later=True, tunable=(ON,), whole_first=True
)
REWRITE_OR_WINOGRAD = replace(
    REWRITE,
    help=f"{_HELP}; winograd: convolutions over 3 places of an axis and more by Winograd's algorithm, too.",
    choices=(OFF, ON, WINOGRAD),
    tunable=(ON, WINOGRAD),
)
ROUNDS_TOO_MUCH = (
    "-rewrite=winograd needs float32: coarser numbers would add to its rounding errors; use -rewrite=on"
)


@dataclass(frozen=True)
class Pass:
    """One graph pass."""

    name: str  # in the keys of caches
    runtimes: tuple[str, ...]  # those that it made faster
    sees: str  # what it replaces, and by what
    reason: str  # why that is faster
    gain: str  # on which model, as told in docs/results/
    # changes a graph, and returns how many places it changed; None for what ONNX Runtime does before
    apply: Callable[[RewriteGraph], int] | None
    at_one_place: bool = False  # whether a single place is a reason to time a whole model


PASSES = (
    Pass(
        TRANSPOSES,
        ("openvino", "mnn", "ncnn"),
        "Transposes that cancel once they are moved together",
        "TensorFlow's exporters write one before and one after each convolution",
        "MobileNetV3-small of Keras: openvino 3.22, mnn 2.38",
        None,
    ),
    Pass(
        "swishes",
        ("openvino", "mnn", "ncnn"),
        "a product of a value and its HardSigmoid: one HardSwish, or Clip below opset 14",
        "OpenVINO fuses HardSwish with the convolution before it",
        "LCNet of PyTorch, opset 12: openvino 1.07",
        fuse_hard_swish,
    ),
    Pass(
        "norms",
        ("openvino",),
        "an InstanceNormalization between Reshapes: a group normalization without them",
        "OpenVINO keeps channels last, and each Reshape wants them first",
        "PoolFormer-S12: openvino 1.16",
        expand_group_norm,
    ),
    Pass(
        "biases",
        ("openvino",),
        "a bias that several convolutions share: one for each",
        "OpenVINO fuses no shared bias, and then no activation",
        "nine models of Keras: openvino 1.00 to 1.09",
        copy_shared_biases,
    ),
    Pass(
        SPREADS,
        ("onnxruntime", "openvino", "mnn", "ncnn"),
        "a product of a Concat with broadcast values: the sum of two products",
        "what is equal in all places is computed once",
        "PointNet's segmentation: onnxruntime 2.48, openvino 2.53, mnn 2.15, ncnn 5.6",
        split_broadcast_concat,
        at_one_place=True,
    ),
    Pass(
        CHANNELS_FIRST,
        ("openvino", "ncnn"),
        "a LayerNormalization and products between Transposes: means and convolutions without them",
        "OpenVINO keeps channels last whichever axis is theirs, so both Transposes are copies",
        "EdgeNeXt-small: openvino 1.27, ncnn 17.3",
        keep_channels_first,
    ),
    Pass(
        "shuffles",
        ("onnxruntime", "openvino", "mnn", "ncnn"),
        "a channel shuffle before convolutions: their weights in another order",
        "a shuffle copies all numbers and computes none",
        "ShuffleNetV2-1.0: onnxruntime 1.08, openvino 1.31, mnn 1.11, ncnn 1.10",
        absorb_shuffles,
    ),
    Pass(
        "two_d",
        ("onnxruntime", "openvino", "mnn", "ncnn"),
        "convolutions along one axis: convolutions of images of one row",
        "runtimes have their best kernels for images",
        "M5: onnxruntime 1.61, openvino 1.00, mnn 1.13, ncnn 1.58",
        conv1d_to_conv2d,
    ),
    Pass(
        "splits",
        ("onnxruntime", "openvino"),
        "a product whose result is split in two or three: a product for each part",
        "a Split copies where channels are last, which takes longer than reading the input again",
        "MobileViTV2-0.5: onnxruntime 1.03, openvino 1.38",
        split_products,
    ),
    Pass(
        WINOGRAD,
        ("onnxruntime", "openvino"),
        "wide convolutions of stride 1 (-rewrite=winograd alone): products of matrices",
        "fewer multiplications",
        "VGG-19: onnxruntime 1.39, openvino 1.65",
        to_winograd,
        at_one_place=True,
    ),
)


def rewriting(target: Target) -> str:
    """How a target has models rewritten: off, on or winograd."""
    return target.option(REWRITE.name, OFF)


def passes_of(target: Target) -> tuple[Pass, ...]:
    """The passes that a target's models go through."""
    how = rewriting(target)
    return tuple(
        found
        for found in PASSES
        if how != OFF
        and target.backend in found.runtimes
        and (found.name != WINOGRAD or how == WINOGRAD)
    )
