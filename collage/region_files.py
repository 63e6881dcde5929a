"""Sub-graphs as files: each is extracted once per tuning run or load, and handed to children by path."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

import numpy as np

from backends.contract import SubModel
from backends.samples import write_samples
from partitioner.extract import extract
from partitioner.model import Model

Values = Callable[[Sequence[str]], Sequence[Mapping[str, np.ndarray]]]


class RegionFiles:
    """Extracts sub-graphs of one model into a folder on demand; safe from several threads.

    Args:
        model: the model.
        directory: where the files go.
        calibrate: per sample the values named, for targets that calibrate; None where none does.
        prepared: node sets that were rewritten for their targets when the artifact was made.
    """

    def __init__(
        self,
        model: Model,
        directory: Path,
        calibrate: Values | None = None,
        prepared: Collection[int] = (),
    ) -> None:
        self.model = model
        self._directory = directory
        self._calibrate = calibrate
        self._prepared = frozenset(prepared)
        self._lock = threading.Lock()
        self._made: dict[int, SubModel] = {}

    def get(self, nodes: int) -> SubModel:
        """The sub-model of a node set (bitset)."""
        with self._lock:
            if nodes not in self._made:
                folder = self._directory / f"region-{len(self._made)}"
                folder.mkdir(parents=True)
                made = extract(self.model, nodes, folder)
                samples = None
                if self._calibrate is not None:
                    samples = folder / "calibration.npz"
                    write_samples(samples, self._calibrate([spec.name for spec in made.inputs]))
                self._made[nodes] = SubModel(
                    made.path, made.inputs, made.outputs, samples, nodes in self._prepared
                )
            return self._made[nodes]
