"""What reports of diagnoses and of watches hold, for the API's document.

The server sends them as they were stored; tests compare real ones with these models.
"""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from collage.service.api_models import Verdict

Interval = tuple[float, float]
ErrorSize = float | Literal["infinite"] | None
Outcome = Literal["right", "wrong", "crash", "hang", "out of memory", "refused", "not tried"]


class _Stored(BaseModel):
    # Older reports lack what is newer.
    model_config = ConfigDict(extra="allow")


class RefusedNodesView(_Stored):
    """Operators that the target's guard refuses."""

    op: str
    reason: str
    nodes: int


class TriedRegionView(_Stored):
    """A region that was run as a whole."""

    nodes: int
    outcome: Outcome
    reason: str | None = None
    error: ErrorSize = None


class ElementView(_Stored):
    """One element of an output; numbers as Python writes them."""

    index: list[int]
    expected: str
    got: str


class WrongValueView(_Stored):
    """The output that is furthest off, in the first run that is wrong."""

    output: str
    sample: int
    run: int
    error: ErrorSize
    reason: str
    elements: list[ElementView] = Field(description="The worst first.")
    wrong_elements: int
    size: int


class ReproducerView(_Stored):
    """A folder in the zip that shows a fault."""

    folder: str
    reproduced: bool = Field(description="Whether its script failed in the same way when it was tried.")
    imports_collage: bool
    model_bytes: int


class CulpritView(_Stored):
    """A smallest region that fails by itself."""

    nodes: list[str]
    operators: str
    is_smallest: bool = Field(description="False where the trials were used up before it was known.")
    outcome: Outcome
    reason: str
    error: ErrorSize
    values: WrongValueView | None
    reproducer: ReproducerView | None = None


class DepthErrorView(_Stored):
    """The error of a value inside the model."""

    position: int = Field(description="Of the node that makes it, in the order of execution.")
    node: str
    op: str
    value: str
    error: ErrorSize


class MarkView(_Stored):
    """A node by its place in the order of execution."""

    position: int
    node: str


class ErrorByDepthView(_Stored):
    """How the error grows through the network."""

    values: list[DepthErrorView]
    marks: list[MarkView] = Field(description="The first node of each culprit.")
    nodes: int = Field(description="How many the region has.")
    picture: str | None = Field(description="Its file in the zip.")
    svg: str | None = Field(default=None, description="The picture itself.")
    note: str


class FaultsView(_Stored):
    """What is wrong, crashes or hangs."""

    trials: int
    trials_in_all: int
    regions: list[TriedRegionView]
    culprits: list[CulpritView]
    error_by_depth: ErrorByDepthView | None


class SideView(_Stored):
    """One of the two that are compared."""

    target: str
    python: str = Field(description="`this one`, or the name of an environment of the server.")
    version: str


class TimesView(_Stored):
    """How long both sides take, with 95 % intervals."""

    latency_us: float
    interval_us: Interval
    other_latency_us: float
    other_interval_us: Interval
    ratio: float
    ratio_interval: Interval


class TimingScriptView(_Stored):
    """A folder in the zip that times a region."""

    folder: str
    ran: bool
    imports_collage: bool


class SlowRegionView(_Stored):
    """A region that is slower by more than its share."""

    nodes: list[str]
    operators: str
    excess_us: float
    alone: TimesView
    in_place: TimesView
    reproducer: TimingScriptView | None = None


class SpeedView(_Stored):
    """The target's speed beside another one's."""

    note: str | None = Field(default=None, description="Why it was not compared, or not in blocks.")
    not_compared: dict[str, str] | None = Field(
        default=None, description="Per target why it was not compared."
    )
    sides: list[SideView] | None = None
    errors: list[float | None] | None = None
    failures: list[str | None] | None = None
    whole: TimesView | None = None
    regions: list[SlowRegionView] | None = None


class DiagnosisView(_Stored):
    """The report of a diagnosis; docs/diagnose.md says what each field means."""

    model_sha256: str = Field(description="Of the normalized model.")
    nodes: int
    target: str
    version: str
    hardware: str
    tolerance: float
    metric: str
    sampled_inputs: bool = Field(description="True where seeded inputs were used.")
    refused: list[RefusedNodesView]
    faults: FaultsView
    speed: SpeedView
    notes: list[str]


class BlockView(_Stored):
    """A part of the artifact that became faster or slower."""

    nodes: list[str]
    operators: str
    target: str
    ratio: float
    interval: Interval


class WatchResultView(_Stored):
    """An artifact in one environment."""

    name: str
    environment: str = Field(description="`this one`, or the name of an environment of the server.")
    verdict: Verdict
    reason: str
    ratio: float | None = Field(
        description="The other environment's time, or the present one, over that before."
    )
    interval: Interval | None
    blocks: list[BlockView]
    errors: list[float | None] | None = None
    versions: dict[str, list[str]] | None = Field(default=None, description="Here and there.")


class WatchMeasurementView(_Stored):
    """What was measured of this server's own environment."""

    at: datetime
    key: dict[str, str] = Field(description="What it depends on: versions, and the hardware.")
    latency_us: list[float] = Field(description="Of each build.")
    over_yardstick: list[float] = Field(description="The same over a fixed computation's time.")
    error: float | None
    artifact_sha256: str | None = Field(default=None, description="What identifies the artifact.")
    verdict: Verdict | None = Field(
        default=None, description="What was said of it; a later one is compared with no regression."
    )
    reason: str | None = None
    ratio: float | None = None
    interval: Interval | None = None


class WatchReportView(_Stored):
    """The report of one measurement of a watched artifact; docs/watch.md says what each field means."""

    results: list[WatchResultView]
    measured: list[WatchMeasurementView]
