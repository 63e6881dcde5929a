"""The model of a tuning at its sizes, or the sizes for which it is tuned."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

from collage.deadline import seconds_until
from collage.events import Event
from collage.partitioner.errors import BadInputError
from collage.partitioner.ingest.model_dims import FreeDimensionsError, ModelDims
from collage.shapes.resolve import flag
from collage.shapes.sample_shapes import file_shapes, sizes_of_samples
from collage.shapes.settle import Settled, settle
from collage.tuning.prepare import ingest
from collage.tuning.run import Run, TuneRequest
from collage.tuning.stages import Ingested


def read_model(run: Run, request: TuneRequest) -> Ingested | Settled:
    """Read a model; where some dimension has several sizes, only find out which.

    Dimensions that nothing is said of have the sizes of the sample inputs, else proposed ones; the listener is told.

    Raises:
        BadInputError: the model or a target cannot be used, or not at these sizes.
        OutOfTimeError: the model was not read in time.
    """
    options = request.options
    if options.fixed_dims is not None:
        try:
            return ingest(run, request, options.fixed_dims)
        except FreeDimensionsError as error:
            told = str(error).partition(";")[0]
            of_samples = _sizes_of_samples(request.inputs, error.dims)
            if of_samples:
                flags = " ".join(flag(name, size) for name, size in of_samples.items())
                run.listener(Event("ingest", f"{told}; those of the sample inputs are {flags}"))
                return ingest(run, request, {**of_samples, **options.fixed_dims})
            run.listener(Event("ingest", f"{told}; trying which sizes they take"))
    seen = [(shape.sizes, shape.weight) for shape in options.shapes]
    samples = [] if request.inputs is None else file_shapes(request.inputs)
    limit_s = seconds_until(run.prepared_by_s, math.inf)
    settled = settle(request.source, options.dims, seen, run.cancel, samples=samples, limit_s=limit_s)
    if settled.proposed:
        message = f"the model takes {settled.flags}; change what does not fit"
        run.listener(Event("ingest", message, data={"dims": dict(settled.proposed)}))
    if settled.fixed is None:
        return settled
    read = ingest(run, request, settled.fixed)
    return replace(read, info=replace(read.info, warnings=(*settled.notes, *read.info.warnings)))


def _sizes_of_samples(inputs: Path | None, dims: ModelDims) -> dict[str, int]:
    """The size of each free dimension in sample inputs; nothing where they do not tell all, or differ."""
    if inputs is None:
        return {}
    try:
        found = sizes_of_samples(dims, file_shapes(inputs))
    except BadInputError:  # whoever reads the samples says what is wrong
        return {}
    return found[0] if found and all(sizes == found[0] for sizes in found) else {}
