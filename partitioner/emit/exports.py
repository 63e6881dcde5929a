"""A plan in forms that other tools use: functions, or ONNX Runtime's layer annotations.

* `outline`: one model-local function per partition, weights as its inputs, so that repeated partitions
  share one body. ONNX Runtime inlines the functions; OpenVINO refuses models that have any.
* `layer_annotations`: `layer_ann` on each node and the session setting that sends it to a device of
  ONNX Runtime. A provider without a kernel for a node lets it fall to the next.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import onnx

from collage.partitioner.candidate import Plan, bits
from collage.partitioner.emit.annotate import PARTITION_KEY, TARGET_KEY
from collage.partitioner.emit.extract import constants
from collage.partitioner.errors import BadInputError
from collage.partitioner.graph import weights
from collage.partitioner.graph.model import Model
from collage.partitioner.graph.plan_check import check_plan
from collage.partitioner.graph.sub_graph import SubGraph
from collage.partitioner.target import Target

FUNCTION_DOMAIN = "collage"
LAYER_KEY = "layer_ann"
LAYER_SETTING = "session.layer_assignment_settings"


def outline(model: Model, plan: Plan, destination: Path) -> Path:
    """Write the model as one call per partition; equal partitions call one function.

    Raises:
        BadInputError: the plan is not one for this model.
    """
    check_plan(model.index, plan)
    proto = weights.described_structure(model.ir)
    del proto.graph.node[:]
    names: dict[bytes, str] = {}
    crossing: set[str] = set()
    for number, partition in enumerate(plan.partitions):
        sub_graph = SubGraph(model.index, partition.nodes)
        given = [*sub_graph.inputs, *(value.name or "" for value in constants(model, sub_graph))]
        crossing.update(sub_graph.outputs)
        function = _function(model, sub_graph, given)
        body = function.SerializeToString(deterministic=True)
        if body not in names:
            names[body] = function.name = f"partition_{number}"
            proto.functions.append(function)
        call = proto.graph.node.add(
            op_type=names[body],
            domain=FUNCTION_DOMAIN,
            name=f"partition_{number}",
            input=given,
            output=sub_graph.outputs,
        )
        call.metadata_props.add(key=PARTITION_KEY, value=str(number))
        call.metadata_props.add(key=TARGET_KEY, value=str(partition.target))
    kept = [value for value in proto.graph.value_info if value.name in crossing]
    del proto.graph.value_info[:]
    proto.graph.value_info.extend(kept)
    proto.opset_import.add(domain=FUNCTION_DOMAIN, version=1)
    destination.parent.mkdir(parents=True, exist_ok=True)
    weights.write(proto, list(model.ir.graph.initializers.values()), destination)
    return destination


@dataclass(frozen=True)
class LayerAnnotations:
    """A model that steers ONNX Runtime."""

    path: Path  # the annotated model
    settings: Mapping[str, str]  # entries for `SessionOptions.add_session_config_entry`


def layer_annotations(
    model: Model, plan: Plan, destination: Path, devices: Mapping[Target, str] | None = None
) -> LayerAnnotations:
    """Write the model with `layer_ann` on each node, and say which setting uses it.

    Args:
        devices: ONNX Runtime's device designator for a target (`cpu`, `cuda`, `gpu:1`, `npu` …);
            targets of the backend `onnxruntime` need none.

    Raises:
        BadInputError: a target of another backend has no device, or the plan is for another model.
    """
    check_plan(model.index, plan)
    proto = weights.described_structure(model.ir)
    rules: dict[str, list[str]] = {}
    for number, partition in enumerate(plan.partitions):
        layer = f"partition_{number}"
        rules.setdefault(_device(partition.target, devices or {}), []).append(f"={layer}")
        for i in bits(partition.nodes):
            proto.graph.node[i].metadata_props.add(key=LAYER_KEY, value=layer)
    destination.parent.mkdir(parents=True, exist_ok=True)
    weights.write(proto, list(model.ir.graph.initializers.values()), destination)
    text = "; ".join(f"{device}({', '.join(layers)})" for device, layers in sorted(rules.items()))
    return LayerAnnotations(destination, {LAYER_SETTING: text})


def _device(target: Target, devices: Mapping[Target, str]) -> str:
    if target in devices:
        return devices[target]
    if target.backend == "onnxruntime":
        return target.option("ep", "cpu")
    raise BadInputError(
        f"target '{target}' is no execution provider of ONNX Runtime; say which of its devices is to "
        "take these partitions (cpu, cuda, gpu:1, npu …)"
    )


def _function(model: Model, sub_graph: SubGraph, given: Sequence[str]) -> onnx.FunctionProto:
    """The partition's body under names that do not depend on where in the model it stands."""
    proto = weights.structure(model.ir, [model.nodes[i] for i in sub_graph.members], [], [])
    renamer = _Renamer({name: f"input_{i}" for i, name in enumerate(given)})
    renamer.rename_nodes(proto.graph.node)
    return onnx.FunctionProto(
        domain=FUNCTION_DOMAIN,
        input=[renamer.names[name] for name in given],
        output=[renamer.names[name] for name in sub_graph.outputs],
        node=proto.graph.node,
        opset_import=proto.opset_import,
    )


class _Renamer:
    """Names values and nodes, those of bodies too, in the order in which they come."""

    def __init__(self, names: dict[str, str]) -> None:
        self.names = names
        self._nodes = 0

    def rename_nodes(self, nodes: Sequence[onnx.NodeProto]) -> None:
        for node in nodes:
            node.name = f"node_{self._nodes}"
            self._nodes += 1
            del node.metadata_props[:]
            node.input[:] = [self._known(name) for name in node.input]
            for attribute in node.attribute:
                for body in ([attribute.g] if attribute.HasField("g") else []) + list(attribute.graphs):
                    self._rename_body(body)
            node.output[:] = [self._new(name) for name in node.output]

    def _rename_body(self, body: onnx.GraphProto) -> None:
        body.name = "body"
        del body.value_info[:]
        for value in body.input:
            value.name = self._new(value.name)
        self.rename_nodes(body.node)
        for value in body.output:
            value.name = self._known(value.name)

    def _known(self, name: str) -> str:
        return self.names[name] if name else ""

    def _new(self, name: str) -> str:
        return self.names.setdefault(name, f"value_{len(self.names)}") if name else ""
