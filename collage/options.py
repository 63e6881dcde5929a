"""The options of a tuning run, as one frozen value for the command line, HTTP and Python."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, TypeVar

import pydantic
from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema

from collage.backends.numerics.comparison import NO_TOLERANCE, Metric
from collage.cost_db.plain_text import plain_json
from collage.metrics.names import is_function, parse_metric
from collage.objective import GOALS, canonical, weights_of
from collage.partitioner.errors import BadInputError
from collage.seen_shape import MOST_REQUESTS, STRICT, Name, Seen, Size, counted_requests
from collage.shapes.dim_text import LONGEST_TEXT, MOST_SIZE, read_dim

if TYPE_CHECKING:
    from collage.partitioner.search.constraints import Constraints

Objective = Annotated[
    str,
    Field(max_length=200),
    AfterValidator(canonical),
    WithJsonSchema(
        {"anyOf": [{"type": "string", "enum": list(GOALS)}, {"type": "string", "pattern": "="}]}
    ),
]
Options = TypeVar("Options", bound=pydantic.BaseModel)
Strategy = Literal["optimal", "greedy", "priority", "single", "manual"]
# Without a time limit the search ends after so many seconds or known regions; see docs/tune.md.
_DEFAULT_LIMIT_S, _LARGE_BYTES, _S_PER_LARGE_MIB = 150.0, 100 << 20, 0.5
_MOST_REGIONS = 60
_FAULTS_SHOWN = 10
_MOST_BYTES = 8 << 20


_WEEK_S = 7 * 24 * 3600.0
_HOUR_MS = 3600e3


class OptionsError(BadInputError):
    """Options that cannot be used.

    Args:
        faults: the field and what is wrong with it, for each.
    """

    def __init__(self, message: str, faults: Sequence[tuple[str, str]]) -> None:
        super().__init__(message)
        self.faults = tuple(faults)


def _placement(text: str) -> str:
    # Imports onnx-ir, which the help of the command line should not wait for.
    from collage.partitioner.search.selection import ConstraintError, Placement

    try:
        Placement.parse(text)
    except ConstraintError as error:
        raise ValueError(str(error)) from None
    return text


def _target(text: str) -> str:
    from collage.partitioner.errors import TargetError
    from collage.partitioner.target import Target

    try:
        Target.parse(text)
    except TargetError as error:
        raise ValueError(str(error)) from None
    return text


_Placement = Annotated[str, Field(min_length=3, max_length=1000), AfterValidator(_placement)]


def _dim(said: Any) -> Any:
    read_dim(said)
    return said


_Dim = Annotated[
    Size | Annotated[str, Field(min_length=1, max_length=LONGEST_TEXT)], BeforeValidator(_dim)
]


class PlanPartition(pydantic.BaseModel):
    """A partition of a plan: nodes that one target runs."""

    model_config = STRICT

    target: Annotated[str, Field(min_length=1, max_length=500), AfterValidator(_target)]
    nodes: tuple[Name, ...] = Field(min_length=1, description="Names of its nodes.")
    latency_us: float | None = Field(default=None, ge=0, description="What was measured.")
    numbers: str = Field(default="", max_length=1000, description="Its arithmetic.")
    prepared: str = Field(default="", max_length=1000, description="Who rewrote its nodes.")


class PlanInstances(pydantic.BaseModel):
    """How many requests a plan was tuned to run at once."""

    model_config = STRICT

    count: int = Field(ge=1, le=1024, description="Requests at once.")
    threads: int = Field(ge=1, le=1024, description="Threads of each.")
    cores: int = Field(ge=1, le=1024, description="Cores of the machine where that was measured.")
    rows: int = Field(default=1, ge=1, le=1024, description="Requests that one call computes.")
    stages: tuple[Annotated[int, Field(ge=1)], ...] = Field(
        default=(), max_length=1024, description="Of a pipeline: how many partitions each stage has."
    )


class GivenPlan(pydantic.BaseModel):
    """A plan for one model, as `GET /v1/jobs/{job_id}/plan` answers and artifacts hold it."""

    model_config = STRICT

    format: Literal[1]
    model_sha256: str = Field(
        pattern="^[0-9a-f]{64}$",
        description="SHA-256 of the normalized model; a job shows it as `normalized_sha256`.",
    )
    partitions: tuple[PlanPartition, ...] = Field(
        min_length=1, max_length=100_000, description="In execution order."
    )
    versions: Mapping[Name, Annotated[str, Field(max_length=1000)]] = Field(
        default={}, description="Of the runtimes that the plan was measured with."
    )
    lanes: int = Field(default=1, ge=1, le=64, description="Partitions that may run at once.")
    instances: PlanInstances | None = Field(
        default=None, description="What was tuned for several requests at once."
    )

    def as_json(self) -> dict[str, Any]:
        """What was given."""
        return self.model_dump(mode="json", exclude_unset=True)


class TuneOptions(pydantic.BaseModel):
    """Options of one tuning run: the one place of their names, defaults, limits and descriptions."""

    model_config = STRICT

    tolerance: float = Field(
        default=1e-3,
        gt=0,
        le=1,
        description="Bound on the error of every output; none with --evaluate.",
    )
    metric: Metric = Field(default="max", description="max, l2, cosine or top1.")
    pareto: bool = Field(default=False, description="Also find the fastest plans at other errors.")
    evaluate: str | None = Field(
        default=None,
        min_length=1,
        max_length=1000,
        description="A metric of the task: top1, topk=5, map, text, embedding, perplexity or snr; here "
        "and in Python also a check of your own, as module:function.",
    )
    max_drop: float | None = Field(
        default=None,
        gt=0,
        lt=1,
        description="How much worse than the model itself it may be, relative to that: 0.01 is 1%.",
    )
    at_least: float | None = Field(
        default=None, description="The smallest value of what evaluate gives that passes."
    )
    at_most: float | None = Field(default=None, description="The largest.")
    dims: Mapping[Name, _Dim] = Field(
        default={},
        max_length=1000,
        description="Sizes of a free dimension, as batch=1, length=16,64 or length=1..512.",
    )
    shapes: tuple[Seen, ...] = Field(
        default=(),
        max_length=MOST_REQUESTS,
        description="Shapes seen in production; in a file one JSON line each.",
    )
    objective: Objective = Field(
        default="latency",
        description="What to tune for: latency, throughput or memory, or weights of them, as "
        "latency=0.5,throughput=0.3,memory=0.2.",
    )
    p99_ms: float | None = Field(
        default=None,
        gt=0,
        le=_HOUR_MS,
        description="With throughput: bound on the 99th percentile of a request's time, in milliseconds.",
    )
    max_latency_ms: float | None = Field(
        default=None,
        gt=0,
        le=_HOUR_MS,
        description="With memory: bound on the median time of a request, in milliseconds.",
    )
    pad_masks: Mapping[Name, Name] = Field(
        default={},
        max_length=100,
        description="Padding along a dimension that an input masks out where it is 0, as length=attention_mask.",
    )
    memory_limit_mib: float | None = Field(
        default=None, gt=0, le=2**30, description="With a range: the most memory of a process, in MiB."
    )
    time_limit_s: float | None = Field(
        default=None, gt=0, le=_WEEK_S, description="Seconds after which the best so far is taken."
    )
    threads: int | None = Field(
        default=None, ge=1, le=1024, description="Threads of one call [all cores]."
    )
    seed: int = Field(default=0, ge=0, le=MOST_SIZE, description="Seed of generated inputs.")
    plans: int = Field(
        default=4, ge=1, le=64, description="How many of a search's best plans are timed end to end."
    )
    strategy: Strategy = Field(
        default="optimal", description="optimal, greedy, priority, single or manual."
    )
    pins: tuple[_Placement, ...] = Field(
        default=(), max_length=1000, description="What must go to a target, as Conv=openvino."
    )
    bans: tuple[_Placement, ...] = Field(
        default=(), max_length=1000, description="What must not, as Resize=mnn."
    )
    max_partitions: int | None = Field(
        default=None, ge=1, le=MOST_SIZE, description="At most so many partitions."
    )
    max_devices: int | None = Field(
        default=None, ge=1, le=MOST_SIZE, description="At most so many devices."
    )
    min_partition_nodes: int = Field(
        default=1, ge=1, le=MOST_SIZE, description="No smaller partition than this."
    )
    plan: GivenPlan | None = Field(
        default=None, description="Apply this plan (or an artifact's) instead of searching."
    )
    fresh: bool = Field(default=False, description="Search again even where the result is known.")
    wait_for_quiet_s: float = Field(
        default=0.0,
        ge=0,
        le=86400,
        description="Seconds to wait in all until other processes leave the cores alone.",
    )
    wait_for_worker_s: float = Field(
        default=0.0, ge=0, le=_WEEK_S, description="Seconds to wait for a worker that has all targets."
    )

    @pydantic.field_validator("shapes", mode="before")
    @classmethod
    def _counted_requests(cls, entries: Any) -> Any:
        return counted_requests(entries)

    @pydantic.field_validator("evaluate")
    @classmethod
    def _known_metric(cls, text: str | None) -> str | None:
        try:
            if text is not None:
                parse_metric(text)
        except BadInputError as error:
            raise ValueError(str(error)) from None
        return text

    @pydantic.model_validator(mode="after")
    def _one_bound(self) -> Self:
        bounds = (self.max_drop, self.at_least, self.at_most)
        given = sum(bound is not None for bound in bounds)
        if self.evaluate is None and given:
            raise ValueError(
                "max_drop, at_least and at_most bound what evaluate returns; give that too"
            )
        if self.evaluate is not None and given != 1:
            raise ValueError("evaluate needs one bound: max_drop, at_least or at_most")
        return self

    @pydantic.model_validator(mode="after")
    def _bounds_fit(self) -> Self:
        goals = weights_of(self.objective)
        if self.p99_ms is not None and "throughput" not in goals:
            raise ValueError("p99_ms bounds throughput: give the objective throughput too")
        if self.max_latency_ms is not None and "memory" not in goals:
            raise ValueError("max_latency_ms bounds memory: give the objective memory too")
        return self

    def limit_s(self, weights_bytes: int) -> float:
        """Seconds after which the search ends; by default more for large weights, which compile slowly."""
        large_mib = max(0, weights_bytes - _LARGE_BYTES) / (1 << 20)
        return self.time_limit_s or _DEFAULT_LIMIT_S + _S_PER_LARGE_MIB * large_mib

    def constraints(self) -> Constraints:
        """The constraints that plans must keep.

        Raises:
            ConstraintError: a pin or a ban is not of its form.
        """
        # Imports onnx, which the help of the command line should not wait for.
        from collage.partitioner.search.constraints import Constraints

        return Constraints.parse(
            pins=self.pins,
            bans=self.bans,
            max_partitions=self.max_partitions,
            max_devices=self.max_devices,
            min_partition_nodes=self.min_partition_nodes,
        )

    @property
    def fixed_dims(self) -> dict[str, int] | None:
        """The size of each dimension that is given; None where shapes or several sizes of one are."""
        said = {name: read_dim(text) for name, text in self.dims.items()}
        if self.shapes or not all(dim.is_fixed for dim in said.values()):
            return None
        return {name: dim.low for name, dim in said.items()}

    @property
    def most_regions(self) -> int | None:
        """Number of known regions that end the search; None where a time limit does."""
        return _MOST_REGIONS if self.time_limit_s is None else None

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> TuneOptions:
        """Read options as the API sends them.

        Raises:
            OptionsError: an option is unknown or its value is not allowed; the message lists all faults.
        """
        if is_function(data.get("evaluate")):
            raise BadInputError(
                "evaluate=module:function runs code of the caller, so no server takes it: tune on your own "
                "machine with collage tune --evaluate, or name a built-in metric, as top1"
            )
        if (
            data.get("evaluate") is not None
        ):  # then it alone bounds plans, unless a tolerance is given too
            data = {"tolerance": NO_TOLERANCE, **data}
        return read_options(cls, data)

    def as_json(self) -> dict[str, Any]:
        """What was given, as `from_json` takes it."""
        return self.model_dump(mode="json", exclude_unset=True)


def read_options(kind: type[Options], data: Mapping[str, Any]) -> Options:
    """Options of some kind of run, as the API sends them.

    Raises:
        OptionsError: an option is unknown or its value is not allowed; the message lists all faults.
    """
    for name, value in data.items():
        try:
            plain_json(f"options.{name}", value, _MOST_BYTES)
        except BadInputError as error:
            raise OptionsError(str(error), [(f"options.{name}", str(error))]) from None
    try:
        # As JSON, where a list is a tuple; everything else stays strict.
        return kind.model_validate_json(plain_json("options", dict(data), _MOST_BYTES))
    except pydantic.ValidationError as error:
        faults = [
            (".".join(map(str, ("options", *fault["loc"]))), fault["msg"])
            for fault in error.errors(include_url=False, include_input=False)
        ]
        said = "; ".join(f"{where}: {message}" for where, message in faults[:_FAULTS_SHOWN])
        known = ", ".join(kind.model_fields)
        raise OptionsError(f"{said} (known options: {known})", faults) from None


def chosen_targets(given: Sequence[str], plan: GivenPlan | None) -> list[str]:
    """The targets that are given, else those of the plan to apply.

    Args:
        given: texts of targets.
        plan: the option `plan`.
    """
    return list(given) or plan_targets(plan)


def plan_targets(plan: GivenPlan | None) -> list[str]:
    """The targets that a plan names, each once."""
    return list(dict.fromkeys(part.target for part in plan.partitions)) if plan is not None else []
