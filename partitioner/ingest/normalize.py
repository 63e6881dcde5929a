"""Ingest: a source becomes a normalized model, the one form that everything else works on.

A normalized model has: only known operator domains, no functions, IR 10 to 13 and opset 7 to 26; every
node named uniquely; no Constant nodes; no initializer among the graph inputs; every free dimension
bound and shapes inferred; constants folded; nothing unused; weights inline up to 32 MiB together, else
in `model.onnx.weights` beside `model.onnx`, so that opening it is cheap. What bodies (If, Loop,
Scan) use from outside, constants too, lives in the main graph.

The code is pure and trusts nothing, but it calls native parsers: run it in a sandboxed child.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import onnx
import onnx_ir as ir
import onnx_ir.passes.common as passes
from onnx_ir.passes.common.naming import SimpleNameGenerator

from collage.partitioner.candidate import bits
from collage.partitioner.errors import ModelError
from collage.partitioner.graph import weights
from collage.partitioner.graph.graph_index import GraphIndex
from collage.partitioner.ingest import constant_folding, dimensions, safety, versions
from collage.partitioner.ingest.source import model_file
from collage.partitioner.tensor import TensorSpec

INLINE_LIMIT_BYTES = 32 << 20


@dataclass(frozen=True)
class NormalisedInfo:
    """What ingest did; picklable.

    Args:
        path: the normalized model.
        source_sha256: of the source's bytes as hex text.
        sha256: of the normalized model, as `Model.sha256`.
        nodes: how many nodes the main graph has.
        inputs: graph inputs in order.
        outputs: graph outputs in order.
        ir_version: of the result.
        opsets: operator set versions of the result by domain, `ai.onnx` as empty text, sorted.
        dims: the dimensions that were bound, sorted.
        warnings: what a user should know, one sentence each.
    """

    path: Path
    source_sha256: str
    sha256: str
    nodes: int
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    ir_version: int
    opsets: tuple[tuple[str, int], ...]
    dims: tuple[tuple[str, int], ...]
    warnings: tuple[str, ...]


class _NodeNames(SimpleNameGenerator):
    """Names a nameless node after what it computes."""

    def generate_node_name(self, node: ir.Node) -> str:
        return node.name or f"{node.op_type}_{node.outputs[0].name}"


def normalize(
    source: Path, destination: Path, dims: Mapping[str, int], least_opset: int = 0
) -> NormalisedInfo:
    """Check a source and write it as `destination/model.onnx`.

    Args:
        source: an ONNX file, or a zip with one and its external data.
        destination: a folder; made if it is not there.
        dims: sizes of free dimensions by name or by `input:axis`.
        least_opset: an older model is converted up to this one where that can be done.

    Raises:
        ModelError: the source cannot be taken; the message says why and what to change.
    """
    destination.mkdir(parents=True, exist_ok=True)
    scratch = destination / ".source"
    try:
        return _normalize(source, destination / "model.onnx", scratch, dims, least_opset)
    except MemoryError:
        raise ModelError(f"{source.name} needs more memory than ingest may use") from None
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _normalize(
    source: Path, path: Path, scratch: Path, dims: Mapping[str, int], least_opset: int
) -> NormalisedInfo:
    file = model_file(source, scratch)
    proto = safety.read_checked(file)
    notes: list[str] = []
    model = ir.from_proto(proto)
    ir.external_data.set_base_dir(model.graph, file.parent)
    _inline_functions(model)
    _simplify(model)
    model = versions.convert(model, notes, least_opset)
    dimensions.bind(model, dims)
    names = [value.name for value in (*model.graph.inputs, *model.graph.outputs)]
    model = constant_folding.fold(model, notes)
    _finish(model)
    if names != [value.name for value in (*model.graph.inputs, *model.graph.outputs)]:
        raise ModelError("normalizing changed the names of inputs or outputs; please report this model")

    initializers = list(model.graph.initializers.values())
    weights.write(weights.whole_structure(model), initializers, path, INLINE_LIMIT_BYTES)
    try:
        onnx.checker.check_model(str(path))
    except Exception as error:
        raise ModelError(f"the normalized model fails the ONNX checker: {error}") from error
    index = GraphIndex.from_ir(model)
    notes.extend(_notes_on_branches(index))
    notes.extend(_notes_on_shapes(index))
    return NormalisedInfo(
        path=path,
        source_sha256=weights.file_digest(source),
        sha256=weights.digest(ir.load(path)),
        nodes=len(index.nodes),
        inputs=tuple(index.values[name] for name in index.inputs),
        outputs=tuple(index.values[name] for name in index.outputs),
        ir_version=model.ir_version,
        opsets=tuple(sorted(model.opset_imports.items())),
        dims=tuple(sorted(dims.items())),
        warnings=tuple(notes),
    )


def _inline_functions(model: ir.Model) -> None:
    try:
        passes.InlinePass()(model)
    except Exception as error:
        raise ModelError(
            f"the model's functions cannot be inlined: {error.__cause__ or error}"
        ) from error
    passes.RemoveUnusedOpsetsPass()(model)


def _simplify(model: ir.Model) -> None:
    passes.ClearMetadataAndDocStringPass()(model)
    passes.RemoveInitializersFromInputsPass()(model)
    constant_folding.tidy(model)
    passes.NameFixPass(_NodeNames())(model)


def _finish(model: ir.Model) -> None:
    passes.OutputFixPass()(model)
    passes.NameFixPass(_NodeNames())(model)
    passes.ClearMetadataAndDocStringPass()(model)
    passes.TopologicalSortPass()(model)
    passes.RemoveUnusedOpsetsPass()(model)
    if not len(model.graph):
        raise ModelError("the model has no computation: every output is a constant")


def _notes_on_branches(index: GraphIndex) -> list[str]:
    """Hints where binding scalar inputs would turn an opaque If into plain nodes."""
    scalars = {
        n for n in index.inputs if index.values[n].shape == () and "int" in index.values[n].dtype
    }
    notes = []
    for node in index.nodes:
        condition = index.producer.get(node.inputs[0]) if node.op_type == "If" else None
        if condition is None:
            continue
        behind = bits(index.ancestors[condition] | 1 << condition)
        deciding = {name for i in behind for name in index.nodes[i].used} & set(index.inputs)
        if deciding and deciding <= scalars:
            flags = " ".join(f"--dim {name}=VALUE" for name in sorted(deciding))
            notes.append(
                f"node {node.name!r} is opaque: decide its condition with {flags} to look inside"
            )
    return notes


def _notes_on_shapes(index: GraphIndex) -> list[str]:
    made = [spec for name, spec in index.values.items() if name in index.producer]
    open_ones = sorted(spec.name for spec in made if not spec.is_static)
    if not open_ones:
        return []
    shown = ", ".join(open_ones[:5]) + (" …" if len(open_ones) > 5 else "")
    return [f"{len(open_ones)} of {len(made)} values have a shape known only at run time: {shown}"]
