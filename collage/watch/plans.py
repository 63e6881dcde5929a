"""The plan of a watched artifact, as whole and in blocks, ready to be timed in several environments."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from collage.artifact.artifact import read_report
from collage.artifact.verification import VERIFICATION_KEY
from collage.artifact.verify import sample_of
from collage.backends.numerics.reference import table_bounds
from collage.backends.numerics.tensor_files import write_samples
from collage.environments.work import Work, WorkStep
from collage.model.binding import bind
from collage.model.reference import Reference
from collage.model.sub_models import RegionFiles
from collage.partitioner.candidate import Plan, bits
from collage.partitioner.emit.annotate import ArtifactPlan, read_plan
from collage.partitioner.emit.plan_json import decode_plan
from collage.partitioner.graph.linear_order import line
from collage.partitioner.graph.model import Model
from collage.partitioner.target import Target
from collage.shapes.classes import SHAPES_KEY, ServedShapes, extent

# So many blocks an artifact is cut in, to say where a change is.
_BLOCKS = 8


@dataclass(frozen=True)
class Block:
    """A part of a partition."""

    nodes: tuple[str, ...]
    operators: str
    target: str


@dataclass(frozen=True)
class WatchedPlan:
    """What is timed of an artifact.

    Args:
        whole: its plan.
        cut: the same in more partitions; the last positions of each are `blocks`.
        blocks: what each step of `cut` is.
        report: the artifact's.
        threads: of one call.
    """

    whole: Work
    cut: Work
    blocks: tuple[Block, ...]
    report: dict[str, Any]
    threads: int
    regions: RegionFiles  # keeps the files


@dataclass(frozen=True)
class _Chosen:
    """What an artifact is measured with.

    Args:
        plan: of an artifact of a range of sizes, that for the shape with the most work.
        sizes: of that shape; None where no dimension is free.
        done: the partitions (bitsets) whose nodes are rewritten already.
        proof: the reference values by which `load` verifies this plan, as text.
    """

    plan: Plan
    sizes: Mapping[str, int] | None
    done: tuple[int, ...]
    proof: str | None


def targets_of(artifact: Path) -> tuple[Target, ...]:
    """The targets of the plan that is measured.

    Raises:
        BadInputError: the file is no artifact.
    """
    return tuple(partition.target for partition in _chosen(read_plan(artifact)).plan.partitions)


def watched_plan(
    artifact: Path, work_dir: Path, threads: int, cancel: threading.Event | None = None
) -> WatchedPlan:
    """Read an artifact and make its sub-models, samples and reference values.

    Args:
        threads: of one call.
        cancel: stops it when set.

    Raises:
        BadInputError: the file is no artifact, or its model does not run on its inputs.
        VerificationError: its reference values are damaged.
        CancelledError: `cancel` was set.
    """
    stored = read_plan(artifact)
    chosen, model = _chosen(stored), stored.model
    if chosen.sizes is not None:
        model, _ = bind(model, work_dir / "model", chosen.sizes, cancel)
    index = model.index
    inputs = tuple(index.values[name] for name in index.inputs)
    outputs = tuple(name for name in index.outputs if name in index.producer)
    sample = sample_of(chosen.proof, inputs, table_bounds(index))
    reference = Reference(model, [sample], work_dir / "reference", cancel=cancel)
    samples, expected = work_dir / "samples.npz", work_dir / "expected.npz"
    write_samples(samples, reference.samples)
    write_samples(expected, reference.expected(outputs))
    regions = RegionFiles(model, work_dir / "regions", prepared=chosen.done)

    def work(steps: list[tuple[int, str]], lanes: int) -> Work:
        made = tuple(WorkStep(regions.get(nodes), target) for nodes, target in steps)
        return Work(made, inputs, outputs, samples, expected, lanes)

    whole = [(p.nodes, str(p.target)) for p in chosen.plan.partitions]
    each = max(1, _BLOCKS // len(whole))
    cut = [
        (part, target)
        for nodes, target in whole
        for part in ([nodes] if nodes in chosen.done else _blocks(model, nodes, each))
    ]
    return WatchedPlan(
        whole=work(whole, chosen.plan.lanes),
        cut=work(cut, 1),
        blocks=tuple(_block(model, nodes, target) for nodes, target in cut),
        report=read_report(artifact),
        threads=threads,
        regions=regions,
    )


def _chosen(stored: ArtifactPlan) -> _Chosen:
    if SHAPES_KEY not in stored.metadata:
        pairs = zip(stored.plan.partitions, stored.notes, strict=True)
        done = tuple(partition.nodes for partition, note in pairs if note.prepared)
        return _Chosen(stored.plan, None, done, stored.metadata.get(VERIFICATION_KEY))
    served = ServedShapes.from_text(stored.metadata[SHAPES_KEY])
    # As in tuning, that of most of the work stands for all.
    sizes = max(served.space.shapes, key=lambda shape: shape.weight * extent(shape.sizes)).sizes
    text = served.classes[served.class_of(sizes)].plan.plan
    proof = next((p.plan for p in served.proofs if dict(p.sizes) == dict(sizes)), None)
    content = decode_plan(stored.model, text)
    return _Chosen(content.plan, sizes, content.prepared, proof)


def _blocks(model: Model, nodes: int, count: int) -> list[int]:
    """A partition in about so many stretches, cut where few values cross."""
    laid = line(model.index, nodes)
    size = len(laid.order) / count
    wanted = [size * i for i in range(1, count)]
    cuts = {min(laid.cuts, key=lambda p: abs(p - place)) for place in wanted}
    places = sorted({0, *cuts, len(laid.order)})
    return [laid.run(a, b) for a, b in itertools.pairwise(places)]


def _block(model: Model, nodes: int, target: str) -> Block:
    members = [model.index.nodes[i] for i in bits(nodes)]
    kinds = list(dict.fromkeys(node.op for node in members))
    shown = " ".join(kinds[:4]) + (" …" if len(kinds) > 4 else "")
    return Block(tuple(node.name for node in members), shown, target)
