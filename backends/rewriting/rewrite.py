"""Rewrites a model, so that a runtime computes the same faster (docs/rewriting.md).

ONNX Runtime's basic level of optimization comes first: it moves Transposes together and cancels them.
Then the passes of `table` run. The numbers stay the same but for rounding.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import onnx

from collage.backends.contract import CompileContext, SubModel
from collage.backends.rewriting.graph import RewriteGraph
from collage.backends.rewriting.table import CHANNELS_FIRST, PASSES, Pass, passes_of
from collage.backends.support.conversion import cached
from collage.backends.support.file_digests import files_of
from collage.backends.support.ort_session import (
    GRAPH,
    WEIGHTS,
    open_model,
    options_of,
    ort,
    save_optimized,
)
from collage.partitioner.target import Target

REWRITER = Target("onnxruntime")
EDITION = 7
"""Part of the keys of caches and costs: raise it when something else is written."""

_WITHOUT = "optimization.disable_specified_optimizers"
# It puts products of images between Reshapes, which no pass looks through.
_JOINS_SUMS = "MatMulAddFusion"
_MOVES_TRANSPOSES = "TransposeOptimizer"


@dataclass(frozen=True)
class Changes:
    """What rewriting changes in a model."""

    transposes_left: int  # of all that there were, after ONNX Runtime
    # by pass, how many places it changed; none has no entry
    found: dict[str, int] = field(default_factory=dict)


def rewritten(model: SubModel, target: Target, context: CompileContext) -> SubModel:
    """The sub-model as the target reads it, from the cache where it is in it.

    Raises:
        Exception: what ONNX Runtime raises for a model that it cannot open or write.
    """
    passes = passes_of(target)
    if not passes:
        return model

    def make(folder: Path) -> None:
        _rewrite(model.path, context, folder, passes)

    maker = f"rewritten-{EDITION}-{ort().__version__} {' '.join(p.name for p in passes)}"
    files = [GRAPH, WEIGHTS]
    folder = cached(files_of(model.path), files, maker, make, context.work_dir, context.cache_dir)
    return replace(model, path=folder / GRAPH)


def changes(model: Path) -> Changes:
    """What all passes would change; leaves files in the current folder, so it is called in a child.

    Raises:
        Exception: as for `rewritten`.
    """
    return _rewrite(model, CompileContext(1, Path()), Path(), PASSES)


def _rewrite(model: Path, context: CompileContext, folder: Path, passes: Sequence[Pass]) -> Changes:
    made = _written(model, context, folder, passes)
    if made.found.get(CHANNELS_FIRST) and _left(made):
        # Moved together, Transposes may lie where fewer of them can go: in attention once for each part
        # of a split.
        other = folder / "unmoved"
        other.mkdir()
        unmoved = _written(model, context, other, passes, _MOVES_TRANSPOSES)
        if _left(unmoved) < _left(made):
            made = replace(unmoved, transposes_left=made.transposes_left)
            for name in (GRAPH, WEIGHTS):
                (other / name).replace(folder / name)
        shutil.rmtree(other)
    return made


def _written(
    model: Path, context: CompileContext, folder: Path, passes: Sequence[Pass], *without: str
) -> Changes:
    options = options_of(REWRITER, context, "basic")
    options.add_session_config_entry(_WITHOUT, ";".join((_JOINS_SUMS, *without)))
    save_optimized(options, folder)
    open_model(model, REWRITER, options)
    (folder / WEIGHTS).touch()  # not written where no weight is large enough
    proto = onnx.load(folder / GRAPH, load_external_data=False)
    transposes = sum(node.op_type == "Transpose" for node in proto.graph.node)
    counts = {p.name: p.apply(RewriteGraph(proto)) for p in passes if p.apply is not None}
    found = {name: count for name, count in counts.items() if count}
    if found:
        onnx.save(proto, folder / GRAPH)
    return Changes(transposes, found)


def _left(made: Changes) -> int:
    return made.transposes_left - made.found.get(CHANNELS_FIRST, 0)
