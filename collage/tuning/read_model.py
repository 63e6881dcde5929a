"""The model of a tuning, at the sizes that are said, seen or proposed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from collage.events import Event
from collage.model import reference
from collage.options import TuneOptions
from collage.partitioner.errors import BadInputError, ModelError
from collage.partitioner.graph.model import Model
from collage.partitioner.ingest.model_dims import FreeDimensionsError
from collage.partitioner.ingest.normalize import NormalizedInfo
from collage.shapes.resolve import flag
from collage.shapes.settle import RefusedSizeError, Settled, settle
from collage.tuning.run import Run, TuneRequest


def read_model(
    run: Run, source: Path, options: TuneOptions, least_opset: int
) -> tuple[Model, NormalizedInfo]:
    """Read a model, and propose sizes of the dimensions that nothing is said of.

    Args:
        run: its listener is told what is proposed.
        source: an ONNX file, or a zip with one and its external data.
        options: what is said of dimensions.
        least_opset: an older model is converted up to this one where that can be done.

    Raises:
        BadInputError: the model cannot be used, or not at these sizes.
    """
    dims = options.fixed_dims
    if dims is not None:
        try:
            return reference.ingest(source, run.work_dir, dims, run.cancel, least_opset)
        except FreeDimensionsError as error:
            run.listener(
                Event("ingest", str(error).partition(";")[0] + "; trying which sizes they take")
            )
    settled = settle(source, options.dims, [(s.sizes, s.weight) for s in options.shapes], run.cancel)
    if settled.proposed:
        run.listener(
            Event(
                "ingest",
                f"the model takes {settled.flags}; change what does not fit",
                data={"dims": dict(settled.proposed)},
            )
        )
    if settled.fixed is None:
        raise BadInputError(_several(settled))
    model, info = reference.ingest(source, run.work_dir, settled.fixed, run.cancel, least_opset)
    return model, replace(info, warnings=(*settled.notes, *info.warnings))


@contextmanager
def explained(request: TuneRequest) -> Iterator[None]:
    """Say so where the sizes that are given are why the reference cannot run.

    Raises:
        RefusedSizeError: in place of a ModelError, where the model runs at another size.
    """
    try:
        yield
    except ModelError:
        if request.inputs is None and request.options.fixed_dims:
            _refuse_size(request)
        raise


def _refuse_size(request: TuneRequest) -> None:
    try:
        settle(request.source, request.options.dims)
    except RefusedSizeError:
        raise
    except BadInputError:  # the reference's own fault says more
        return


def _several(settled: Settled) -> str:
    """That a model is tuned for one size of each dimension, with flags that say one."""
    usual = {**settled.space.shapes[0].sizes, **settled.usual}
    ranged = [name for name, dim in settled.space.dims.items() if not dim.is_fixed]
    return (
        f"free input dimensions: {', '.join(ranged)}; a model is tuned for one size of each, for example "
        f"{' '.join(flag(name, usual[name]) for name in ranged)}"
        + (f"; the model takes {settled.flags}" if settled.proposed else "")
    )
