"""Sub-graphs as files: each is extracted once per tuning run or load, and handed to children by path."""

from __future__ import annotations

import threading
from pathlib import Path

from backends.contract import SubModel
from partitioner.extract import extract
from partitioner.model import Model


class RegionFiles:
    """Extracts sub-graphs of one model into a folder on demand; safe from several threads."""

    def __init__(self, model: Model, directory: Path) -> None:
        self.model = model
        self._directory = directory
        self._lock = threading.Lock()
        self._made: dict[int, SubModel] = {}

    def get(self, nodes: int) -> SubModel:
        """The sub-model of a node set (bitset)."""
        with self._lock:
            if nodes not in self._made:
                folder = self._directory / f"region-{len(self._made)}"
                folder.mkdir(parents=True)
                made = extract(self.model, nodes, folder)
                self._made[nodes] = SubModel(made.path, made.inputs, made.outputs)
            return self._made[nodes]
