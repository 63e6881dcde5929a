"""A model in an equal form that a runtime is quicker with, before it reads it.

Exporters write forms that one runtime puts right and another does not; docs/backends.md, "Equal forms", has what each gives.
First ONNX Runtime's basic level moves Transposes together and cancels them, which frameworks that keep channels last
(TensorFlow's) put around convolutions; then the forms of `_FORMS`. The numbers are the same but for rounding.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from pathlib import Path

import onnx

from collage.backends.contract import CompileContext, Option, SubModel
from collage.backends.rewriting.broadcast_concat import part_spreads
from collage.backends.rewriting.channel_shuffle import absorb_shuffles
from collage.backends.rewriting.channels_first import put_channels_first
from collage.backends.rewriting.conv1d_as_conv2d import to_two_d
from collage.backends.rewriting.conv_bias import part_biases
from collage.backends.rewriting.graph import RewriteGraph
from collage.backends.rewriting.group_norm import take_norms_apart
from collage.backends.rewriting.hard_swish import put_swishes_together
from collage.backends.rewriting.split_product import split_products
from collage.backends.rewriting.winograd import to_winograd
from collage.backends.support.conversion import cached, files_of
from collage.backends.support.ort_session import (
    GRAPH,
    WEIGHTS,
    open_model,
    options_of,
    ort,
    save_optimized,
)
from collage.partitioner.target import Target

OFF, ON, WINOGRAD = "off", "on", "winograd"
TRANSPOSES, SWISHES, NORMS, BIASES, TWO_D = "transposes", "swishes", "norms", "biases", "two_d"
SPREADS, CHANNELS_FIRST, SHUFFLES, SPLITS = "spreads", "channels_first", "shuffles", "splits"
_HELP = "First rewrite the model in an equal form that this runtime is quicker with"
REWRITE = Option("rewrite", OFF, f"{_HELP}.", choices=(OFF, ON), is_later=True, tunable=(ON,))
REWRITE_OR_WINOGRAD = replace(
    REWRITE,
    help=f"{_HELP}; winograd: convolutions over 3 places of an axis and more by Winograd's algorithm, too.",
    choices=(OFF, ON, WINOGRAD),
    tunable=(ON, WINOGRAD),
)
ROUNDS_TOO_MUCH = (
    "-rewrite=winograd needs float32: coarser numbers would add to its rounding errors; use -rewrite=on"
)
# In this order. Those of a runtime are the ones that it was faster with.
_FORMS: dict[str, Callable[[RewriteGraph], int]] = {
    SWISHES: put_swishes_together,
    NORMS: take_norms_apart,
    BIASES: part_biases,
    SPREADS: part_spreads,
    CHANNELS_FIRST: put_channels_first,
    SHUFFLES: absorb_shuffles,
    TWO_D: to_two_d,
    SPLITS: split_products,
    WINOGRAD: to_winograd,
}
_OF_RUNTIME = {
    "onnxruntime": (SPREADS, SHUFFLES, TWO_D, SPLITS),
    "openvino": (TRANSPOSES, SWISHES, NORMS, BIASES, SPREADS, CHANNELS_FIRST, SHUFFLES, TWO_D, SPLITS),
    "mnn": (TRANSPOSES, SWISHES, SPREADS, SHUFFLES, TWO_D),
    "ncnn": (TRANSPOSES, SWISHES, SPREADS, CHANNELS_FIRST, SHUFFLES, TWO_D),
}
REWRITER = Target("onnxruntime")
_WITHOUT = "optimization.disable_specified_optimizers"
# It writes products of images as products of rows, between Reshapes, which no form looks through.
_JOINS_SUMS = "MatMulAddFusion"
_MOVES_TRANSPOSES = "TransposeOptimizer"
EDITION = 7  # part of the keys of caches and of costs: raise it when something else is written


@dataclass(frozen=True)
class Changes:
    """What rewriting changes in a model.

    Args:
        transposes_left: of all that there were.
        found: by form, how many operators were written so; none has no entry.
    """

    transposes_left: int
    found: dict[str, int] = field(default_factory=dict)


def rewriting(target: Target) -> str:
    """How a target has models rewritten: off, on or winograd."""
    return target.option(REWRITE.name, OFF)


def forms_of(target: Target) -> tuple[str, ...]:
    """The forms that a target's models are written in."""
    how = rewriting(target)
    if how == OFF:
        return ()
    forms = _OF_RUNTIME[target.backend]
    return (*forms, WINOGRAD) if how == WINOGRAD else forms


def rewritten(model: SubModel, target: Target, context: CompileContext) -> SubModel:
    """The sub-model as the target reads it: rewritten where it asks for that, from the cache where it is in it.

    Raises:
        Exception: what ONNX Runtime raises for a model that it cannot open or write.
    """
    forms = forms_of(target)
    if not forms:
        return model

    def make(folder: Path) -> None:
        _rewrite(model.path, context, folder, forms)

    maker = f"rewritten-{EDITION}-{ort().__version__} {' '.join(forms)}"
    files = [GRAPH, WEIGHTS]
    folder = cached(files_of(model.path), files, maker, make, context.work_dir, context.cache_dir)
    return replace(model, path=folder / GRAPH)


def changes(model: Path) -> Changes:
    """What all forms would change; runs in a child, in whose folder the files are left.

    Raises:
        Exception: as for `rewritten`.
    """
    return _rewrite(model, CompileContext(1, Path()), Path(), _FORMS)


def _rewrite(model: Path, context: CompileContext, folder: Path, forms: Collection[str]) -> Changes:
    made = _written(model, context, folder, forms)
    if made.found.get(CHANNELS_FIRST) and _left(made):
        # Moved together, Transposes may lie where fewer of them can go: in attention once for each part of what was split.
        other = folder / "unmoved"
        other.mkdir()
        unmoved = _written(model, context, other, forms, _MOVES_TRANSPOSES)
        if _left(unmoved) < _left(made):
            made = replace(unmoved, transposes_left=made.transposes_left)
            for name in (GRAPH, WEIGHTS):
                (other / name).replace(folder / name)
        shutil.rmtree(other)
    return made


def _written(
    model: Path, context: CompileContext, folder: Path, forms: Collection[str], *without: str
) -> Changes:
    options = options_of(REWRITER, context, "basic")
    options.add_session_config_entry(_WITHOUT, ";".join((_JOINS_SUMS, *without)))
    save_optimized(options, folder)
    open_model(model, REWRITER, options)
    (folder / WEIGHTS).touch()  # not written where no weight is large enough
    proto = onnx.load(folder / GRAPH, load_external_data=False)
    transposes = sum(node.op_type == "Transpose" for node in proto.graph.node)
    counts = {name: form(RewriteGraph(proto)) for name, form in _FORMS.items() if name in forms}
    found = {name: count for name, count in counts.items() if count}
    if found:
        onnx.save(proto, folder / GRAPH)
    return Changes(transposes, found)


def _left(made: Changes) -> int:
    return made.transposes_left - made.found.get(CHANNELS_FIRST, 0)
