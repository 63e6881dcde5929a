"""Outputs of one name: ONNX Runtime returns such a value twice, and a plan needs a name for each."""

from __future__ import annotations

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
