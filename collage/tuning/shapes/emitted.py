"""The model as an artifact holds it: with the rewritten partitions of its plans in their place."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from collage.model.binding import bind
from collage.model.free_regions import FreeRegions, Key, key_of
from collage.model.sub_models import RegionFiles
from collage.partitioner.candidate import Candidate, Plan, bits
from collage.partitioner.emit.splice import splice
from collage.partitioner.graph.model import Model
from collage.tuning.shapes.at_shape import AtShape


@dataclass(frozen=True)
class Emitted:
    """A model with free dimensions that holds rewritten partitions.

    Args:
        model: as it is emitted; the given one where nothing is rewritten.
        given: as it was tuned.
        regions: sub-models of the emitted one.
        rewritten: of each rewritten partition its nodes in the emitted model.
    """

    model: Model
    given: Model
    regions: RegionFiles
    rewritten: Mapping[Key, int]

    def plan(self, plan: Plan) -> Plan:
        """A plan for the given model as one for the emitted model; both have the form that was emitted."""
        if not self.rewritten:
            return plan
        names = [node.name for node in self.given.index.nodes]
        place = {node.name: node.index for node in self.model.index.nodes}
        partitions = []
        for one in plan.partitions:
            key = key_of(one)
            kept = sum(1 << place[names[i]] for i in bits(one.nodes)) if key is None else 0
            nodes = kept if key is None else self.rewritten[key]
            partitions.append(Candidate(nodes, one.target, one.rule))
        return Plan(tuple(partitions), plan.lanes)

    def at(
        self, shape: AtShape, folder: Path, cancel: threading.Event | None
    ) -> tuple[Model, RegionFiles]:
        """The emitted model bound to a representative shape, and its sub-models there."""
        if not self.rewritten:
            return shape.bound.model, shape.exact
        model, _ = bind(self.model, folder / "model", shape.bound.shape.sizes, cancel)
        done = self.rewritten.values()
        return model, RegionFiles(model, folder / "regions", prepared=done, mapped=True)


def emitted(regions: FreeRegions, plan: Plan, folder: Path) -> Emitted:
    """The model with the rewritten partitions of a plan.

    Args:
        regions: sub-models of the given model, those of the plan rewritten.
        plan: one of several of one form.
        folder: where the files go.
    """
    keys = {i: key for i, one in enumerate(plan.partitions) if (key := key_of(one)) is not None}
    if not keys:
        return Emitted(regions.model, regions.model, regions, {})
    folder.mkdir(parents=True)
    paths = {i: regions.of(plan.partitions[i]).path for i in keys}
    spliced = splice(regions.model, plan, paths, folder / "model.onnx")
    rewritten = {key: spliced.plan.partitions[i].nodes for i, key in keys.items()}
    own = RegionFiles(spliced.model, folder / "regions", prepared=rewritten.values(), mapped=True)
    return Emitted(spliced.model, regions.model, own, rewritten)
