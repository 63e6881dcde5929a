"""The model of a tuning at its sizes, or the sizes for which it is tuned."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from collage.events import Event
from collage.partitioner.errors import BadInputError
from collage.partitioner.ingest.model_dims import FreeDimensionsError, ModelDims
from collage.shapes.resolve import flag, sizes_of
from collage.shapes.settle import Settled, settle
from collage.tuning.prepare import ingest
from collage.tuning.run import Run, TuneRequest
from collage.tuning.stages import Ingested


def read_model(run: Run, request: TuneRequest) -> Ingested | Settled:
    """Read a model; where some dimension has several sizes, only find out which.

    Dimensions that nothing is said of have the sizes of the sample inputs, else proposed ones; the listener is told.

    Raises:
        BadInputError: the model or a target cannot be used, or not at these sizes.
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
    settled = settle(request.source, options.dims, seen, run.cancel)
    if settled.proposed:
        message = f"the model takes {settled.flags}; change what does not fit"
        run.listener(Event("ingest", message, data={"dims": dict(settled.proposed)}))
    if settled.fixed is None:
        return settled
    read = ingest(run, request, settled.fixed)
    return replace(read, info=replace(read.info, warnings=(*settled.notes, *read.info.warnings)))


def _sizes_of_samples(inputs: Path | None, dims: ModelDims) -> dict[str, int]:
    """The size of each free dimension in sample inputs; nothing where they do not tell all."""
    if inputs is None:
        return {}
    try:
        with np.load(inputs, allow_pickle=False) as stored:
            shapes = {name: stored[name].shape for name in stored.files}
        ranks = {tensor.name: len(tensor.dims) for tensor in dims.inputs}
        if all(len(shape) == ranks.get(name, -1) + 1 for name, shape in shapes.items()):
            shapes = {name: shape[1:] for name, shape in shapes.items()}  # several samples
        sizes = sizes_of(dims, shapes)
    except (OSError, ValueError, BadInputError):  # whoever reads the samples says what is wrong
        return {}
    return sizes if sizes.keys() >= set(dims.free) else {}
