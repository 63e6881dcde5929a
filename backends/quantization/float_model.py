"""The float model as the quantizers read it rightly."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from collage.backends.quantization.bias_correction import constant_value
from collage.partitioner.lazy import ir, passes


def loaded(path: Path) -> ir.Model:
    """A model with all weights inside."""
    model = ir.load(path)
    ir.external_data.load_to_model(model)
    return model


def fold_normalization(model: ir.Model) -> None:
    """Fold batch normalization into the weights of the convolution before it."""
    from onnxscript.rewriter import RewriteRuleSet
    from onnxscript.rewriter.rules.common import fuse_batchnorm_into_conv_rule

    RewriteRuleSet([fuse_batchnorm_into_conv_rule]).apply_to_model(model)
    tidy(model)


def tidy(model: ir.Model) -> None:
    """Drop nodes that nothing reads, and name all others."""
    passes.RemoveUnusedNodesPass()(model)
    passes.NameFixPass()(model)


def turn_weights(model: ir.Model) -> None:
    """Transpose the weights of Gemms, a copy for each."""
    for node in model.graph:
        if node.op_type != "Gemm" or not node.attributes.get_int("transB", 0):
            continue
        weight = node.inputs[1]
        if weight is None or weight.const_value is None:
            continue
        name = f"{weight.name}/turned for {node.name}"
        turned = np.ascontiguousarray(weight.const_value.numpy().T)
        node.replace_input_with(1, constant_value(model.graph, name, turned))
        node.attributes["transB"] = ir.AttrInt64("transB", 0)
