"""What reports and events hold, for the API's document.

The server sends reports and events as they were stored; a test compares real ones with these models.
"""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from collage.options import GivenPlan

Interval = tuple[float, float]


class Stored(BaseModel):
    # Older reports lack what is newer.
    model_config = ConfigDict(extra="allow")


class MachineView(Stored):
    """What everything was measured on."""

    label: str
    hardware: str
    description: str


class RefusalView(Stored):
    """A node that a target refuses."""

    node: str
    op: str
    reason: str


class AlternativeView(Stored):
    """What another target would cost in place of a partition's."""

    target: str
    latency_us: float | None = None
    at_least_us: float | None = None
    offered: bool | None = None
    infeasible: str | None = None
    refused: list[RefusalView] | None = None
    refused_nodes: int | None = None
    moved_us: float | None = None
    moved_measured_us: float | None = None


class PartitionView(Stored):
    """A partition of the plan that is returned."""

    target: str
    nodes: list[str]
    numbers: str
    prepared: str
    sense: str
    latency_us: float | None
    predicted_us: float | None
    runner_up: str | None
    alternatives: list[AlternativeView]
    why: list[str]


class TransferView(Stored):
    """A value that one partition makes and another reads."""

    value: str
    source: int = Field(alias="from", description="Position of the partition that makes it.")
    to: int
    bytes: int | None = Field(description="Null where its shape is not known.")
    latency_us: float = Field(description="Of its copies; 0 where both have the same memory.")


class BaselineView(Stored):
    """The whole model on one target."""

    target: str
    latency_us: float | None = None
    latency_interval_us: Interval | None = None
    infeasible: str | None = None
    exceeds_tolerance: float | None = None


class TimedPlanView(Stored):
    """A plan that was timed, or why it could not be."""

    name: str
    partitions: int
    targets: list[str]
    predicted_us: float | None
    latency_us: float | None = None
    max_relative_error: float | None = None
    speedup_over_best_single: float | None = None
    speedup_interval: Interval | None = None
    infeasible: str | None = None


class FrontPointView(Stored):
    """A point of latency against error."""

    point: int
    name: str
    latency_us: float
    max_relative_error: float | None
    speedup_over_first: float
    speedup_interval: Interval
    targets: list[str]
    partitions: int
    plan: GivenPlan


class CandidatesView(Stored):
    """How many candidates there were, and how their costs were found."""

    total: int
    unique: int | None
    measured: int
    from_cache: int
    infeasible: int


class SearchView(Stored):
    """What the search proved."""

    objective_us: float
    bound_us: float
    optimal: bool


class RefusedView(Stored):
    """Operators that a target refused, and why."""

    target: str
    op: str
    reason: str
    nodes: int
    first: str


class NeverMeasuredView(Stored):
    """How many candidates of a target were never measured."""

    target: str
    candidates: int
    never_measured: int
    at_least_us: float | None


class EvaluationView(Stored):
    """How well the plan does its task on held-out samples."""

    metric: str
    truth: Literal["labels", "reference"]
    reference_score: float = Field(description="Of ONNX Runtime without optimization.")
    score: float
    drop: float = Field(description="By how much it is worse, in units of the metric.")
    drop_upper: float | None = Field(
        description="The upper end of its one-sided interval; null where that has no bound."
    )
    allowed: float
    samples: int = Field(description="Held-out samples of the proof.")
    proof_attempts: int | None = Field(
        default=None,
        description="Plans scored on the held-out samples; all their intervals together hold with 95 %.",
    )
    searched_samples: int = Field(description="Samples that plans were chosen by.")
    proven: bool = Field(description="Whether the whole interval keeps the bound.")
    samples_needed: int | None = Field(
        description="Held-out samples that would prove it, were the drop as it is; null where none would."
    )


class SettingView(Stored):
    """A plan measured with several requests at once, or why it could not be."""

    name: str
    targets: list[str]
    partitions: int
    instances: int
    threads: int
    rows: int = Field(default=1, description="Requests that one call computes.")
    stages: list[int] = Field(
        default=[], description="Of a pipeline: how many partitions each stage has."
    )
    failure: str | None = None
    throughput_per_s: float | None = None
    median_us: float | None = None
    p99_us: float | None = None
    requests: int | None = None
    peak_rss_bytes: int | None = None
    load_s: float | None = None
    on_front: bool | None = None
    chosen: bool | None = None


class ObjectiveView(Stored):
    """What was tuned for, and the settings that were measured for it."""

    name: str = Field(description="`latency`, `throughput`, `memory`, or weights of them.")
    p99_ms: float | None
    max_latency_ms: float | None
    met: bool | None = Field(description="Whether the bound is kept; null where nothing was measured.")
    settings: list[SettingView]


class FootprintView(Stored):
    """What the artifact takes, as it was compiled for the last time."""

    peak_rss_bytes: int
    load_s: float
    size_bytes: int


class ShapeSingleView(Stored):
    """A target alone at a shape."""

    target: str
    any_shape_us: float | None = Field(description="Compiled once for any shape.")
    this_shape_us: float | None = Field(description="Compiled for this shape alone.")
    failure: str | None = None


class WeightedView(Stored):
    """Means over shapes by their weights."""

    latency_us: float
    singles: list[ShapeSingleView]


class ShapeRowView(Stored):
    """What was measured at a representative shape."""

    sizes: dict[str, int]
    weight: float
    class_: int = Field(alias="class")
    latency_us: float
    hot_latency_us: float | None = Field(description="Of the plan for shapes that come often.")
    max_relative_error: float
    singles: list[ShapeSingleView]


class HotPlanView(Stored):
    """The plan that a shape gets once it has come often."""

    partitions: int
    targets: list[str]
    treatment: Literal["dynamic", "exact", "bucket"]
    buckets: dict[str, list[int]] | None = Field(
        default=None, description="The sizes that requests are padded to, by dimension."
    )
    compile_s: float
    from_request: int


class ShapeClassView(Stored):
    """Shapes that are run alike."""

    up_to: int | None = Field(description="The largest product of sizes; null for the last class.")
    partitions: int
    targets: list[str]
    treatment: Literal["dynamic", "exact", "bucket"]
    hot: HotPlanView | None


class ShapesView(Stored):
    """A plan for a range of shapes."""

    dims: dict[str, str]
    main: int = Field(description="The row of the shape at which plans were searched.")
    most_copies: int
    classes: list[ShapeClassView]
    rows: list[ShapeRowView]
    weighted: WeightedView
    rss_bytes: dict[str, int]
    peak_rss_bytes: dict[str, int] = Field(default={}, description="The most that was held meanwhile.")
    memory_limit_bytes: int | None = Field(
        default=None, description="What copies for one shape each keep to."
    )


class LearnedView(Stored):
    """How well the costs of a target's parts are predicted from those of other models."""

    target: str
    rows: int
    models: int
    median: float = Field(description="Median of the relative errors for models that were held out.")
    factor: float = Field(description="Nine of ten parts took within this factor of the prediction.")


class ReportView(Stored):
    """The report of a tuning; docs/report.md says what each field means."""

    report_version: int
    model_sha256: str = Field(
        description="SHA-256 of the normalized model; a job shows it as `normalized_sha256`."
    )
    targets: list[str]
    machine: MachineView
    partitions: list[PartitionView]
    transfers: list[TransferView] = []
    latency_us: float
    latency_interval_us: Interval
    baselines: list[BaselineView]
    greedy_latency_us: float | None
    speedup_over_best_single: float | None
    speedup_interval: Interval | None
    predicted_latency_us: float | None
    additive_error: float | None
    max_relative_error: float | None
    tolerance: float
    metric: str
    evaluation: EvaluationView | None = None
    sampled_inputs: Literal["given", "seeded"]
    front: list[FrontPointView] | None
    objective: ObjectiveView | None = None
    footprint: FootprintView | None = None
    plans: list[TimedPlanView]
    known_since: datetime | None
    candidates: CandidatesView
    search: SearchView | None
    learned: list[LearnedView] | None = None
    refused: list[RefusedView]
    never_measured: list[NeverMeasuredView]
    warnings: list[str]
    seconds: dict[str, float]
    shapes: ShapesView | None = None


class ProgressFacts(Stored):
    """Facts of a step; which there are depends on the stage."""

    normalized_sha256: str | None = None
    target: str | None = None
    targets: list[str] | None = None
    plan: str | None = None
    partitions: int | None = None
    nodes: int | None = None
    latency_us: float | None = None
    reason: str | None = None
    failure: str | None = None
    ratio: float | None = None
    seconds: float | None = None


class ProgressEvent(Stored):
    """`event: progress`: a step of the tuner."""

    at: datetime
    stage: str
    message: str
    done: int | None
    total: int | None
    share_done: float | None = None
    remaining_s: float | None = None
    data: ProgressFacts


class StateEvent(Stored):
    """`event: state`: a change of state; an end is the last event."""

    at: datetime
    state: Literal["queued", "running", "done", "failed", "cancelled"]
    reason: str | None = None
    worker: str | None = None


class FailureEvent(Stored):
    """`event: failure`: why the job fails."""

    at: datetime
    kind: str
    reason: str
