"""Outputs of one name: ONNX Runtime returns such a value twice, and a plan needs a name for each."""

from __future__ import annotations

from collage.partitioner.graph.canonical import bodies_of
from collage.partitioner.lazy import ir


def tell_outputs_apart(model: ir.Model, notes: list[str]) -> None:
    """Give an output that is there before a name of its own, in place; `notes` gets a sentence for each."""
    graph = model.graph
    taken = {value.name for value in (*graph.inputs, *graph.initializers.values(), *graph.outputs)}
    taken |= {v.name for n in ir.traversal.RecursiveGraphIterator(graph) for v in n.outputs}
    seen: set[ir.Value] = set()
    for position, output in enumerate(graph.outputs):
        if output in seen:
            number = 2
            while f"{output.name}_{number}" in taken:
                number += 1
            node = ir.node("Identity", [output])
            copy = node.outputs[0]
            copy.name, copy.type, copy.shape = f"{output.name}_{number}", output.type, output.shape
            taken.add(copy.name)
            graph.append(node)
            graph.outputs[position] = copy
            notes.append(
                f"output {output.name!r} is there more than once; number {position + 1} is called {copy.name!r}"
            )
        seen.add(output)


def tell_branch_outputs_apart(model: ir.Model) -> None:
    """The same for branches of If, in place: ONNX Runtime has other values of the first of two.

    Args:
        model: its nodes have unique names.
    """
    for node in list(ir.traversal.RecursiveGraphIterator(model.graph)):
        if node.op_type != "If" or node.domain:
            continue
        for branch in (body for attribute in node.attributes.values() for body in bodies_of(attribute)):
            seen: set[ir.Value] = set()
            for position, output in enumerate(branch.outputs):
                if output in seen:
                    name = f"{node.name}_{output.name}_{position}"
                    copy = ir.node("Identity", [output], name=name)
                    made = copy.outputs[0]
                    made.name, made.type, made.shape = name, output.type, output.shape
                    branch.append(copy)
                    branch.outputs[position] = made
                seen.add(output)
