"""A model's Transposes moved together and cancelled before a runtime reads it.

Exporters of frameworks that keep channels last (TensorFlow's) put Transposes around convolutions and leave many of them
in. ONNX Runtime cancels them when it optimises; of other runtimes each leaves some, or has no layer for what lies
between. So these may be given what ONNX Runtime's basic level makes of a model: the same numbers but for rounding, in
operators of ai.onnx. Keras' MobileNetV3-small, with 108 Transposes of which 2 are left, then took 0.31 of its time on
OpenVINO and 0.42 on MNN, and ncnn could run it at all; models without such pairs take as long as before
(docs/backends.md).
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import onnx

from backends.contract import CompileContext, Option, SubModel
from backends.conversion import cached, files_of
from backends.onnxruntime_session import GRAPH, WEIGHTS, open_model, options_of, ort, save_optimised
from partitioner.target import Target

MOVED = "moved"
TRANSPOSES = Option(
    "transposes",
    "kept",
    "Whether Transposes of the model are kept, or moved together and cancelled first (by ONNX Runtime's rewriting).",
    choices=("kept", MOVED),
    is_later=True,
    tunable=(MOVED,),
)
_REWRITER = Target("onnxruntime")


def moves_transposes(target: Target) -> bool:
    """Whether a target has them moved."""
    return target.option(TRANSPOSES.name, TRANSPOSES.default) == MOVED


def with_moved_transposes(model: SubModel, target: Target, context: CompileContext) -> SubModel:
    """The sub-model as the target reads it: rewritten where it asks for that, from the cache where it is in it.

    Raises:
        Exception: what ONNX Runtime raises for a model that it cannot open or write.
    """
    if not moves_transposes(target):
        return model

    def make(folder: Path) -> None:
        _rewrite(model.path, context, folder)

    maker = f"transposes-moved-{ort().__version__}"
    files = [GRAPH, WEIGHTS]
    folder = cached(files_of(model.path), files, maker, make, context.work_dir, context.cache_dir)
    return replace(model, path=folder / GRAPH)


def transposes_left(model: Path) -> int:
    """How many Transposes are left where they are moved; runs in a child, in whose folder the files are left.

    Raises:
        Exception: as for `with_moved_transposes`.
    """
    _rewrite(model, CompileContext(1, Path()), Path())
    made = onnx.load(GRAPH, load_external_data=False)
    return sum(node.op_type == "Transpose" for node in made.graph.node)


def _rewrite(model: Path, context: CompileContext, folder: Path) -> None:
    options = options_of(_REWRITER, context, "basic")
    save_optimised(options, folder)
    open_model(model, _REWRITER, options)
    (folder / WEIGHTS).touch()  # not written where no weight is large enough
