"""The JSON of the API. Requests are strict: no coercion, no unknown fields."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Generic, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, WithJsonSchema

from collage.cost_db.costs.row import CostRow

T = TypeVar("T")

Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$", min_length=64, max_length=64)]
# The key of a placeholder for a named schema of the document (`collage.service.openapi`).
SCHEMA = "x-schema"
JobKind = Literal["tune", "diagnose", "watch"]
JobId = Annotated[str, Field(pattern=r"^[0-9a-f]{32}$", min_length=32, max_length=32)]
JobState = Literal["queued", "running", "done", "failed", "cancelled"]
Verdict = Literal["same", "faster", "slower", "wrong", "failed"]


class _Answer(BaseModel):
    model_config = ConfigDict(from_attributes=True)


class PageView(_Answer, Generic[T]):
    """One page; `next` goes into `cursor` for the following one, null at the end."""

    items: list[T]
    next: str | None


Labels = Annotated[
    list[Annotated[str, Field(min_length=1, max_length=100)]],
    Field(max_length=20, description="Words by which people find jobs again."),
]
Note = Annotated[str, Field(max_length=10_000, description="A text for people.")]
Targets = Annotated[list[Annotated[str, Field(max_length=500)]], Field(max_length=32)]
Webhook = Annotated[
    str, Field(max_length=2000, description="Address that is told when the job ends, where allowed.")
]
# Checked where they are used, with better messages than those of a nested model.
Options = Annotated[dict[str, Any], WithJsonSchema({SCHEMA: "TuneOptions"})]
OptionsOfDiagnosis = Annotated[dict[str, Any], WithJsonSchema({SCHEMA: "DiagnoseOptions"})]
AnyOptions = Annotated[
    dict[str, Any],
    WithJsonSchema({"anyOf": [{SCHEMA: "TuneOptions"}, {SCHEMA: "DiagnoseOptions"}]}),
]


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class JobBody(_Body):
    """A job for a model that was uploaded before (`POST /v1/models`)."""

    model_sha256: Sha256
    targets: Targets = Field(default_factory=list, description="Left out: those of the option `plan`.")
    options: Options = Field(default_factory=dict)
    labels: Labels = Field(default_factory=list)
    note: Note | None = None
    webhook: Webhook | None = None


class DiagnosisBody(_Body):
    """A diagnosis of another job's model, or of one that was uploaded before (`POST /v1/models`)."""

    job: JobId | None = Field(
        default=None,
        description="A job whose model, sample inputs and common options are taken; or `model_sha256`.",
    )
    model_sha256: Sha256 | None = None
    target: Annotated[str, Field(min_length=1, max_length=500)] = Field(
        description="The target to look at."
    )
    options: OptionsOfDiagnosis = Field(default_factory=dict)
    labels: Labels | None = Field(default=None, description="Left out: those of the job.")
    note: Note | None = None
    webhook: Webhook | None = None


class RerunBody(_Body):
    """What is to be different from the job that is run again."""

    targets: Targets | None = Field(default=None, description="Left out: those of that job.")
    options: AnyOptions = Field(
        default_factory=dict, description="Options to change; null brings a default back."
    )
    labels: Labels | None = Field(default=None, description="Left out: those of that job.")
    note: Note | None = None
    webhook: Webhook | None = None


class DescribeBody(_Body):
    """What people say about a job; what is left out stays."""

    labels: Labels | None = Field(default=None, description="In place of those that it has.")
    note: Note | None = Field(default=None, description="An empty one removes the note.")


class ProgressView(_Answer):
    """How far a job is."""

    stage: str
    message: str
    done: int | None
    total: int | None
    share_done: float | None = Field(default=None, description="Of the run's time; it never falls.")
    remaining_s: float | None = Field(
        default=None, description="Seconds that the rest takes at the most."
    )


class SummaryView(_Answer):
    """The result in four numbers; the report has the details."""

    latency_us: float | None
    speedup: float | None = Field(description="Best single target's latency over the plan's.")
    partitions: int
    cached_share: float | None = Field(description="Share of the looked-up costs that were known.")


class DiagnosisSummaryView(_Answer):
    """The result of a diagnosis in short."""

    faults: int = Field(description="How many smallest regions fail.")
    is_right: bool | None = Field(
        default=None, description="Whether all that the target takes ran and is right."
    )
    slow_regions: int
    largest_error: float | None = Field(description="Of the model's outputs; null if not a number.")
    ratio: float | None = Field(description="Its time over that of the target it is compared with.")
    ratio_interval: tuple[float, float] | None = Field(description="95 % interval of that.")


class WatchSummaryView(_Answer):
    """The result of a watched artifact's measurement in short."""

    verdict: Verdict
    ratio: float | None
    interval: tuple[float, float] | None = Field(description="95 % interval of the ratio.")


class JobLinks(_Answer):
    """Where the rest of a job is."""

    self: str
    events: str
    artifact: str | None
    report: str | None
    plan: str | None
    picture: str | None = Field(description="Of a diagnosis: how the error grows by depth (SVG).")
    page: str


class WebhookView(_Answer):
    """Who is told of a job's end."""

    url: str = Field(description="Without its query.")
    state: Literal["waiting", "delivered", "failed"] | None = Field(
        description="Null until the job has ended."
    )
    tries: int


class JobView(_Answer):
    """A job as it is now."""

    id: str
    kind: JobKind
    state: JobState
    name: str
    owner: str
    labels: list[str]
    note: str | None
    model_sha256: str | None = Field(description="Of the model as it was uploaded.")
    normalized_sha256: str | None = Field(
        description="Of the normalized model, as costs and plans have it; null until it was read."
    )
    targets: list[str]
    options: AnyOptions | None = Field(
        description="What was asked for; lists leave out `plan`. Null where it cannot be read."
    )
    rerun_of: str | None = Field(description="The job that this one repeats.")
    damaged: str | None = Field(description="What of the stored job cannot be read, and why.")
    webhook: WebhookView | None
    position: int | None = Field(
        description="Place in the queue, from 1; null when it does not wait for its turn."
    )
    progress: ProgressView | None
    summary: SummaryView | DiagnosisSummaryView | WatchSummaryView | None
    reason: str | None = Field(description="Why it failed or was cancelled.")
    attempt: int
    worker: str | None
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    links: JobLinks


class WatchBody(_Body):
    """An artifact to watch: of a tuning, or of one that is made now."""

    job: JobId | None = Field(
        default=None, description="A tuning whose artifact is watched; or `model_sha256`."
    )
    model_sha256: Sha256 | None = Field(
        default=None, description="A model that was uploaded before; it is tuned first."
    )
    targets: Targets = Field(default_factory=list, description="Of that tuning.")
    options: Options = Field(default_factory=dict, description="Of that tuning.")
    name: Annotated[str, Field(min_length=1, max_length=200)] | None = Field(
        default=None, description="Left out: the model's name."
    )
    webhook: Webhook | None = Field(default=None, description="Told after every measurement.")


class WatchRunView(_Answer):
    """What one measurement found in one environment."""

    job: str
    environment: str = Field(description="`this one`, or the name of an environment of the server.")
    created_at: datetime
    verdict: Verdict
    ratio: float | None = Field(description="Its time over that of the other, or of before.")
    interval: tuple[float, float] | None = Field(description="95 % interval of the ratio.")
    reason: str
    latency_us: list[float] | None = Field(
        description="Of each build on this server; of a job's runs the first alone has it."
    )
    over_yardstick: list[float] | None = Field(
        description="The same over a fixed computation's time, which compares between days."
    )
    versions: dict[str, str] | None = Field(description="Of what the artifact needs, on this server.")


class WatchLinks(_Answer):
    """Where the rest of a watch is."""

    self: str
    history: str
    job: str
    page: str


class WatchView(_Answer):
    """A watched artifact."""

    id: str
    name: str
    owner: str
    created_at: datetime
    artifact_sha256: str | None = Field(description="Null until its tuning is done.")
    targets: list[str] = Field(description="Those of its plan.")
    problem: str | None = Field(description="Why it is not measured.")
    due_at: datetime | None = Field(description="When it is measured next; null: at no set time.")
    last: WatchRunView | None
    links: WatchLinks


class WatchHistoryView(_Answer):
    """The newest measurements of a watch, the oldest of them first."""

    runs: list[WatchRunView]


class ModelView(_Answer):
    """An uploaded model."""

    sha256: str
    name: str
    owner: str
    size_bytes: int
    created_at: datetime


class OptionView(_Answer):
    """An option of a target."""

    name: str
    default: str
    choices: list[str]
    help: str


class TargetView(_Answer):
    """A backend of this server and whether it can be used."""

    name: str
    summary: str
    available: bool
    version: str | None
    reason: str | None
    how_to_install: str | None
    options: list[OptionView]


class WorkerView(_Answer):
    """A worker that runs jobs, or that measures for jobs on another machine."""

    name: str
    role: Literal["runs jobs", "measures"]
    state: Literal["idle", "busy"]
    job: str | None
    backends: list[str] = Field(
        description="What it measures with; empty where workers measure for it."
    )
    host: str
    label: str = Field(description="Kind of machine, as `-host=` names it; empty without one.")
    hardware: str


class CostView(_Answer):
    """One stored cost: a measurement, or the reason why there is none."""

    digest: str
    sub_graph: str
    target: str
    backend: str
    backend_version: str
    hardware: str
    outcome: Literal["measured", "infeasible"]
    latency_us: float | None
    spread_us: float | None
    reason: str | None
    error: float | None
    compile_s: float | None
    peak_memory_bytes: int | None
    yardstick_us: float | None
    host: str
    op_types: list[str]
    node_count: int
    normalized_sha256: str | None = Field(
        description="Of the normalized model for which it was first measured."
    )
    created_at: datetime

    @classmethod
    def of(cls, row: CostRow) -> CostView:
        """A row as the API shows it."""
        renamed: dict[str, Any] = {
            "op_types": row.op_types.split(),
            "normalized_sha256": row.model_sha256,
        }
        same = cls.model_fields.keys() - renamed.keys()
        return cls(**{name: getattr(row, name) for name in same}, **renamed)


class CostStatsView(_Answer):
    """What the database holds."""

    costs: int
    by_outcome: dict[str, int]
    by_backend: dict[str, int]
    by_host: dict[str, int]
    claims: int
    oldest: datetime | None
    newest: datetime | None


class RefusedLine(BaseModel):
    """A line of an import that was not taken."""

    line: int
    reason: str


class ImportView(BaseModel):
    """What an import did."""

    accepted: int
    known: int
    refused: list[RefusedLine]


class ForgottenView(BaseModel):
    """How many costs were deleted."""

    deleted: int


class HealthView(BaseModel):
    """The server answers."""

    status: Literal["ok"]
    version: str
