"""A plan as JSON: the one text form, inside artifacts and alone.

    {"format": 1, "model_sha256": "…", "versions": {"openvino": "2026.4.1"},
     "partitions": [{"target": "…", "nodes": ["…"], "latency_us": 1.0}]}

Partitions stand in execution order, nodes in the model's order and by name. `latency_us` is what was
measured, or null. `"lanes": 2` says that two partitions may run at once, and `"instances": {"count": 2,
"threads": 1, "cores": 2}` that two requests do, on so many threads each. A partition may also say its
arithmetic (`"numbers": "bf16 inside the runtime"`) and who rewrote its nodes (`"prepared":
"dynamic_int8 by …"`).

Invariant: `decode_plan` gives only plans that `graph.plan_check` accepts, for the very model of the
text.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field

from collage.partitioner.candidate import Candidate, Instances, Plan, bits
from collage.partitioner.errors import BadInputError
from collage.partitioner.graph.model import Model
from collage.partitioner.graph.plan_check import check_plan
from collage.partitioner.target import Target

FORMAT = 1
RULE = "plan"
_MOST_LANES = 64
MOST_INSTANCES = 1024
_INSTANCES, _ROWS, _STAGES = ("count", "threads", "cores"), "rows", "stages"


@dataclass(frozen=True)
class PartitionNote:
    """What the text says of a partition beside its nodes and target."""

    # what products and convolutions are computed in; empty where unknown
    numbers: str = ""
    prepared: str = ""  # who rewrote its nodes into what; empty where they are the model's own


@dataclass(frozen=True)
class PlanText:
    """What the text says."""

    plan: Plan  # for the model at hand
    latency_us: tuple[float | None, ...]  # per partition what was measured, None where nothing was
    versions: Mapping[str, str] = field(default_factory=dict)  # of whatever made the plan, by name
    notes: tuple[PartitionNote, ...] = ()

    @property
    def prepared(self) -> tuple[int, ...]:
        """The nodes (bitset) of each partition that was rewritten."""
        pairs = zip(self.plan.partitions, self.notes, strict=True)
        return tuple(partition.nodes for partition, note in pairs if note.prepared)


def encode_plan(
    model: Model,
    plan: Plan,
    latency_us: Sequence[float | None] | None = None,
    versions: Mapping[str, str] | None = None,
    notes: Sequence[PartitionNote] | None = None,
) -> str:
    """The text of a plan for a model; equal plans give equal text.

    Raises:
        BadInputError: the plan is not one for this model.
    """
    check_plan(model.index, plan)
    times = [None] * len(plan.partitions) if latency_us is None else list(latency_us)
    said = [PartitionNote()] * len(plan.partitions) if notes is None else notes
    partitions = [
        {
            "target": str(partition.target),
            "nodes": [model.index.nodes[i].name for i in bits(partition.nodes)],
            "latency_us": time,
            **{key: text for key, text in asdict(note).items() if text},
        }
        for partition, time, note in zip(plan.partitions, times, said, strict=True)
    ]
    content: dict[str, object] = {
        "format": FORMAT,
        "model_sha256": model.sha256,
        "partitions": partitions,
        "versions": dict(versions or {}),
    }
    if plan.lanes > 1:
        content["lanes"] = plan.lanes
    if plan.instances is not None:
        said_of = asdict(plan.instances)
        content["instances"] = {
            k: n
            for k, n in said_of.items()
            if k in _INSTANCES or (k == _ROWS and n > 1) or (k == _STAGES and n)
        }
    return json.dumps(content, sort_keys=True, ensure_ascii=False, allow_nan=False)


def decode_plan(model: Model, text: str) -> PlanText:
    """Read a plan for a model.

    Raises:
        BadInputError: the text is damaged, of another format or for another model, or its plan does not
            cover the model or cannot be run in order.
    """
    content = _object(text)
    if content.get("format") != FORMAT:
        raise BadInputError(
            f"the plan has format {content.get('format')!r}; this version reads {FORMAT}"
        )
    if content.get("model_sha256") != model.sha256:
        raise BadInputError(
            "the plan was made for another model, or for other sizes (its SHA-256 differs): give each dimension the size or "
            "the range that it had then, or tune this model again"
        )
    partitions = content.get("partitions")
    if not isinstance(partitions, list) or not partitions:
        raise BadInputError("the plan has no list of partitions; it is damaged")
    position = {node.name: node.index for node in model.index.nodes}
    candidates = [_candidate(entry, i, position) for i, entry in enumerate(partitions)]
    plan = Plan(tuple(candidates), _lanes(content), _instances(content))
    stages = plan.instances.stages if plan.instances else ()
    if stages and sum(stages) != len(candidates):
        raise BadInputError(
            f"the plan has stages of {sum(stages)} partitions, and {len(candidates)} partitions"
        )
    check_plan(model.index, plan)
    versions = content.get("versions", {})
    if not isinstance(versions, dict):
        raise BadInputError("the plan's versions are not an object; it is damaged")
    times = tuple(_latency(entry, i) for i, entry in enumerate(partitions))
    notes = tuple(_note(entry) for entry in partitions)
    return PlanText(plan, times, {str(name): str(v) for name, v in versions.items()}, notes)


def _object(text: str) -> dict[str, object]:
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadInputError(f"the plan is not JSON: {error}") from None
    if not isinstance(content, dict):
        raise BadInputError("the plan is not a JSON object")
    return content


def _lanes(content: Mapping[str, object]) -> int:
    lanes = content.get("lanes", 1)
    if not isinstance(lanes, int) or isinstance(lanes, bool) or not 1 <= lanes <= _MOST_LANES:
        raise BadInputError(f"the plan has lanes {lanes!r}; give a number from 1 to {_MOST_LANES}")
    return lanes


def _instances(content: Mapping[str, object]) -> Instances | None:
    given = content.get("instances")
    if given is None:
        return None
    stated: Mapping[str, object] = given if isinstance(given, dict) else {}
    found = [*(stated.get(name) for name in _INSTANCES), stated.get(_ROWS, 1)]
    numbers = [n for n in found if type(n) is int and 1 <= n <= MOST_INSTANCES]
    if len(numbers) < len(found):
        raise BadInputError(
            f"the plan has instances {given!r}; give {', '.join(_INSTANCES)}, each from 1 to {MOST_INSTANCES}"
        )
    stages = stated.get(_STAGES, [])
    if not isinstance(stages, list) or not all(type(n) is int and n >= 1 for n in stages):
        raise BadInputError(f"the plan has stages {stages!r}; give how many partitions each has")
    count, threads, cores, rows = numbers
    return Instances(count, threads, cores, rows, tuple(stages))


def _candidate(entry: object, i: int, position: Mapping[str, int]) -> Candidate:
    if not isinstance(entry, dict):
        raise BadInputError(f"partition {i} of the plan is not an object; the plan is damaged")
    target, names = entry.get("target"), entry.get("nodes")
    if not isinstance(target, str) or not isinstance(names, list) or not names:
        raise BadInputError(f"partition {i} of the plan has no target or no nodes; the plan is damaged")
    mask = 0
    for name in names:
        if not isinstance(name, str) or name not in position:
            raise BadInputError(
                f"partition {i} of the plan names node {name!r}, which the model has not"
            )
        mask |= 1 << position[name]
    if mask.bit_count() != len(names):
        raise BadInputError(f"partition {i} of the plan names a node twice")
    return Candidate(mask, Target.parse(target), RULE)


def _latency(entry: Mapping[str, object], i: int) -> float | None:
    latency_us = entry.get("latency_us")
    if latency_us is None:
        return None
    number = isinstance(latency_us, (int, float)) and not isinstance(latency_us, bool)
    if not number or not math.isfinite(latency_us) or latency_us < 0:  # type: ignore[arg-type, operator]
        raise BadInputError(f"partition {i} of the plan has latency_us {latency_us!r}; it is damaged")
    return float(latency_us)  # type: ignore[arg-type]


def _note(entry: Mapping[str, object]) -> PartitionNote:
    return PartitionNote(str(entry.get("numbers", "")), str(entry.get("prepared", "")))
