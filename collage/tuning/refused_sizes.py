"""Sizes of dimensions that are why the reference cannot run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from collage.partitioner.errors import BadInputError, ModelError
from collage.shapes.settle import RefusedSizeError, settle
from collage.tuning.run import TuneRequest


@contextmanager
def explained(request: TuneRequest) -> Iterator[None]:
    """Say so where the model cannot run at the sizes that are given, but runs at another.

    Raises:
        RefusedSizeError: in place of a ModelError.
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
