"""How far a model that rounds to integers is from itself when its weights move slightly.

A value between two integers is rounded up by one runtime and down by another, and the step reaches the
outputs. No runtime can be asked for less error than that.

Invariants: only floating-point weights, scales and biases are moved; the samples stay. Where a model
differs from itself by a large part of its outputs, the tolerance stays as it is.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper

from collage.backends.numerics.comparison import output_error
from collage.backends.numerics.reference import reference_session, run_session
from collage.backends.numerics.tensor_files import read_expected, read_samples, write_samples
from collage.backends.sandbox.run import ChildFailed, ChildLimits, run_in_child
from collage.deadline import seconds_until
from collage.events import Event, Listener
from collage.model.numeric_ties import MOVED
from collage.model.reference import Reference
from collage.options import TuneOptions
from collage.partitioner.emit.extract import with_outputs
from collage.partitioner.graph.graph_index import GraphIndex

_ROUND = {"QuantizeLinear", "DynamicQuantizeLinear"}
# Operators on integers that round their own results, those of com.microsoft included.
_ROUND_INSIDE = ("QLinear", "QGemm", "DynamicQuantizeMatMul", "DynamicQuantizeLSTM")
# No draw begins after so long, or after such a share of a time limit, but for the first.
_DRAWS, _MOST_S, _SHARE = 6, 20.0, 0.1
# A few draws may miss the maximum.
_HEADROOM = 1.5
_MOST = 0.25
_TIMEOUT_S = 600.0


def rounds_to_integers(index: GraphIndex) -> bool:
    """Whether a model rounds computed values to integers; weights that were rounded before do not count."""
    return any(
        node.op_type.startswith(_ROUND_INSIDE)
        or (node.op_type in _ROUND and node.inputs[0] in index.producer)
        for node in index.nodes
    )


def allow_self_error(
    references: Sequence[Reference],
    options: TuneOptions,
    folder: Path,
    listener: Listener,
    cancel: threading.Event | None = None,
) -> tuple[TuneOptions, list[str]]:
    """Options with at least the model's own error as tolerance, and what the report says of it.

    Args:
        references: the samples that plans are compared by; steps may show in one of them only.

    Raises:
        ModelError: the reference runtime cannot run the model.
    """
    if not rounds_to_integers(references[0].model.index):
        return options, []
    listener(
        Event("reference", "moving weights a little, to see what rounding to integers makes of it")
    )
    try:
        most_s = min(_MOST_S, _SHARE * (options.time_limit_s or math.inf))
        own = self_error(references, options.metric, folder, cancel, most_s)
    except ChildFailed as failure:
        return options, [f"what rounding to integers does could not be found out ({failure.reason})"]
    if own <= options.tolerance:
        return options, []
    if own > _MOST:
        return options, [
            f"the model rounds to integers, and differs from itself by up to {own:.3g} when its weights are moved by a "
            f"hundred-thousandth: too much to allow, so an error of {options.tolerance:g} is asked of plans that few "
            "can keep; give real inputs with --inputs, or a --tolerance"
        ]
    told = (
        "the model rounds to integers, and weights moved by a hundred-thousandth change its outputs so much that an "
        f"error of {own:.3g} is allowed instead of {options.tolerance:g} (docs/numeric-ties.md)"
    )
    return options.model_copy(update={"tolerance": own}), [told]


def self_error(
    references: Sequence[Reference],
    metric: str,
    folder: Path,
    cancel: threading.Event | None = None,
    most_s: float = _MOST_S,
) -> float:
    """The largest error, with headroom, of the model against itself.

    Raises:
        ModelError: the reference runtime cannot run the model.
        ChildFailed: the child did not come back with an answer.
    """
    model = references[0].model
    made = [name for name in model.index.outputs if name in model.index.producer]
    path = with_outputs(model, [], folder)
    write_samples(folder / "samples.npz", [s for known in references for s in known.samples])
    write_samples(folder / "expected.npz", [v for known in references for v in known.expected(made)])
    limits = ChildLimits(timeout_s=seconds_until(references[0].until_s, _TIMEOUT_S))
    given = path.resolve(), folder.resolve(), made, metric, most_s
    return run_in_child(_draw, *given, limits=limits, cancel=cancel)


def _draw(path: Path, folder: Path, names: Sequence[str], metric: str, most_s: float) -> float:
    """Move the weights several times, and compare (runs in the child)."""
    samples = read_samples(folder / "samples.npz", ())
    expected = read_expected(folder / "expected.npz", ())
    model = onnx.load(path)
    kept = [numpy_helper.to_array(t) for t in model.graph.initializer]
    worst = 0.0
    end_s = time.monotonic() + most_s
    for draw in range(_DRAWS):
        if draw and time.monotonic() > end_s:
            break
        random = np.random.default_rng(draw)
        for tensor, array in zip(model.graph.initializer, kept, strict=True):
            if array.dtype == np.float32:
                moved = array * (1 + random.normal(0.0, MOVED, array.shape))
                tensor.CopyFrom(numpy_helper.from_array(moved.astype(np.float32), tensor.name))
        onnx.save(model, "moved.onnx", save_as_external_data=True, location=f"weights-{draw}")
        session = reference_session(Path("moved.onnx"))
        onnx.load_external_data_for_model(model, ".")
        Path(f"weights-{draw}").unlink()
        for sample, wanted in zip(samples, expected, strict=True):
            values = run_session(session, sample, names)
            error = output_error(metric, [values[n] for n in names], [wanted[n] for n in names])
            # Labels are equal or not: nothing between says how much.
            worst = max(worst, error if math.isfinite(error) else 0.0)
    return _HEADROOM * worst
