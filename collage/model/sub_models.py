"""Sub-graphs as files: each is extracted when it is first needed, and given to children by path.

Invariants: the files of a sub-model stay while the object that `get` returned lives. No path is given
to two sub-models, since runtimes remember by path what they compiled.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from collage.backends.contract import SubModel
from collage.backends.numerics.tensor_files import write_samples
from collage.disk_space import DiskBudget, remove, size_bytes
from collage.partitioner.candidate import Candidate
from collage.partitioner.emit.extract import extract
from collage.partitioner.graph.model import Model

Values = Callable[[Sequence[str]], Sequence[Mapping[str, np.ndarray]]]


@dataclass
class _Kept:
    model: SubModel
    # Callers get a copy: it dies when the sub-model is no longer used.
    lent: Callable[[], SubModel | None] = lambda: None


class RegionFiles:
    """Extracts sub-graphs of one model into a folder on demand; safe from several threads.

    Args:
        directory: where the files go.
        calibrate: per sample the values named, for targets that calibrate; None where none does.
        prepared: node sets that were rewritten for their targets when the artifact was made.
        disk_budget: how much may stay on disk; None for no bound. No runtime may run while one is
            extracted.
        mapped: whether large weights lie beside each model at any size, so that runtimes map them.
    """

    def __init__(
        self,
        model: Model,
        directory: Path,
        calibrate: Values | None = None,
        prepared: Collection[int] = (),
        disk_budget: DiskBudget | None = None,
        *,
        mapped: bool = False,
    ) -> None:
        self.model = model
        self._mapped = mapped
        self._directory = directory
        self._calibrate = calibrate
        self._prepared = frozenset(prepared)
        self._disk_budget = disk_budget
        self._lock = threading.Lock()
        self._extracted = 0
        self._kept: dict[int, _Kept] = {}  # what was used last stands last

    def get(self, nodes: int) -> SubModel:
        """The sub-model of a node set (bitset); its files stay while the result lives."""
        with self._lock:
            kept = self._kept.pop(nodes, None)
            if kept is None:
                self._evict()
                kept = _Kept(self._extract(nodes))
            lent = kept.lent() or replace(kept.model)
            kept.lent = weakref.ref(lent)
            self._kept[nodes] = kept
            return lent

    def of(self, partition: Candidate) -> SubModel:
        """The sub-model of a partition of a plan."""
        return self.get(partition.nodes)

    def drop(self, nodes: int) -> None:
        """Delete the files of a sub-model that is no longer used."""
        with self._lock:
            kept = self._kept.pop(nodes, None)
        if kept is not None:
            remove(kept.model.path.parent)

    def _extract(self, nodes: int) -> SubModel:
        folder = self._directory / f"region-{self._extracted}"
        self._extracted += 1
        folder.mkdir(parents=True)
        made = extract(self.model, nodes, folder, mapped=self._mapped)
        samples = None
        if self._calibrate is not None:
            samples = folder / "calibration.npz"
            write_samples(samples, self._calibrate([spec.name for spec in made.inputs]))
        return SubModel(made.path, made.inputs, made.outputs, samples, nodes in self._prepared)

    def _evict(self) -> None:
        if self._disk_budget is None:
            return
        self._disk_budget.evict_compiled()
        sizes = {nodes: size_bytes(kept.model.path.parent) for nodes, kept in self._kept.items()}
        excess = sum(sizes.values()) - self._disk_budget.most_bytes
        for nodes, size in sizes.items():
            if excess > 0 and self._kept[nodes].lent() is None:
                remove(self._kept.pop(nodes).model.path.parent)
                excess -= size
