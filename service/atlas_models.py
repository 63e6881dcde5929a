"""What the atlas answers, for the API's document (docs/atlas.md)."""

from __future__ import annotations

from datetime import datetime

from pydantic import BaseModel, Field

Interval = tuple[float, float]


class AtlasRowView(BaseModel):
    """How a target does on a class of regions."""

    hardware: str
    machine: str
    kind: str = Field(description="Its operators.")
    shape_class: str
    dtype: str
    target: str
    times_best: float = Field(
        description="Geometric mean of its times over the fastest target's on the same region."
    )
    interval: Interval | None = Field(description="95 % interval of that; null of one region.")
    fastest_in: float = Field(description="The share of regions on which it is the fastest.")
    regions: int
    models: int = Field(description="From how many models; 100 at the most.")
    is_sure: bool


class AtlasDifferenceView(BaseModel):
    """Two targets that differ by more than a factor of two."""

    machine: str
    kind: str
    shape_class: str
    dtype: str
    regions: int
    fast: str
    slow: str
    factor: float
    is_sure: bool


class AtlasView(BaseModel):
    """Who is fast at what, as measured so far."""

    known_until: datetime | None = Field(description="The time of the newest cost.")
    is_whole: bool = Field(description="False while costs of an older database are being counted.")
    search: str
    rows: list[AtlasRowView]
    differences: list[AtlasDifferenceView] = Field(description="The furthest first.")
