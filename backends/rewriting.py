"""A model in an equal form that other runtimes are quicker with, before they read it.

Exporters write forms that one runtime puts right and another does not:

* Those of frameworks that keep channels last (TensorFlow's) put Transposes around convolutions and leave many of them in.
  ONNX Runtime moves them together and cancels them; of other runtimes each leaves some, or has no layer for what lies
  between. So they are given what ONNX Runtime's basic level makes of a model, in operators of ai.onnx.
* PyTorch's wrote hard swishes as products with a HardSigmoid before opset 14, and ONNX Runtime takes them apart so. OpenVINO
  fuses HardSwish, and the form with Clip, with the convolution before it, and not this one.

The numbers are the same but for rounding. docs/backends.md has what it gives.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import onnx
from onnx import helper, numpy_helper

from backends.contract import CompileContext, Option, SubModel
from backends.conversion import cached, files_of
from backends.onnxruntime_session import GRAPH, WEIGHTS, open_model, options_of, ort, save_optimised
from partitioner.target import Target

ON = "on"
REWRITE = Option(
    "rewrite",
    "off",
    "First rewrite the model in an equal form: Transposes cancelled, hard swishes put together.",
    choices=("off", ON),
    is_later=True,
    tunable=(ON,),
)
_REWRITER = Target("onnxruntime")
_EDITION = 1  # part of the cache's key: raise it when something else is written
_HAS_HARD_SWISH, _CLIP_TAKES_INPUTS = 14, 11
# A hard swish is x * max(0, min(1, x / 6 + 1 / 2)).
_ALPHA, _BETA, _CLOSE = 1 / 6, 0.5, 1e-5
_NUMBERS = {"collage.three": 3.0, "collage.zero": 0.0, "collage.six": 6.0, "collage.sixth": _ALPHA}


@dataclass(frozen=True)
class Changes:
    """What rewriting changes in a model.

    Args:
        transposes_left: of all that there were.
        hard_swishes: how many were put together.
    """

    transposes_left: int
    hard_swishes: int


def rewrites(target: Target) -> bool:
    """Whether a target has models rewritten."""
    return target.option(REWRITE.name, REWRITE.default) == ON


def rewritten(model: SubModel, target: Target, context: CompileContext) -> SubModel:
    """The sub-model as the target reads it: rewritten where it asks for that, from the cache where it is in it.

    Raises:
        Exception: what ONNX Runtime raises for a model that it cannot open or write.
    """
    if not rewrites(target):
        return model

    def make(folder: Path) -> None:
        _rewrite(model.path, context, folder)

    maker = f"rewritten-{_EDITION}-{ort().__version__}"
    files = [GRAPH, WEIGHTS]
    folder = cached(files_of(model.path), files, maker, make, context.work_dir, context.cache_dir)
    return replace(model, path=folder / GRAPH)


def changes(model: Path) -> Changes:
    """What rewriting changes; runs in a child, in whose folder the files are left.

    Raises:
        Exception: as for `rewritten`.
    """
    return _rewrite(model, CompileContext(1, Path()), Path())


def _rewrite(model: Path, context: CompileContext, folder: Path) -> Changes:
    options = options_of(_REWRITER, context, "basic")
    save_optimised(options, folder)
    open_model(model, _REWRITER, options)
    (folder / WEIGHTS).touch()  # not written where no weight is large enough
    made = onnx.load(folder / GRAPH, load_external_data=False)
    swishes = _put_swishes_together(made)
    if swishes:
        onnx.save(made, folder / GRAPH)
    return Changes(sum(node.op_type == "Transpose" for node in made.graph.node), swishes)


def _put_swishes_together(model: onnx.ModelProto) -> int:
    """Write products of a value and its HardSigmoid as one HardSwish, or with Clip where the opset has none."""
    opset = next((o.version for o in model.opset_import if o.domain in ("", "ai.onnx")), 0)
    graph = model.graph
    halves = any(tensor.data_type == onnx.TensorProto.FLOAT16 for tensor in graph.initializer)
    if opset < _CLIP_TAKES_INPUTS or (opset < _HAS_HARD_SWISH and halves):
        return 0  # the numbers of the longer form are float32
    sigmoids = {node.output[0]: node for node in graph.node if _is_swish_gate(node)}
    kept: list[onnx.NodeProto] = []
    found = 0
    for node in graph.node:
        value = _swished(node, sigmoids)
        if value is None:
            kept.append(node)
            continue
        found += 1
        kept.extend(_hard_swish(node, value, opset))
    if not found:
        return 0
    read = {name for node in kept for name in _reads(node)} | {value.name for value in graph.output}
    kept = [node for node in kept if node.output[0] in read or node.output[0] not in sigmoids]
    del graph.node[:]
    graph.node.extend(kept)
    if opset < _HAS_HARD_SWISH:
        for name, number in _NUMBERS.items():
            graph.initializer.append(numpy_helper.from_array(np.array(number, np.float32), name))
    return found


def _is_swish_gate(node: onnx.NodeProto) -> bool:
    if node.op_type != "HardSigmoid" or node.domain not in ("", "ai.onnx"):
        return False
    given = {attribute.name: attribute.f for attribute in node.attribute}
    alpha, beta = given.get("alpha", 0.2), given.get("beta", 0.5)
    return bool(abs(alpha - _ALPHA) < _CLOSE and abs(beta - _BETA) < _CLOSE)


def _swished(node: onnx.NodeProto, sigmoids: dict[str, onnx.NodeProto]) -> str | None:
    """The value that a node multiplies with its own gate."""
    if node.op_type != "Mul" or node.domain not in ("", "ai.onnx"):
        return None
    for value, gate in (tuple(node.input), tuple(reversed(node.input))):
        if gate in sigmoids and sigmoids[gate].input[0] == value:
            return str(value)
    return None


def _hard_swish(node: onnx.NodeProto, value: str, opset: int) -> list[onnx.NodeProto]:
    made = node.output[0]
    if opset >= _HAS_HARD_SWISH:
        return [helper.make_node("HardSwish", [value], [made], name=node.name)]
    three, zero, six, sixth = _NUMBERS
    shifted, clipped, wide = (f"{made}.{step}" for step in ("shifted", "clipped", "wide"))
    return [
        helper.make_node("Add", [value, three], [shifted], name=shifted),
        helper.make_node("Clip", [shifted, zero, six], [clipped], name=clipped),
        helper.make_node("Mul", [value, clipped], [wide], name=wide),
        helper.make_node("Mul", [wide, sixth], [made], name=node.name),
    ]


def _reads(node: onnx.NodeProto) -> set[str]:
    """What a node reads, bodies included."""
    bodies = [a.g for a in node.attribute if a.HasField("g")]
    bodies += [graph for a in node.attribute for graph in a.graphs]
    return {*node.input, *(name for body in bodies for inner in body.node for name in _reads(inner))}
