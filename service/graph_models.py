"""The partition graph of an artifact, for the API's document."""

from __future__ import annotations

from pydantic import Field

from collage.service.report_models import AlternativeView, Stored


class GraphNodeView(Stored):
    """An operator."""

    id: int
    name: str
    op: str
    x: float
    y: int
    inputs: list[tuple[str, str]] = Field(description="Name and type of each value.")
    outputs: list[tuple[str, str]]
    attributes: dict[str, str]


class GraphPartitionView(Stored):
    """A partition, with its operators and the edges between them."""

    id: str
    target: str
    x: float
    y: int
    operators: dict[str, int]
    latency_us: float | None = Field(default=None, description="Inside the plan, by the report.")
    predicted_us: float | None = None
    numbers: str | None = None
    prepared: str | None = None
    alternatives: list[AlternativeView] | None = None
    why: list[str] | None = None
    nodes: list[GraphNodeView]
    edges: list[tuple[int, int]]


class GraphEdgeView(Stored):
    """What goes from one partition to another."""

    source: str = Field(alias="from")
    to: str
    tensors: list[str]
    bytes: int | None = Field(description="Of all tensors; null where a shape is not known.")
    latency_us: float | None = Field(
        default=None,
        description="Of copies between memories, by the report; 0 where nothing is copied.",
    )


class GraphView(Stored):
    """The partition graph as the page draws it: x counts within a layer, y counts layers."""

    partitions: list[GraphPartitionView]
    edges: list[GraphEdgeView]
