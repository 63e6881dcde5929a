"""Partitions whose targets rewrite their nodes are rewritten in the model before a plan is emitted.

Terms: a target that *prepares* (int8, see `Backend.prepare`) is measured on rewritten nodes. The
artifact has those very nodes in the partition's place, so that any runtime computes the same file.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from collage.backends.contract import Arithmetic, CompileContext, SubModel, ready
from collage.backends.numerics.tensor_files import content
from collage.backends.registry import backend_of, resolve
from collage.backends.sandbox.run import ChildFailed, ChildLimits
from collage.model.reference import Sample
from collage.model.sub_models import RegionFiles
from collage.partitioner.candidate import Plan
from collage.partitioner.emit.plan_json import PartitionNote
from collage.partitioner.emit.splice import splice
from collage.partitioner.errors import NoPlanError
from collage.partitioner.graph.model import Model
from collage.partitioner.target import Target
from collage.runner import Runner, TargetFacts

_TIMEOUT_S = 1800.0


@dataclass(frozen=True)
class PreparedPlan:
    """A plan on the model as it is emitted."""

    model: Model  # with rewritten partitions; the given one where there are none
    plan: Plan  # the same partitions on it
    notes: tuple[PartitionNote, ...]  # of each partition
    regions: RegionFiles


def prepared_plan(
    plan: Plan,
    regions: RegionFiles,
    work_dir: Path,
    threads: int,
    runner: Runner,
    cache_dir: Path | None = None,
    cancel: threading.Event | None = None,
) -> PreparedPlan:
    """Rewrite the partitions of a plan whose targets prepare, in a child.

    Args:
        plan: for the model of `regions`.
        work_dir: a folder for what is made; it lives as long as the result.
        runner: where they are rewritten, as they were for measuring.
        cache_dir: where what was rewritten while measuring is kept.

    Raises:
        NoPlanError: a partition cannot be rewritten once more.
    """
    notes = tuple(note_of(runner.facts(partition.target)) for partition in plan.partitions)
    positions = [i for i, note in enumerate(notes) if note.prepared]
    if not positions:
        return PreparedPlan(regions.model, plan, notes, regions)
    parts = [(regions.get(plan.partitions[i].nodes), plan.partitions[i].target) for i in positions]
    folder = work_dir / "prepared"
    folder.mkdir(parents=True)
    try:
        made = runner.run(
            prepare_parts,
            parts,
            folder.resolve(),
            threads,
            cache_dir.resolve() if cache_dir is not None else None,
            limits=ChildLimits(timeout_s=_TIMEOUT_S),
            cancel=cancel,
        )
    except ChildFailed as failure:
        raise NoPlanError(f"a partition could not be rewritten once more: {failure.reason}") from None
    replacements = {i: model.path for i, model in zip(positions, made, strict=True)}
    spliced = splice(regions.model, plan, replacements, folder / "model.onnx")
    done = {spliced.plan.partitions[i].nodes for i in positions}
    return PreparedPlan(
        spliced.model,
        spliced.plan,
        notes,
        RegionFiles(spliced.model, folder / "regions", prepared=done),
    )


def note_of(facts: TargetFacts) -> PartitionNote:
    """What the artifact says of a partition on such a target."""
    found = facts.preparation
    return PartitionNote(said(facts.arithmetic), found.by if found is not None else "")


def computed(facts: TargetFacts) -> dict[str, str]:
    """The same for the report, and what such numbers are good for."""
    return {**asdict(note_of(facts)), "sense": facts.arithmetic.sense}


def said(arithmetic: Arithmetic) -> str:
    """`f32`, `int8 in the file`, `bf16 inside the runtime`."""
    if arithmetic == Arithmetic():
        return arithmetic.numbers
    where = "in the file" if arithmetic.in_file else "inside the runtime"
    return f"{arithmetic.numbers} {where}"


def mixes_rows(plan: Plan) -> bool:
    """Whether the rows of a call, padded ones too, change how others are rounded."""
    return any(backend_of(target).mixes_rows(target) for target in plan.targets)


def calibrates(targets: Sequence[TargetFacts]) -> bool:
    """True when one of these targets needs samples of its partitions' inputs."""
    found = (facts.preparation for facts in targets)
    return any(preparation is not None and preparation.calibrated for preparation in found)


def least_opset(targets: Sequence[TargetFacts]) -> int:
    """The oldest opset in which all of these targets can write their nodes; 0 for any."""
    found = (facts.preparation for facts in targets)
    return max((p.least_opset for p in found if p is not None), default=0)


def preparation_key(facts: TargetFacts, model: Model, samples: Sequence[Sample]) -> str:
    """What a target's preparation adds to the keys of costs; empty where it has none.

    It is a digest of the preparing code and, where that calibrates, of the model and the samples.
    """
    found = facts.preparation
    if found is None:
        return ""
    digest = hashlib.sha256(found.by.encode())
    if found.calibrated:
        digest.update(model.sha256.encode())
    for sample in samples if found.calibrated else ():
        for name, value in sorted(sample.items()):
            digest.update(f"{name} {value.dtype} {value.shape}".encode())
            digest.update(content(value))
    return f"; prepared {digest.hexdigest()[:16]}"


def prepare_parts(
    parts: Sequence[tuple[SubModel, Target]], folder: Path, threads: int, cache_dir: Path | None
) -> list[SubModel]:
    """Rewrite sub-models for their targets; runs in the child."""
    made = []
    for number, (model, target) in enumerate(parts):
        work = folder / f"{number}"
        work.mkdir()
        made.append(ready(resolve(target), model, target, CompileContext(threads, work, cache_dir)))
    return made
