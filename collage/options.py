"""The options of a tuning run, as one frozen value for the command line, HTTP and Python."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import pydantic
from pydantic import Field

from collage.backends.numerics.comparison import Metric
from collage.partitioner.errors import BadInputError

if TYPE_CHECKING:
    from collage.partitioner.search.constraints import Constraints

Strategy = Literal["optimal", "greedy", "priority", "single", "manual"]
# Without a time limit the search ends after so many seconds or known regions; see docs/tune.md.
_DEFAULT_LIMIT_S, _LARGE_BYTES, _S_PER_LARGE_MIB = 150.0, 100 << 20, 0.5
_MOST_REGIONS = 60
_LOCAL_ONLY = ("evaluate", "at_least", "at_most")


class TuneOptions(pydantic.BaseModel, frozen=True, extra="forbid", strict=True):
    """Options of one tuning run: the one place of their names, defaults, limits and descriptions."""

    tolerance: float = Field(
        default=1e-3,
        gt=0,
        le=1,
        description="Bound on the error of every output; none with --evaluate.",
    )
    metric: Metric = Field(default="max", description="max, l2, cosine or top1.")
    pareto: bool = Field(default=False, description="Also find the fastest plans at other errors.")
    dims: Mapping[str, int] = Field(default={}, description="Size of a free dimension, as batch=1.")
    time_limit_s: float | None = Field(
        default=None, gt=0, description="Seconds after which the best so far is taken."
    )
    threads: int | None = Field(
        default=None, ge=1, le=1024, description="Threads of one call [all cores]."
    )
    seed: int = Field(default=0, ge=0, description="Seed of generated inputs.")
    plans: int = Field(
        default=4, ge=1, le=64, description="How many of a search's best plans are timed end to end."
    )
    strategy: Strategy = Field(
        default="optimal", description="optimal, greedy, priority, single or manual."
    )
    pins: tuple[str, ...] = Field(default=(), description="What must go to a target, as Conv=openvino.")
    bans: tuple[str, ...] = Field(default=(), description="What must not, as Resize=mnn.")
    max_partitions: int | None = Field(default=None, ge=1, description="At most so many partitions.")
    max_devices: int | None = Field(default=None, ge=1, description="At most so many devices.")
    min_partition_nodes: int = Field(default=1, ge=1, description="No smaller partition than this.")
    plan: Mapping[str, Any] | None = Field(
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
        default=0.0, ge=0, description="Seconds to wait for a worker that has all targets."
    )

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
    def most_regions(self) -> int | None:
        """Number of known regions that end the search; None where a time limit does."""
        return _MOST_REGIONS if self.time_limit_s is None else None

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> TuneOptions:
        """Read options as the API sends them.

        Raises:
            BadInputError: an option is unknown or its value is not allowed; the message lists all faults.
        """
        if not data.keys().isdisjoint(_LOCAL_ONLY):
            raise BadInputError(
                "evaluate runs code of the caller, so no server takes it: tune on your own machine with "
                "collage tune --evaluate, or bound the error with tolerance and metric"
            )
        try:
            # A JSON list is the only way to write a tuple; everything else stays strict.
            lists = {k: tuple(v) if isinstance(v, list) else v for k, v in data.items()}
            return cls.model_validate(lists)
        except pydantic.ValidationError as error:
            faults = "; ".join(
                f"{'.'.join(str(part) for part in fault['loc'])}: {fault['msg']}"
                for fault in error.errors()
            )
            known = ", ".join(cls.model_fields)
            raise BadInputError(f"options: {faults} (known options: {known})") from None


def chosen_targets(given: Sequence[str], plan: Mapping[str, Any] | None) -> list[str]:
    """The targets that are given, else those of the plan to apply.

    Args:
        given: texts of targets.
        plan: the option `plan`.
    """
    return list(given) or plan_targets(plan or {})


def plan_targets(plan: Mapping[str, Any]) -> list[str]:
    """The targets that a plan names, each once; none where it is damaged, which tuning reports."""
    parts = plan.get("partitions")
    entries = parts if isinstance(parts, list) else []
    named = [entry.get("target") for entry in entries if isinstance(entry, dict)]
    return list(dict.fromkeys(text for text in named if isinstance(text, str)))
