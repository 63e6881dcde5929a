"""What a backend may ask about the model that is tuned."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeVar

if TYPE_CHECKING:  # an artifact is loaded without what finds partitions
    from collage.partitioner.graph.graph_index import GraphIndex

Found = TypeVar("Found")


class Inspect(Protocol):
    """See `WholeModel`."""

    def __call__(self, function: Callable[[Path], Found], /) -> Found | None: ...


@dataclass(frozen=True)
class WholeModel:
    """What `Backend.variants` may ask about the model.

    Args:
        index: the graph.
        latency_us: of one call on the target itself; infinite where it is unknown.
        tunable: values that the user left open, by option (`Option.tunable`).
        inspect: calls a module-level function with the model's path in a child, once for each function;
            None where it fails.
    """

    index: GraphIndex
    latency_us: float
    tunable: Mapping[str, tuple[str, ...]]
    inspect: Inspect
