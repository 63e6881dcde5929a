"""Partition graphs of artifacts for the page: made in a sandboxed child, the last few kept."""

from __future__ import annotations

import shutil
import tempfile
import threading
from collections import OrderedDict
from pathlib import Path
from typing import Any

from collage.backends.sandbox.run import ChildLimits, run_in_child
from collage.service.storage.blobs import BlobFiles
from collage.service.storage.partition_graph import partition_graph
from collage.service.storage.spool import Spool

_KEPT = 32


class GraphCache:
    """Partition graphs by the SHA-256 of their artifact; safe from many threads."""

    def __init__(self, files: BlobFiles, spool: Spool) -> None:
        self._files = files
        self._spool = spool
        self._lock = threading.Lock()
        self._known: OrderedDict[str, dict[str, Any]] = OrderedDict()

    def get(self, artifact_sha256: str) -> dict[str, Any]:
        """The graph of an artifact.

        Raises:
            BlobMissingError: the artifact is gone.
            ChildFailed: it could not be read.
        """
        # One at a time: each reads a whole artifact.
        with self._lock:
            if artifact_sha256 not in self._known:
                self._known[artifact_sha256] = self._make(artifact_sha256)
            self._known.move_to_end(artifact_sha256)
            while len(self._known) > _KEPT:
                self._known.popitem(last=False)
            return self._known[artifact_sha256]

    def _make(self, artifact_sha256: str) -> dict[str, Any]:
        folder = Path(tempfile.mkdtemp(dir=self._spool.path, prefix="graph-"))
        try:
            path = folder / "artifact.onnx"
            self._files.copy_to(artifact_sha256, path)
            return run_in_child(
                partition_graph, path, limits=ChildLimits(timeout_s=120, answer_bytes=64 << 20)
            )
        finally:
            shutil.rmtree(folder, ignore_errors=True)
