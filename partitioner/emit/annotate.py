"""The artifact: the normalized model, flat and standard, with its plan written on it.

Each node carries `collage.partition` and `collage.target` for readers and viewers. The model's metadata
decides: `collage.plan` (`plan_json`), and what the caller adds under `collage.`. Runtimes that fuse
nodes drop node metadata and keep the model's.

Invariants: an artifact is a valid ONNX model that computes what the model computes; equal input gives
equal bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import onnx_ir as ir

from collage.partitioner.candidate import Plan, bits
from collage.partitioner.emit import plan_json
from collage.partitioner.emit.plan_json import PartitionNote
from collage.partitioner.errors import BadInputError, ModelError
from collage.partitioner.graph import weights
from collage.partitioner.graph.model import Model
from collage.partitioner.wire_format import METADATA_PREFIX

PLAN_KEY = f"{METADATA_PREFIX}plan"
SOURCE_PLAN_KEY = f"{METADATA_PREFIX}source_plan"
PARTITION_KEY = f"{METADATA_PREFIX}partition"
TARGET_KEY = f"{METADATA_PREFIX}target"


@dataclass(frozen=True)
class ArtifactPlan:
    """What an artifact says."""

    model: Model  # the artifact as a model
    plan: Plan  # its partitions in execution order
    latency_us: tuple[float | None, ...]  # per partition what was measured, None where nothing was
    versions: Mapping[str, str]  # of whatever made the plan, by name
    # the model's metadata under `collage.`, the plan's text included
    metadata: Mapping[str, str] = field(repr=False)
    notes: tuple[PartitionNote, ...] = ()

    @property
    def text(self) -> str:
        """The plan as JSON for the model that was given, which may have other nodes."""
        return self.metadata.get(SOURCE_PLAN_KEY, self.metadata[PLAN_KEY])


def annotate(
    model: Model,
    plan: Plan,
    metadata: Mapping[str, str],
    destination: Path,
    *,
    latency_us: Sequence[float | None] | None = None,
    versions: Mapping[str, str] | None = None,
    notes: Sequence[PartitionNote] | None = None,
) -> Path:
    """Write the artifact; weights over 1 GiB together go to `<name>.weights` beside it.

    Args:
        metadata: more entries for the model's metadata, under keys that start with `collage.`.
        latency_us: per partition what was measured.
        versions: of the programs that made the plan, by name.
        notes: per partition its arithmetic, and whether its nodes were rewritten.

    Raises:
        BadInputError: the plan is not one for this model, or a key does not start with `collage.`.
    """
    text = plan_json.encode_plan(model, plan, latency_us, versions, notes)
    proto = weights.described_structure(model.ir)
    for node in proto.graph.node:
        # An artifact that is annotated again must not keep its old marks.
        del node.metadata_props[:]
    for number, partition in enumerate(plan.partitions):
        for i in bits(partition.nodes):
            marks = proto.graph.node[i].metadata_props
            marks.add(key=PARTITION_KEY, value=str(number))
            marks.add(key=TARGET_KEY, value=str(partition.target))
    for key, value in sorted({**metadata, PLAN_KEY: text}.items()):
        if not key.startswith(METADATA_PREFIX):
            raise BadInputError(f"metadata key {key!r} does not start with {METADATA_PREFIX!r}")
        proto.metadata_props.add(key=key, value=value)
    proto.producer_name = "collage"
    destination.parent.mkdir(parents=True, exist_ok=True)
    weights.write(proto, list(model.ir.graph.initializers.values()), destination)
    return destination


def _is_plain(path: Path) -> bool:
    """Whether a file that is not normalized is an ONNX model without a plan."""
    try:
        model = ir.load(path)
    except Exception:  # no ONNX model at all
        return False
    return len(model.graph) > 0 and PLAN_KEY not in model.metadata_props


def read_plan(path: Path | str, *, mapped: bool = False) -> ArtifactPlan:
    """Open an artifact and read its plan.

    Args:
        mapped: as for `Model.open`.

    Raises:
        ModelError: the file is not a normalized ONNX model.
        BadInputError: it holds no plan, or a plan that is damaged or not for this model.
    """
    name = Path(path).name
    plain = BadInputError(f"{name} is a plain ONNX model; make an artifact with collage tune")
    try:
        model = Model.open(path, mapped=mapped)
    except ModelError as error:
        if _is_plain(Path(path)):
            raise plain from None
        raise ModelError(f"{name} is no artifact: {error}; make one with collage tune") from None
    found = model.ir.metadata_props
    if PLAN_KEY not in found:
        raise plain
    try:
        content = plan_json.decode_plan(model, found[PLAN_KEY])
    except BadInputError as error:
        raise type(error)(f"{Path(path).name}: {error}") from error
    metadata = {k: v for k, v in found.items() if k.startswith(METADATA_PREFIX)}
    return ArtifactPlan(
        model=model,
        plan=content.plan,
        latency_us=content.latency_us,
        versions=content.versions,
        metadata=metadata,
        notes=content.notes,
    )
