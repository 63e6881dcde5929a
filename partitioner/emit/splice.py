"""Splicing: partitions of a model are replaced by models that compute them otherwise, int8 say.

The result is one flat ONNX model. Values between partitions keep their names, so that reference values
hold for both models; nodes, values and weights from inside a replacement get names of their own. Nodes
stand in the plan's order. Weights of replaced nodes alone are left out.

Invariants: inputs and outputs stay; equal input gives equal bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import onnx

from collage.partitioner.candidate import Candidate, Plan, bits
from collage.partitioner.errors import ModelError
from collage.partitioner.graph import weights
from collage.partitioner.graph.model import Model
from collage.partitioner.graph.sub_graph import SubGraph
from collage.partitioner.lazy import ir

# Of operators that ONNX Runtime has beside ai.onnx.
_OF_RUNTIMES = "com.microsoft"


@dataclass(frozen=True)
class Spliced:
    """A model with replaced partitions, and its plan: the same partitions on the same targets."""

    model: Model
    plan: Plan


def splice(model: Model, plan: Plan, replacements: Mapping[int, Path], destination: Path) -> Spliced:
    """Replace partitions and write the model.

    Args:
        model: the model that the plan is for.
        replacements: by position in the plan an ONNX file that computes that partition, with its inputs
            and outputs, in operators of ai.onnx of the model's opset, and of com.microsoft.

    Raises:
        ModelError: a replacement does not fit.
    """
    whole = weights.described_structure(model.ir)
    taken = _names(model.ir)
    nodes: list[onnx.NodeProto] = []
    inner: list[onnx.ValueInfoProto] = []
    new_weights: list[ir.Value] = []
    members: list[tuple[str, ...]] = []
    kept = 0
    domains: set[str] = set()
    for position, partition in enumerate(plan.partitions):
        if position in replacements:
            sub_graph = SubGraph(model.index, partition.nodes)
            part = _opened(replacements[position], model, sub_graph)
            _rename(part, f"partition-{position}", taken)
            graph = weights.whole_structure(part).graph
            used = {name for node in graph.node for name in node.input}
            new_weights += [v for v in part.graph.initializers.values() if v.name in used]
            inner += graph.value_info
            made = list(graph.node)
            domains |= {node.domain for node in made}
        else:
            kept |= partition.nodes
            made = [whole.graph.node[i] for i in bits(partition.nodes)]
        nodes += made
        members.append(tuple(node.name for node in made))
    _put_together(whole, nodes, inner)
    if domains - {opset.domain for opset in whole.opset_import}:
        whole.opset_import.add(domain=_OF_RUNTIMES, version=1)
    weights.write(whole, [*_still_used(model, kept), *new_weights], destination)
    spliced = Model.open(destination)
    place = {node.name: node.index for node in spliced.index.nodes}
    partitions = (
        Candidate(sum(1 << place[name] for name in names), old.target, old.rule)
        for names, old in zip(members, plan.partitions, strict=True)
    )
    return Spliced(spliced, Plan(tuple(partitions), plan.lanes))


def _opened(path: Path, model: Model, sub_graph: SubGraph) -> ir.Model:
    part = ir.load(path)
    foreign = sorted({node.domain for node in part.graph} - {"", _OF_RUNTIMES})
    opset, wanted = part.opset_imports.get(""), model.ir.opset_imports.get("")
    borders = tuple(value.name for value in (*part.graph.inputs, *part.graph.outputs))
    if foreign or opset != wanted:
        raise ModelError(f"{path.name} is of {foreign or opset}, and the model of opset {wanted}")
    if borders != (*sub_graph.inputs, *sub_graph.outputs):
        raise ModelError(f"{path.name} has other inputs or outputs than the partition")
    for node in part.graph:
        node.metadata_props.clear()
    return part


def _names(model: ir.Model) -> set[str]:
    found = set(model.graph.initializers) | {value.name or "" for value in model.graph.inputs}
    for node in ir.traversal.RecursiveGraphIterator(model.graph):
        found.add(node.name or "")
        found.update(value.name or "" for value in node.outputs)
    return found


def _rename(part: ir.Model, prefix: str, taken: set[str]) -> None:
    """Give all but the border unique names, bodies' nodes included."""
    border = {*part.graph.inputs, *part.graph.outputs}
    values = [v for v in part.graph.initializers.values() if v not in border]
    for node in part.graph:
        node.name = _free(f"{prefix}/{node.name}", taken)
        values += [value for value in node.outputs if value.name and value not in border]
    for value in values:
        value.name = _free(f"{prefix}/{value.name}", taken)


def _free(name: str, taken: set[str]) -> str:
    chosen, number = name, 1
    while chosen in taken:
        number += 1
        chosen = f"{name}-{number}"
    taken.add(chosen)
    return chosen


def _put_together(
    whole: onnx.ModelProto, nodes: list[onnx.NodeProto], inner: list[onnx.ValueInfoProto]
) -> None:
    made = {name for node in nodes for name in node.output}
    known = [value for value in whole.graph.value_info if value.name in made]
    copies = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]
    infos = [onnx.ValueInfoProto.FromString(value.SerializeToString()) for value in (*known, *inner)]
    del whole.graph.node[:]
    del whole.graph.value_info[:]
    whole.graph.node.extend(copies)
    whole.graph.value_info.extend(infos)


def _still_used(model: Model, kept: int) -> list[ir.Value]:
    names = {name for i in bits(kept) for name in model.index.nodes[i].used}
    names.update(model.index.outputs)
    return [value for name, value in model.ir.graph.initializers.items() if name in names]
