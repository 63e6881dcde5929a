"""What a caller of `tune` may choose, as one frozen value shared by the command line, the API and Python."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import pydantic

from collage.backends.numerics.comparison import Metric
from collage.partitioner.errors import BadInputError
from collage.partitioner.search.constraints import Constraints

Strategy = Literal["optimal", "greedy", "priority", "single", "manual"]
# Without a time limit, looking for better plans ends after so long, or when so many regions are known; see docs/tune.md.
_DEFAULT_LIMIT_S, _LARGE_BYTES, _S_PER_LARGE_MIB = 150.0, 100 << 20, 0.5
_MOST_REGIONS = 60
_LOCAL_ONLY = ("evaluate", "at_least", "at_most")


class TuneOptions(pydantic.BaseModel, frozen=True, extra="forbid", strict=True):
    """Options of one tuning run.

    Args:
        tolerance: bound on the error of every output, in the unit of `metric`.
        metric: how an output's error is measured; `max` is relative to its largest magnitude.
        pareto: also look for the fastest plans at other errors, and report the front.
        dims: sizes of free dimensions by name, or by `input:axis`.
        time_limit_s: stop looking for better plans after this many seconds; None for no limit.
        threads: threads of one call; None for the number of cores given to this process.
        seed: seed of generated inputs.
        plans: how many best plans of a search are measured end to end.
        strategy: `optimal` searches; the others give what their name says, measured the same way.
        pins: what must go to a target, as `Conv=openvino`, `/encoder/*=mnn` or `a..b=openvino`.
        bans: what must not go to a target, in the same form.
        max_partitions: at most so many partitions.
        max_devices: at most so many distinct devices.
        min_partition_nodes: no partition smaller than this, unless it is the whole graph.
        plan: a plan to apply instead of searching (the JSON that `plan` gives out).
        fresh: search again even where the database knows what such a search found.
        wait_for_worker_s: how long to wait, where workers elsewhere measure, for one that has all targets.
    """

    tolerance: float = pydantic.Field(default=1e-3, gt=0, le=1)
    metric: Metric = "max"
    pareto: bool = False
    dims: Mapping[str, int] = {}
    time_limit_s: float | None = pydantic.Field(default=None, gt=0)
    threads: int | None = pydantic.Field(default=None, ge=1, le=1024)
    seed: int = pydantic.Field(default=0, ge=0)
    plans: int = pydantic.Field(default=4, ge=1, le=64)
    strategy: Strategy = "optimal"
    pins: tuple[str, ...] = ()
    bans: tuple[str, ...] = ()
    max_partitions: int | None = pydantic.Field(default=None, ge=1)
    max_devices: int | None = pydantic.Field(default=None, ge=1)
    min_partition_nodes: int = pydantic.Field(default=1, ge=1)
    plan: Mapping[str, Any] | None = None
    fresh: bool = False
    wait_for_worker_s: float = pydantic.Field(default=0.0, ge=0)

    def limit_s(self, weights_bytes: int) -> float:
        """Seconds after which no better plan is looked for; by default more where large weights compile slowly."""
        large_mib = max(0, weights_bytes - _LARGE_BYTES) / (1 << 20)
        return self.time_limit_s or _DEFAULT_LIMIT_S + _S_PER_LARGE_MIB * large_mib

    def constraints(self) -> Constraints:
        """What plans must keep to.

        Raises:
            ConstraintError: a pin or a ban is not of its form.
        """
        return Constraints.parse(
            pins=self.pins,
            bans=self.bans,
            max_partitions=self.max_partitions,
            max_devices=self.max_devices,
            min_partition_nodes=self.min_partition_nodes,
        )

    @property
    def most_regions(self) -> int | None:
        """So many known regions are enough; None where a time limit says what is."""
        return _MOST_REGIONS if self.time_limit_s is None else None

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> TuneOptions:
        """Read options as the API sends them.

        Raises:
            BadInputError: an option is unknown or its value is not allowed; all faults are listed.
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
    """The targets given; where none is, those that the plan to apply names.

    Args:
        given: texts of targets.
        plan: the option `plan`.
    """
    return list(given) or plan_targets(plan or {})


def plan_targets(plan: Mapping[str, Any]) -> list[str]:
    """The targets that a plan names, each once; none where it is damaged, which tuning will say."""
    parts = plan.get("partitions")
    entries = parts if isinstance(parts, list) else []
    named = [entry.get("target") for entry in entries if isinstance(entry, dict)]
    return list(dict.fromkeys(text for text in named if isinstance(text, str)))
