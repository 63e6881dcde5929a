"""Sizes of dimensions that are why the reference cannot run."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

from collage.deadline import seconds_until
from collage.partitioner.errors import BadInputError, ModelError, OutOfTimeError
from collage.shapes.settle import RefusedSizeError, settle
from collage.tuning.run import TuneRequest


@contextmanager
def explained(request: TuneRequest, until_s: float = math.inf) -> Iterator[None]:
    """Say so where the model cannot run at the sizes that are given, but runs at another.

    Args:
        until_s: other sizes are tried until then.

    Raises:
        RefusedSizeError: in place of a ModelError.
    """
    try:
        yield
    except ModelError:
        if request.inputs is None and request.options.fixed_dims:
            _refuse_size(request, until_s)
        raise


def _refuse_size(request: TuneRequest, until_s: float) -> None:
    try:
        settle(request.source, request.options.dims, limit_s=seconds_until(until_s, math.inf))
    except RefusedSizeError:
        raise
    except (BadInputError, OutOfTimeError):  # the reference's own fault says more
        return
