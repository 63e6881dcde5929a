"""The plan of a watched artifact, as whole and in blocks, ready to be timed in several environments."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from collage.artifact.artifact import read_report
from collage.backends.numerics.reference import table_bounds
from collage.backends.numerics.seeded import seeded_inputs
from collage.backends.numerics.tensor_files import write_samples
from collage.environments.work import Work, WorkStep
from collage.model.reference import Reference
from collage.model.sub_models import RegionFiles
from collage.partitioner.candidate import bits
from collage.partitioner.emit.annotate import read_plan
from collage.partitioner.graph.linear_order import line
from collage.partitioner.graph.model import Model

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
        model_sha256: of the model.
        threads: of one call.
    """

    whole: Work
    cut: Work
    blocks: tuple[Block, ...]
    report: dict[str, Any]
    model_sha256: str
    threads: int
    regions: RegionFiles  # keeps the files


def watched_plan(artifact: Path, work_dir: Path, threads: int) -> WatchedPlan:
    """Read an artifact and make its sub-models, samples and reference values.

    Args:
        threads: of one call.

    Raises:
        BadInputError: the file is no artifact.
    """
    stored = read_plan(artifact)
    model, index = stored.model, stored.model.index
    inputs = tuple(index.values[name] for name in index.inputs)
    outputs = tuple(name for name in index.outputs if name in index.producer)
    sample = seeded_inputs(inputs, 0, table_bounds(index))
    reference = Reference(model, [sample], work_dir / "reference")
    samples, expected = work_dir / "samples.npz", work_dir / "expected.npz"
    write_samples(samples, reference.samples)
    write_samples(expected, reference.expected(outputs))
    done = [p.nodes for p, n in zip(stored.plan.partitions, stored.notes, strict=True) if n.prepared]
    regions = RegionFiles(model, work_dir / "regions", prepared=done)

    def work(steps: list[tuple[int, str]], lanes: int) -> Work:
        made = tuple(WorkStep(regions.get(nodes), target) for nodes, target in steps)
        return Work(made, inputs, outputs, samples, expected, lanes)

    whole = [(p.nodes, str(p.target)) for p in stored.plan.partitions]
    each = max(1, _BLOCKS // len(whole))
    cut = [
        (part, target)
        for nodes, target in whole
        for part in ([nodes] if nodes in done else _blocks(model, nodes, each))
    ]
    return WatchedPlan(
        whole=work(whole, stored.plan.lanes),
        cut=work(cut, 1),
        blocks=tuple(_block(model, nodes, target) for nodes, target in cut),
        report=read_report(artifact),
        model_sha256=model.sha256,
        threads=threads,
        regions=regions,
    )


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
