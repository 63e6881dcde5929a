"""Ingest: a source becomes a normalized model, the one form that everything else works on.

A normalized model has: only known operator domains, no functions, IR 10 to 13 and opset 7 to 26; unique
node names; no Constant nodes; no initializer among the graph inputs; free dimensions bound or named, shapes
inferred, constants folded, nothing unused; weights inline up to 32 MiB, else in `model.onnx.weights`; the
metadata of its author.
Values that bodies (If, Loop, Scan) use from outside live in the main graph.

It calls native parsers on untrusted data: run it in a sandboxed child.
"""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import onnx_ir.passes.common as passes
from onnx_ir.passes.common.naming import SimpleNameGenerator

from collage.partitioner.candidate import bits
from collage.partitioner.errors import ModelError
from collage.partitioner.graph import weights
from collage.partitioner.graph.graph_index import GraphIndex
from collage.partitioner.ingest import constant_folding, dimensions, safety, versions
from collage.partitioner.ingest.repairs import repair
from collage.partitioner.ingest.repairs.declared_shapes import DeclaredShapes
from collage.partitioner.ingest.repairs.metadata import authors_metadata
from collage.partitioner.ingest.repairs.outputs import (
    tell_branch_outputs_apart,
    tell_outputs_apart,
)
from collage.partitioner.ingest.source import model_file
from collage.partitioner.lazy import ir
from collage.partitioner.tensor import TensorSpec

INLINE_LIMIT_BYTES = 32 << 20


@dataclass(frozen=True)
class Runtime:
    """What a runtime says of a model file.

    Args:
        types: the types and shapes that it infers of outputs, given the file and their names.
        shapes: the shapes that outputs have in a run, given the file and their names; nothing where it cannot run.
    """

    types: Callable[[Path, Sequence[str]], Mapping[str, TensorSpec]]
    shapes: Callable[[Path, Sequence[str]], Mapping[str, Sequence[int]]]


@dataclass(frozen=True)
class NormalizedInfo:
    """What ingest did; picklable."""

    path: Path  # the normalized model
    inputs: tuple[TensorSpec, ...]  # graph inputs in order
    warnings: tuple[str, ...]  # what a user should know, one sentence each


class _NodeNames(SimpleNameGenerator):
    """Names a nameless node after what it computes."""

    def generate_node_name(self, node: ir.Node) -> str:
        return node.name or f"{node.op_type}_{node.outputs[0].name}"


def normalize(
    source: Path,
    destination: Path,
    dims: Mapping[str, int],
    least_opset: int = 0,
    runtime: Runtime | None = None,
    kept: Collection[str] = (),
) -> NormalizedInfo:
    """Check a source and write it as `destination/model.onnx`.

    Args:
        source: an ONNX file, or a zip with one and its external data.
        dims: sizes of free dimensions by name or by `input:axis`.
        least_opset: an older model is converted up to this one where that can be done.
        runtime: asked for what ONNX cannot infer, such as the types of runtimes' own operators.
        kept: dimensions that stay free; only what does not depend on them is folded.

    Raises:
        ModelError: the source cannot be taken; the message says why and what to change.
    """
    destination.mkdir(parents=True, exist_ok=True)
    scratch = destination / ".source"
    try:
        path = destination / "model.onnx"
        return _normalize(source, path, scratch, dims, least_opset, runtime, kept)
    except MemoryError:
        raise ModelError(f"{source.name} needs more memory than ingest may use") from None
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _normalize(
    source: Path,
    path: Path,
    scratch: Path,
    dims: Mapping[str, int],
    least_opset: int,
    runtime: Runtime | None,
    kept: Collection[str],
) -> NormalizedInfo:
    file = model_file(source, scratch)
    proto = safety.read_checked(file)
    notes: list[str] = []
    metadata = authors_metadata(proto, notes)
    model = ir.from_proto(proto)
    _import_own_operators(model)
    tell_outputs_apart(model, notes)
    ir.external_data.set_base_dir(model.graph, file.resolve().parent)
    inline_functions(model)
    _simplify(model)
    _import_own_operators(model)
    tell_branch_outputs_apart(model)
    model = versions.convert(model, notes, least_opset)
    dimensions.bind(model, dims, kept)
    names = [value.name for value in (*model.graph.inputs, *model.graph.outputs)]
    declared = DeclaredShapes(model)
    model = constant_folding.fold(model, notes)
    _finish(model)
    if names != [value.name for value in (*model.graph.inputs, *model.graph.outputs)]:
        raise ModelError("normalizing changed the names of inputs or outputs; please report this model")

    initializers = list(model.graph.initializers.values())
    if runtime is not None and (bare := _without_type(model)):
        weights.write(_with_outputs(model, bare), initializers, path, INLINE_LIMIT_BYTES)
        _give_types(bare, runtime.types(path, [value.name or "" for value in bare]))
        constant_folding.infer(model)
    if kept:
        declared.fill_ranks(model)
    else:
        _fill_declared(model, declared, path, runtime, notes)
    _fill_ranks(model, path, runtime)
    _check_outputs(model)
    model.metadata_props.clear()
    model.metadata_props.update(metadata)
    write_normalized(model, path)
    index = GraphIndex.from_ir(model)
    notes.extend(_notes_on_branches(index))
    if not kept:
        notes.extend(notes_on_shapes(index))
    return NormalizedInfo(
        path=path, inputs=tuple(index.values[name] for name in index.inputs), warnings=tuple(notes)
    )


def _import_own_operators(model: ir.Model) -> None:
    """Import ONNX's own operators, such as Identity, into a model that has none; unused imports are removed at the end."""
    model.opset_imports.setdefault("", versions.MAX_OPSET)


def write_normalized(model: ir.Model, path: Path) -> None:
    """Write a model and check the file.

    Raises:
        ModelError: the file is no valid model.
    """
    initializers = list(model.graph.initializers.values())
    weights.write(weights.described_structure(model), initializers, path, INLINE_LIMIT_BYTES)
    try:
        repair.check(onnx.load(path, load_external_data=False), path, changed=False)
    except Exception as error:
        raise ModelError(f"the normalized model fails the ONNX checker: {error}") from error


def _fill_declared(
    model: ir.Model,
    declared: DeclaredShapes,
    path: Path,
    runtime: Runtime | None,
    notes: list[str],
) -> None:
    """Believe declared shapes where neither inference nor a run contradicts them."""
    initializers = list(model.graph.initializers.values())
    seen: Mapping[str, Sequence[int]] = {}
    if runtime is not None and (unproven := declared.open_values(model)):
        weights.write(_with_outputs(model, unproven), initializers, path, INLINE_LIMIT_BYTES)
        seen = runtime.shapes(path, [value.name or "" for value in unproven])
    declared.fill(model, seen, notes)


def _fill_ranks(model: ir.Model, path: Path, runtime: Runtime | None) -> None:
    """Give outputs of unknown rank that of a run."""
    bare = [v for v in model.graph.outputs if v.shape is None and isinstance(v.type, ir.TensorType)]
    if runtime is None or not bare:
        return
    initializers = list(model.graph.initializers.values())
    weights.write(_with_outputs(model, []), initializers, path, INLINE_LIMIT_BYTES)
    seen = runtime.shapes(path, [value.name or "" for value in bare])
    for value in bare:
        if (shape := seen.get(value.name or "")) is not None:
            value.shape = ir.Shape([None] * len(shape))


def inline_functions(model: ir.Model) -> None:
    """Put the model's own functions where they are called, in place.

    Raises:
        ModelError: they cannot be.
    """
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
    passed_through = [value for value in model.graph.outputs if value.is_graph_input()]
    if not passed_through:
        passes.OutputFixPass()(model)
    passes.NameFixPass(_NodeNames())(model)
    passes.ClearMetadataAndDocStringPass()(model)
    passes.TopologicalSortPass()(model)
    passes.RemoveUnusedOpsetsPass()(model)
    if not len(model.graph):
        raise ModelError("the model has no computation: every output is a constant")


def _without_type(model: ir.Model) -> list[ir.Value]:
    """The values of the main graph of which ONNX infers no type or no rank."""
    outputs = set(model.graph.outputs)
    made = [v for n in model.graph for v in n.outputs if v.name and (v.uses() or v in outputs)]
    return [value for value in made if value.dtype is None or value.shape is None]


def _check_outputs(model: ir.Model) -> None:
    for value in model.graph.outputs:
        if value.shape is None and isinstance(value.type, ir.TensorType | None):
            raise ModelError(
                f"output {value.name!r} has no shape, and neither ONNX nor ONNX Runtime tells one; "
                "give it one with its rank"
            )


def _with_outputs(model: ir.Model, more: Sequence[ir.Value]) -> onnx.ModelProto:
    outputs = dict.fromkeys((*model.graph.outputs, *more))
    return weights.structure(model, model.graph, model.graph.inputs, list(outputs))


def _give_types(values: Sequence[ir.Value], known: Mapping[str, TensorSpec]) -> None:
    for value in values:
        spec = known.get(value.name or "")
        if spec is None or not isinstance(value.type, ir.TensorType | None):
            continue
        value.type = ir.TensorType(ir.DataType.from_numpy(np.dtype(spec.dtype)))
        value.shape = None if spec.shape is None else ir.Shape(spec.shape)


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
            flags = " ".join(f"--dim {shlex.quote(f'{name}=VALUE')}" for name in sorted(deciding))
            notes.append(
                f"node {node.name!r} is opaque: decide its condition with {flags} to look inside"
            )
    return notes


def notes_on_shapes(index: GraphIndex) -> list[str]:
    """What a user should know of values whose shape is known only at run time."""
    made = [spec for name, spec in index.values.items() if name in index.producer]
    open_ones = sorted(spec.name for spec in made if not spec.is_static)
    if not open_ones:
        return []
    shown = ", ".join(open_ones[:5]) + (" …" if len(open_ones) > 5 else "")
    return [f"{len(open_ones)} of {len(made)} values have a shape known only at run time: {shown}"]
