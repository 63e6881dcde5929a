"""Folding: constant values become initializers, unused nodes go away.

onnxscript and onnx-ir fold; here are the limits, since a tiny model can ask for a huge constant.
Constant fills (ConstantOfShape) are folded within the budget, since runtimes pack only initializers;
other operators only while small, except those that move data around. What is not folded stays a node.
"""

from __future__ import annotations

import logging
import math
from typing import Any

import numpy as np
import onnx_ir.passes.common as passes
from onnxscript.optimizer import constant_folding

from collage.partitioner.errors import ModelError
from collage.partitioner.ingest.sequence_types import mark_sequences
from collage.partitioner.lazy import ir

MAX_FOLDED_BYTES = 4 << 30
MAX_VALUE_BYTES = 16 << 30
_SMALL_ELEMENTS = 1 << 18
_MOVED_ELEMENTS = 1 << 26
_MAX_ROUNDS = 5

_MOVES_DATA = frozenset({"Cast", "Flatten", "Identity", "Reshape", "Squeeze", "Transpose", "Unsqueeze"})
_SHAPED_LIKE_INPUT = frozenset(
    {
        "BiasGelu",
        "FastGelu",
        "Gelu",
        "QuickGelu",
        "SkipLayerNormalization",
        "SkipSimplifiedLayerNormalization",
    }
)
# What a Constant of numbers may be written as beside a tensor.
_CONSTANTS = {
    **{"value_int": np.int64, "value_ints": np.int64},
    **{"value_float": np.float32, "value_floats": np.float32},
}
_TEXTS = {"value_string", "value_strings"}
# The library takes these for what they are since this opset: it writes the operators of that one, and computes as there.
_FOLDED_SINCE = {
    **{"ConcatFromSequence": 13, "SplitToSequence": 18},
    **dict.fromkeys(("Hardmax", "LogSoftmax", "Softmax"), 13),
}
# ONNX infers a wrong shape of these; the rank of their output.
_MISREAD = {"STFT": 4}
_NOT_INFERRED = "collage.not-inferred"
# Operators that ONNX computes as ONNX Runtime does, and with which models compute constants. It has other values of many
# layers (pools, normalization, Resize), and folding DequantizeLinear would hide from runtimes that weights are quantized.
_COMPUTED = """
    Abs Acos Acosh Add And ArgMax ArgMin Asin Asinh Atan Atanh BitShift BitwiseAnd BitwiseNot BitwiseOr BitwiseXor
    BlackmanWindow Cast CastLike Ceil Clip Compress Concat ConstantOfShape Cos Cosh CumSum Div Einsum Equal Erf Exp Expand
    EyeLike Flatten Floor Gather GatherElements GatherND Gemm Greater GreaterOrEqual HammingWindow HannWindow Hardmax
    Identity IsInf IsNaN Less LessOrEqual Log LogSoftmax MatMul Max Mean MelWeightMatrix Min Mod Mul Neg NonZero Not OneHot
    Or Pad Pow Range Reciprocal ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd
    ReduceSum ReduceSumSquare Relu Reshape Round ScatterElements ScatterND Shape Sigmoid Sign Sin Sinh Size Slice Softmax
    Sqrt Squeeze Sub Sum Tan Tanh Tile Transpose Trilu Unsqueeze Where Xor
"""
_FOLDED = frozenset(_COMPUTED.split())


class _MainGraphFolder(constant_folding.FoldConstantsPass):  # type: ignore[misc]
    """Leaves bodies alone, and knows the shapes of some operators that onnx does not.

    A branch that is never taken may contradict the bound shapes: folded, it would no longer load.
    """

    def visit_attribute(self, attr: ir.Attr) -> None:
        return

    def process_node(self, node: ir.Node, is_function: bool) -> Any:
        if node.domain == "" and self._is_misread(node):
            return None
        return super().process_node(node, is_function)

    def _is_misread(self, node: ir.Node) -> bool:
        """Whether the library would write another computation than the node's."""
        if self._opset_imports.get("", 0) < _FOLDED_SINCE.get(node.op_type, 0):
            return True
        if node.op_type == "Abs":  # it takes no sum of sizes for negative
            return isinstance(self._state.get_sym_value(node.inputs[0]), ir.Shape)
        if node.op_type == "SplitToSequence" and len(node.inputs) > 1 and node.inputs[1] is not None:
            split = node.inputs[1]
            if split.shape:
                # ONNX Runtime ignores it beside a list of sizes, and the library does not.
                node.attributes.pop("keepdims", None)
                return False
            return split.const_value is None  # the library stops at one size that is computed
        return False

    def _do_inference(self, node: ir.Node) -> None:
        if node.domain == "" and node.op_type in _MISREAD:
            return
        if node.domain == "com.microsoft":
            first = node.inputs[0] if node.inputs else None
            if node.op_type in _SHAPED_LIKE_INPUT and first is not None and first.type is not None:
                node.outputs[0].type, node.outputs[0].shape = first.type, first.shape
            return
        super()._do_inference(node)


class _Budget:
    """Decides for each constant node whether it is folded, and counts the bytes."""

    def __init__(self) -> None:
        self._left = MAX_FOLDED_BYTES

    def should_fold(self, node: ir.Node) -> bool:
        if node.domain or node.op_type not in _FOLDED:
            return False
        if any(v is not None and v.dtype == ir.DataType.STRING for v in (*node.inputs, *node.outputs)):
            return False  # the library's inference stops at text that it folded
        if node.op_type == "ConstantOfShape":
            self._spend(node, _fill_bytes(node))
            return True
        limit = _MOVED_ELEMENTS if node.op_type in _MOVES_DATA else _SMALL_ELEMENTS
        sizes = [v.const_value.size for v in node.inputs if v is not None and v.const_value is not None]
        sizes.extend(_elements(output) for output in node.outputs)
        if max(sizes, default=0) > limit:
            return False
        self._spend(node, sum(output_bytes(output) for output in node.outputs))
        return True

    def _spend(self, node: ir.Node, size_bytes: int) -> None:
        self._left -= size_bytes
        if self._left < 0:
            raise ModelError(
                f"node {node.name!r} ({node.op_type}) asks for a constant of {size_bytes} bytes; "
                f"all folded constants together may have {MAX_FOLDED_BYTES}"
            )


def fold(model: ir.Model, notes: list[str]) -> ir.Model:
    """Infer shapes and fold constants until nothing changes.

    Args:
        model: functions inlined, dimensions bound; it is used up.
        notes: gets a line where folding had to be left out.

    Raises:
        ModelError: constants or values of absurd size.
        MemoryError: a constant fits the limits but not this process.
    """
    # The library logs each node that it leaves as it is.
    logging.getLogger(constant_folding.__name__).setLevel(logging.ERROR)
    budget = _Budget()
    lift_constants(model)
    for _ in range(_MAX_ROUNDS):
        infer(model)
        before = model.clone()
        try:
            folder = _MainGraphFolder(
                shape_inference=True,
                input_size_limit=_MOVED_ELEMENTS,
                output_size_limit=MAX_FOLDED_BYTES,
                should_fold=budget.should_fold,
            )
            with np.errstate(all="ignore"):  # infinities of the model's own arithmetic
                modified = folder(model).modified
        except (RuntimeError, ValueError) as error:  # it may name two values alike
            notes.append(f"constant folding stopped early: {error}")
            model = before
            break
        tidy(model)
        if not modified:
            break
    if any(node.op_type == "ConstantOfShape" and _fill_bytes(node) for node in model.graph):
        # The library's evaluator swallows the MemoryError that left this one unfolded.
        raise MemoryError
    _name_constant_outputs(model)
    _refuse_huge_values(model)
    return model


def infer(model: ir.Model) -> None:
    """Infer types and shapes of all values, in place."""
    misread = [
        node
        for node in ir.traversal.RecursiveGraphIterator(model.graph)
        if node.domain == "" and node.op_type in _MISREAD
    ]
    for node in misread:
        node.domain = _NOT_INFERRED
        if node.outputs[0].shape is None:
            node.outputs[0].shape = ir.Shape([None] * _MISREAD[node.op_type])
            node.outputs[0].type = node.inputs[0].type if node.inputs[0] is not None else None
    if misread:
        model.opset_imports[_NOT_INFERRED] = 1
    passes.ShapeInferencePass(check_type=False, strict_mode=False, data_prop=True)(model)
    model.opset_imports.pop(_NOT_INFERRED, None)
    for node in misread:
        node.domain = ""
    mark_sequences(model)


def lift_constants(model: ir.Model) -> None:
    """Make every Constant node an initializer of the main graph, those of bodies too."""
    _write_texts_as_tensors(model)
    passes.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(model)
    passes.LiftSubgraphInitializersToMainGraphPass()(model)


def _write_texts_as_tensors(model: ir.Model) -> None:
    """Give Constant nodes of text a tensor: the library takes ASCII alone."""
    for node in ir.traversal.RecursiveGraphIterator(model.graph):
        if node.op_type != "Constant" or node.domain:
            continue
        for name in _TEXTS & node.attributes.keys():
            said = node.attributes.pop(name).value
            texts = [said] if name == "value_string" else list(said)
            data = [text if isinstance(text, bytes) else text.encode() for text in texts]
            shape = ir.Shape(() if name == "value_string" else (len(data),))
            node.attributes.add(ir.AttrTensor("value", ir.StringTensor(data, shape=shape)))


def tidy(model: ir.Model) -> None:
    """Lift constants, then drop unused nodes and initializers."""
    lift_constants(model)
    _forget_dead_readers(model)
    passes.RemoveUnusedNodesPass()(model)


def _forget_dead_readers(model: ir.Model) -> None:
    """Remove the uses of values in branches that were cut off when an If was decided."""
    graph = model.graph
    alive = set(ir.traversal.RecursiveGraphIterator(graph))
    made = (value for node in alive for value in node.outputs)
    for value in (*graph.inputs, *graph.initializers.values(), *made):
        for reader, position in tuple(value.uses()):
            if reader not in alive:
                reader.replace_input_with(position, None)


def _elements(value: ir.Value) -> int:
    if value.shape is None or any(not isinstance(dim, int) for dim in value.shape):
        return 0
    return math.prod(dim for dim in value.shape if isinstance(dim, int))


def output_bytes(value: ir.Value) -> int:
    """Size of a value in bytes, 0 where type or shape are not known."""
    if value.dtype in (None, ir.DataType.UNDEFINED, ir.DataType.STRING):
        return 0
    return math.ceil(_elements(value) * value.dtype.bitwidth / 8)


def _fill_bytes(node: ir.Node) -> int:
    shape = node.inputs[0].const_value if node.inputs and node.inputs[0] is not None else None
    if shape is None:
        return 0
    dims = [int(dim) for dim in np.asarray(shape.numpy()).reshape(-1)]
    if any(dim < 0 for dim in dims):
        raise ModelError(f"node {node.name!r} (ConstantOfShape) has a negative dimension in {dims}")
    filler = node.attributes.get("value")
    width = filler.as_tensor().dtype.bitwidth if filler is not None else 32
    return math.ceil(math.prod(dims) * width / 8)


def _name_constant_outputs(model: ir.Model) -> None:
    """Let an Identity make a graph output that is a constant, so that a node makes each.

    An input that is an output too stays both: its name can be given only once.
    """
    graph = model.graph
    _lift_constant_outputs(model)
    for position, output in enumerate(graph.outputs):
        if output.producer() is not None or output.is_graph_input():
            continue
        name = output.name
        node = ir.node("Identity", [output], name=f"Identity_{name}")
        made = node.outputs[0]
        made.shape, made.type = output.shape, output.type
        graph.append(node)
        graph.outputs[position] = made
        output.name = f"{name}_constant"
        made.name = name


def _lift_constant_outputs(model: ir.Model) -> None:
    """Make initializers of Constant nodes that make outputs: the library lifts the others only.

    It writes such nodes when it folds, with attributes that only opsets from 12 on have.
    """
    graph = model.graph
    for node in [node for node in graph if node.domain == "" and node.op_type == "Constant"]:
        (name, attribute), *_ = node.attributes.items()
        kind = _CONSTANTS.get(name)
        if kind is None and name != "value":
            continue  # what a later version of ONNX may add
        tensor = attribute.as_tensor() if kind is None else ir.tensor(np.array(attribute.value, kind))
        made = node.outputs[0]
        value = ir.Value(
            name=f"{made.name}_lifted",
            shape=ir.Shape(tensor.numpy().shape),
            type=ir.TensorType(tensor.dtype),
        )
        value.const_value = tensor
        graph.register_initializer(value)
        copy = ir.node("Identity", [value], name=f"Identity_{made.name}")
        copy.outputs[0].shape, copy.outputs[0].type = value.shape, value.type
        graph.insert_before(node, copy)
        name_of_output = made.name
        made.replace_all_uses_with(copy.outputs[0], replace_graph_outputs=True)
        graph.remove(node, safe=True)
        copy.outputs[0].name = name_of_output


def _refuse_huge_values(model: ir.Model) -> None:
    for node in model.graph:
        for value in node.outputs:
            if output_bytes(value) > MAX_VALUE_BYTES:
                raise ModelError(
                    f"value {value.name!r} of node {node.name!r} ({node.op_type}) would have "
                    f"{output_bytes(value)} bytes; at most {MAX_VALUE_BYTES} are allowed"
                )
