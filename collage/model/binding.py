"""A model with free dimensions at some sizes."""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping
from pathlib import Path

from collage.model.reference import RUNTIME, made_in_child
from collage.partitioner.errors import ModelError
from collage.partitioner.graph.model import Model
from collage.partitioner.ingest.binding import bind_sizes
from collage.partitioner.ingest.normalize import NormalizedInfo


def bind(
    model: Model,
    folder: Path,
    sizes: Mapping[str, int],
    cancel: threading.Event | None = None,
    until_s: float = math.inf,
) -> tuple[Model, NormalizedInfo]:
    """Give the free dimensions of a normalized model sizes, in a sandboxed child; its nodes stay.

    Args:
        folder: where `model.onnx` is written.
        sizes: of each free dimension, by name.
        until_s: it is done by then, by `time.monotonic`.

    Raises:
        ModelError: the model cannot have these sizes.
        OutOfTimeError: it was not done in time.
    """
    return made_in_child(_bind, model.path, folder, (dict(sizes),), cancel, until_s)


def _bind(source: Path, destination: Path, sizes: dict[str, int]) -> NormalizedInfo | str:
    try:
        return bind_sizes(source, destination, sizes, RUNTIME)
    except ModelError as error:
        return str(error)
    except MemoryError:
        return "it needs more memory than ingest may use"
