"""The model of a tuning at its sizes, or the sizes for which it is tuned."""

from __future__ import annotations

from dataclasses import replace

from collage.events import Event
from collage.partitioner.ingest.model_dims import FreeDimensionsError
from collage.shapes.settle import Settled, settle
from collage.tuning.prepare import ingest
from collage.tuning.run import Run, TuneRequest
from collage.tuning.stages import Ingested


def read_model(run: Run, request: TuneRequest) -> Ingested | Settled:
    """Read a model; where some dimension has several sizes, only find out which.

    Sizes are proposed for dimensions that nothing is said of; the listener is told.

    Raises:
        BadInputError: the model or a target cannot be used, or not at these sizes.
    """
    options = request.options
    if options.fixed_dims is not None:
        try:
            return ingest(run, request, options.fixed_dims)
        except FreeDimensionsError as error:
            told = str(error).partition(";")[0]
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
