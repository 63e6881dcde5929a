"""The space of shapes that a model is tuned for: what is said, proposed and proven, in a sandboxed child."""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from collage.backends.sandbox.run import ChildFailed, ChildLimits, run_in_child
from collage.partitioner.errors import BadInputError, ModelError, OutOfTimeError
from collage.partitioner.ingest import versions
from collage.partitioner.ingest.model_dims import ModelDims, read_dims
from collage.partitioner.ingest.normalize import inline_functions, write_normalized
from collage.partitioner.ingest.safety import read_checked
from collage.partitioner.ingest.source import model_file
from collage.partitioner.lazy import ir
from collage.shapes.clusters import Point
from collage.shapes.proofs import OutOfTriesError, base, proposed
from collage.shapes.refusals import refused
from collage.shapes.resolve import Stated, flag, stated
from collage.shapes.sample_shapes import FileShapes, sizes_of_samples
from collage.shapes.seen import Size
from collage.shapes.space import ShapeSpace
from collage.shapes.trials import Trials

TRIALS_S = 60.0
_READING_S = 300.0


class RefusedSizeError(BadInputError):
    """The model does not take a size; the message says one that it takes."""


@dataclass(frozen=True)
class Settled:
    """What a model is tuned for.

    Args:
        space: of its free dimensions; a scalar integer input that is given a value is one of one size.
        proposed: the texts of the dimensions that nothing was said of.
        usual: sizes of these at which the model runs.
        notes: what a user should know, one sentence each.
        seen: sizes by free dimension of each shape that was seen, with its weight.
    """

    space: ShapeSpace
    proposed: Mapping[str, str]
    usual: Mapping[str, int]
    notes: tuple[str, ...]
    seen: tuple[Point, ...] = ()

    @property
    def fixed(self) -> dict[str, int] | None:
        """The size of each dimension, as ingest binds them; None where there are several of one."""
        return dict(self.space.shapes[0].sizes) if self.space.is_fixed else None

    @property
    def flags(self) -> str:
        """The options that say what was proposed."""
        return " ".join(flag(name, text) for name, text in self.proposed.items())

    @property
    def usual_flags(self) -> str:
        """The options that say one size, at which the model runs, of each dimension that has several."""
        sizes = {**self.space.shapes[0].sizes, **self.usual}
        return " ".join(
            flag(name, sizes[name]) for name, dim in self.space.dims.items() if not dim.is_fixed
        )


_ERRORS = {"input": BadInputError, "model": ModelError, "size": RefusedSizeError}


@dataclass(frozen=True)
class _Answer:
    """What the child found: the parts of a `Settled`, or why there is none."""

    space: Mapping[str, Any] | None = None
    proposed: Mapping[str, str] | None = None
    usual: Mapping[str, int] | None = None
    notes: tuple[str, ...] = ()
    seen: tuple[Point, ...] = ()
    problem: str = ""
    kind: Literal["input", "model", "size"] = "input"


def settle(
    source: Path,
    dims: Mapping[str, int | str],
    shapes: Sequence[tuple[Mapping[str, Size], float]] = (),
    cancel: threading.Event | None = None,
    *,
    samples: Sequence[FileShapes] = (),
    trials_s: float = TRIALS_S,
    reading_s: float = _READING_S,
    limit_s: float = math.inf,
) -> Settled:
    """Find the space of shapes of a model, and prove that the model runs at its ends.

    Args:
        source: an ONNX file, or a zip with one and its external data.
        dims: what is said of dimensions.
        shapes: what was seen in production, with weights.
        cancel: stops the child when set.
        samples: shapes of the arrays of each file with sample inputs.
        trials_s: seconds after which the model is run at no more sizes.
        reading_s: the most that reading the model may take beside.
        limit_s: seconds for all of that; sizes are tried in half of them.

    Raises:
        RefusedSizeError: the model does not take a size.
        BadInputError: what is said contradicts itself or the model.
        ModelError: the model cannot be read, or no range can be proposed and none is said.
        OutOfTimeError: that was not enough.
    """
    if not source.is_file():
        raise BadInputError(f"there is no model file {str(source)!r}")
    usual_s = reading_s + 2 * trials_s
    timeout_s = min(usual_s, limit_s)
    try:
        answer = run_in_child(
            _settle,
            source.absolute(),
            dict(dims),
            [(dict(sizes), weight) for sizes, weight in shapes],
            [dict(file) for file in samples],
            min(trials_s, timeout_s / 2),
            limits=ChildLimits(timeout_s=timeout_s, readable=(source.resolve(),)),
            cancel=cancel,
        )
    except ChildFailed as failure:
        if failure.kind == "hang" and timeout_s < usual_s:
            raise OutOfTimeError(
                f"reading the model and running it at the ends of its sizes was not done after {timeout_s:.0f} s, when "
                "the time limit was up; allow more with --time-limit, or give one size of each dimension with --dim"
            ) from None
        raise ModelError(
            f"the model could not be run at the ends of its sizes: {failure.kind.replace('_', ' ')} "
            f"({failure.reason}); give smaller sizes with --dim"
        ) from None
    if answer.space is None:
        raise _ERRORS[answer.kind](answer.problem)
    return Settled(
        ShapeSpace.from_json(answer.space),
        dict(answer.proposed or {}),
        dict(answer.usual or {}),
        answer.notes,
        answer.seen,
    )


def _settle(
    source: Path,
    dims: dict[str, int | str],
    shapes: list[tuple[dict[str, Size], float]],
    samples: list[FileShapes],
    trials_s: float,
) -> _Answer:
    try:
        path = model_file(source, Path("source"))
        read = ir.from_proto(read_checked(path))
        model = read_dims(read)
        said = stated(model, dims, shapes).with_samples(sizes_of_samples(model, samples))
        texts = dict.fromkeys(said.unsaid, "1")
        said.space(texts)  # refuses shapes outside of what is said before anything runs
        trials = Trials(_readable(path, read), model, said.values, trials_s)
        usual = _usual(model, said, trials) if said.unsaid else {}
        texts = {name: proposed(model, usual, name, trials.run_quickly) for name in said.unsaid}
        space = said.space(texts)
        _check_samples(model, space, said)
        notes: tuple[str, ...] = ()
        try:
            refusal = refused(model, space.dims, trials.run, said.seen) if model.places else None
        except OutOfTriesError:
            refusal, notes = (
                None,
                (f"the model was not run at all ends of {_ranges(space)}: it is slow",),
            )
        if refusal is not None:
            kind: Literal["size", "input"] = "size" if refusal.is_remedied else "input"
            return _Answer(problem=refusal.message, kind=kind)
        return _Answer(
            space=space.with_values(said.values).as_json(),
            proposed=texts,
            usual={name: usual[name] for name in said.unsaid},
            notes=(*notes, *trials.notes),
            seen=said.seen,
        )
    except OutOfTriesError:
        return _Answer(
            problem=f"no sizes of the free dimensions at which the model runs were found within "
            f"{trials_s:.0f} s; give a size of each with --dim",
            kind="model",
        )
    except BadInputError as error:
        return _Answer(problem=str(error), kind="model" if isinstance(error, ModelError) else "input")


def _readable(path: Path, read: ir.Model) -> Path:
    """The model's file, or a copy in a version that the reference takes, with the data to which links lead."""
    tensors = [value.const_value for value in read.graph.initializers.values()]
    is_linked = path.is_symlink() and any(isinstance(t, ir.ExternalTensor) for t in tensors)
    if not versions.is_newer(read) and not is_linked:
        return path.resolve()
    inline_functions(read)
    copy = Path("readable") / "model.onnx"
    copy.parent.mkdir()
    ir.external_data.set_base_dir(read.graph, path.resolve().parent)
    write_normalized(versions.convert(read, []), copy)
    return copy


def _check_samples(model: ModelDims, space: ShapeSpace, said: Stated) -> None:
    for sample in said.samples:
        for name, dim in space.dims.items():
            if name in sample and sample[name] not in dim:
                low, high = min(dim.low, sample[name]), max(dim.high, sample[name])
                raise BadInputError(
                    f"inputs: {model.place(name)} has size {sample[name]} in a sample, and {name} is from "
                    f"{dim.text}; leave the sample out, or widen the sizes: {flag(name, f'{low}..{high}')}"
                )


def _usual(model: ModelDims, said: Stated, trials: Trials) -> dict[str, int]:
    """Sizes of all dimensions at which the model runs.

    Raises:
        ModelError: it runs at none of those that are tried.
    """
    known = {name: dim.low for name, dim in said.dims.items()}
    known |= dict(said.seen[0][0]) if said.seen else {}
    at = base(model, known, said.unsaid, trials.run)
    if at:
        return at
    places = ", ".join(f"{name} ({model.place(name)})" for name in said.unsaid)
    fault = trials.run(known | dict.fromkeys(said.unsaid, 1))
    open_values = [name for name in model.scalars if name not in said.values]
    values = "".join(f" {flag(name, 'VALUE')}" for name in open_values)
    raise ModelError(
        f"free input dimensions: {places}; no sizes were found that the model takes ({fault}); give each, "
        f"for example {' '.join(flag(name, 1) for name in said.unsaid)}"
        f"{f', and perhaps{values}' if values else ''}"
    )


def _ranges(space: ShapeSpace) -> str:
    return ", ".join(f"{name}={dim.text}" for name, dim in space.dims.items())
