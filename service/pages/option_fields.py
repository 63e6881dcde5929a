"""The options of a job as form fields, from the one place of their names, defaults and descriptions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from collage.metrics.names import METRICS
from collage.objective import GOALS
from collage.options import TuneOptions

Control = Literal["number", "integer", "check", "choice", "lines", "json", "text"]

# What most people set; all others are folded.
_COMMON = ("time_limit_s", "tolerance", "metric")
# A budget in what the model is for.
_TASK = ("evaluate", "max_drop", "at_least", "at_most")
# `dims` has fields of its own, one for each free dimension of the model; so have these others.
_ELSEWHERE = ("dims", "shapes", "pins", "bans", "plan")
_LABELS = {
    "time_limit_s": "Time limit (seconds)",
    "wait_for_worker_s": "Wait for a worker (seconds)",
    "wait_for_quiet_s": "Wait for quiet cores (seconds)",
    "max_partitions": "Most partitions",
    "max_devices": "Most devices",
    "min_partition_nodes": "Fewest nodes of a partition",
    "pareto": "Pareto front: also the fastest plans at other errors",
    "fresh": "Search again, even where the result is known",
    "plans": "Plans timed end to end",
    "p99_ms": "Bound on the 99th percentile (milliseconds)",
    "max_latency_ms": "Bound on the median latency (milliseconds)",
    "evaluate": "Metric of the task",
    "max_drop": "Largest drop, as a share",
    "at_least": "Smallest value that passes",
    "at_most": "Largest value that passes",
    "memory_limit_mib": "Limit of memory with a range of sizes (MiB)",
}

# Where the description speaks of the command line.
_HELPS = {
    "tolerance": "Bound on the error of every output, relative to its largest magnitude.",
    "evaluate": "One of the metrics proposed, with @OUTPUT for another output than the first. True labels go "
    "into the file of sample inputs, as labels; without them the model's own outputs are the truth.",
    "metric": "How the error of an output is measured.",
    "threads": "Of one call; empty means all cores.",
    "max_drop": "How much worse than the model itself it may be, relative to that: 0.01 is 1 %.",
    "at_least": "Of the metric itself; give this or a drop.",
    "at_most": "Of the metric itself, where less is better.",
}
_PROPOSED = {
    "evaluate": tuple("topk=5" if name == "topk" else name for name in METRICS),
    "objective": (*GOALS, "latency=0.5,throughput=0.3,memory=0.2"),
}


@dataclass(frozen=True)
class OptionField:
    """One control of the form."""

    name: str
    label: str
    help: str
    control: Control
    default: Any
    choices: tuple[str, ...] = ()
    proposed: tuple[str, ...] = ()
    least: float | None = None
    most: float | None = None


def label_of(option: str) -> str:
    """What the form calls an option."""
    return _LABELS.get(option, option.replace("_", " ").capitalize())


def common_fields() -> list[OptionField]:
    """The options that most people set."""
    fields = {field.name: field for field in _all_fields()}
    return [fields[name] for name in _COMMON if name in fields]


def rare_fields() -> list[OptionField]:
    """All other options of the API that have a plain control."""
    elsewhere = (*_COMMON, *_TASK, *_ELSEWHERE)
    return [field for field in _all_fields() if field.name not in elsewhere]


def task_fields() -> list[OptionField]:
    """The options of a budget in a metric of the task."""
    return [field for field in _all_fields() if field.name in _TASK]


def _all_fields() -> list[OptionField]:
    schema = TuneOptions.model_json_schema()
    definitions = schema.get("$defs", {})
    return [_field(name, _resolved(entry, definitions)) for name, entry in schema["properties"].items()]


def _resolved(entry: Mapping[str, Any], definitions: Mapping[str, Any]) -> dict[str, Any]:
    """A property with its references and its `null` alternative taken in."""
    flat = dict(entry)
    for alternative in entry.get("anyOf", ()):
        if alternative.get("type") != "null":
            flat.update(_resolved(alternative, definitions))
            break
    if "$ref" in flat:
        flat.update(definitions.get(str(flat["$ref"]).rsplit("/", 1)[-1], {}))
    return flat


def _field(name: str, entry: Mapping[str, Any]) -> OptionField:
    return OptionField(
        name=name,
        label=label_of(name),
        help=_HELPS.get(name, str(entry.get("description", ""))),
        control="text" if name in _PROPOSED else _control(entry),
        default=entry.get("default"),
        choices=tuple(str(each) for each in entry.get("enum", ())),
        proposed=_PROPOSED.get(name, ()),
        least=entry.get("minimum", entry.get("exclusiveMinimum")),
        most=entry.get("maximum", entry.get("exclusiveMaximum")),
    )


def _control(entry: Mapping[str, Any]) -> Control:
    if entry.get("enum"):
        return "choice"
    kind = entry.get("type")
    plain: dict[Any, Control] = {"boolean": "check", "integer": "integer", "number": "number"}
    if kind in plain:
        return plain[kind]
    if kind == "array":
        return "lines"
    return "json" if kind == "object" else "text"
