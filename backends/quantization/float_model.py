"""The float model as the quantizers read it rightly."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from collage.backends.numerics.reference import reference_session, run_session
from collage.backends.quantization.bias_correction import constant_value
from collage.backends.rewriting.graph import RewriteGraph
from collage.backends.rewriting.passes.hard_swish import fuse_hard_swish
from collage.backends.support.conversion import write_streamed
from collage.partitioner.lazy import ir, passes


def loaded(path: Path) -> ir.Model:
    """A model with all weights inside."""
    model = ir.load(path)
    ir.external_data.load_to_model(model)
    return model


def computed(
    model: ir.Model,
    values: Sequence[ir.Value],
    file: Path,
    samples: Sequence[Mapping[str, np.ndarray]],
) -> Iterator[dict[str, np.ndarray]]:
    """Values of a model by name, sample by sample.

    Args:
        model: they become its outputs.
        values: of its nodes; of float32 where their type is not known.
        file: where the model is written for a moment.
        samples: its inputs.
    """
    model.graph.outputs.clear()
    model.graph.outputs.extend(values)
    for value in values:
        value.dtype = value.dtype or ir.DataType.FLOAT
    write_streamed(model, file)
    session = reference_session(file)
    file.unlink()
    names = [value.name or "" for value in values]
    for sample in samples:
        yield run_session(session, sample, names)


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


def move_strides(model: ir.Model) -> None:
    """Let convolutions of one element with a stride read what a pool of one element picks, in place.

    OpenVINO does so itself, behind the rounding, and then has no integer kernel for them.
    """
    pools: dict[str, ir.Value] = {}
    for node in list(model.graph):
        read, strides = node.inputs[0] if node.inputs else None, _strides_alone(node)
        if read is None or strides is None:
            continue
        name = f"{read.name}/every {'x'.join(map(str, strides))}"
        if name not in pools:
            sizes = {"kernel_shape": [1] * len(strides), "strides": list(strides)}
            pool = ir.node("MaxPool", [read], sizes, name=name)
            pool.outputs[0].name, pool.outputs[0].type = name, read.type
            model.graph.insert_before(node, pool)
            pools[name] = pool.outputs[0]
        node.replace_input_with(0, pools[name])
        node.attributes["strides"] = ir.AttrInt64s("strides", [1] * len(strides))


def _strides_alone(node: ir.Node) -> tuple[int, ...] | None:
    """The strides of a convolution with constant weights that only picks and multiplies, or None."""
    weight = node.inputs[1] if node.op_type == "Conv" and not node.domain else None
    strides = tuple(node.attributes.get_ints("strides", ()))
    if weight is None or weight.const_value is None or set(strides) <= {1}:
        return None
    one_element = set(weight.const_value.shape[2:]) == {1}
    return strides if one_element and not any(node.attributes.get_ints("pads", ())) else None


def add_by_pairs(model: ir.Model) -> None:
    """Make a Sum of two an Add, for which runtimes have an integer kernel, in place."""
    for node in model.graph:
        if node.op_type == "Sum" and not node.domain and len(node.inputs) == 2:
            node.op_type = "Add"


def with_hard_swishes(model: ir.Model) -> ir.Model:
    """The model with each product of a value and its gate as the HardSwish that a kernel can end with."""
    if not any(node.op_type == "HardSigmoid" for node in model.graph):
        return model
    graph = RewriteGraph(ir.to_proto(model))
    fuse_hard_swish(graph)
    fused: ir.Model = ir.from_proto(graph.proto)
    tidy(fused)
    return fused


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


def own_biases(model: ir.Model) -> None:
    """Give each convolution and product that shares its bias a copy of it.

    The quantizer copies it under its name and a number, which may be the name of another value.
    """
    for node in model.graph:
        bias = node.inputs[2] if node.op_type in ("Conv", "Gemm") and len(node.inputs) > 2 else None
        if bias is None or bias.const_value is None or len(bias.uses()) < 2:
            continue
        name = f"{bias.name}/of {node.name}"
        node.replace_input_with(2, constant_value(model.graph, name, bias.const_value.numpy()))
