"""What a sandboxed child reads of stored files for the pages; the last few answers are kept."""

from __future__ import annotations

import shutil
import tempfile
import threading
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

from collage.backends.sandbox.run import ChildFailed, ChildLimits, run_in_child
from collage.partitioner.errors import ModelError
from collage.service.storage.blobs import BlobFiles
from collage.service.storage.model_facts import model_facts
from collage.service.storage.partition_graph import partition_graph
from collage.service.storage.spool import Spool

_KEPT = 32
_ANSWER_BYTES = 64 << 20
_TIMEOUT_S = 120


class GraphCache:
    """Partition graphs of artifacts, and facts of models, by SHA-256; safe from many threads."""

    def __init__(self, files: BlobFiles, spool: Spool) -> None:
        self._files = files
        self._spool = spool
        self._lock = threading.Lock()
        self._known: OrderedDict[tuple[str, str], dict[str, Any]] = OrderedDict()

    def get(self, artifact_sha256: str) -> dict[str, Any]:
        """The graph of an artifact.

        Raises:
            BlobMissingError: the artifact is gone.
            ChildFailed: it could not be read.
        """
        return self._remembered("graph", artifact_sha256, _graph)

    def facts(self, model_sha256: str) -> dict[str, Any]:
        """The inputs of a stored model.

        Raises:
            BlobMissingError: the model is gone.
            ModelError: it is no model that can be read.
        """
        try:
            found = self._remembered("facts", model_sha256, _facts)
        except ChildFailed as failure:
            raise ModelError(
                f"the model could not be read: {failure.reason}; check it with onnx.checker"
            ) from None
        if "problem" in found:
            raise ModelError(found["problem"])
        return found

    def _remembered(
        self, kind: str, sha256: str, read: Callable[[Path, Path], dict[str, Any]]
    ) -> dict[str, Any]:
        # One at a time: each reads a whole file.
        with self._lock:
            key = (kind, sha256)
            if key not in self._known:
                self._known[key] = self._make(sha256, read)
            self._known.move_to_end(key)
            while len(self._known) > _KEPT:
                self._known.popitem(last=False)
            return self._known[key]

    def _make(self, sha256: str, read: Callable[[Path, Path], dict[str, Any]]) -> dict[str, Any]:
        folder = Path(tempfile.mkdtemp(dir=self._spool.path, prefix="graph-"))
        try:
            path, scratch = folder / "model.onnx", folder / "unpacked"
            scratch.mkdir()
            self._files.copy_to(sha256, path)
            return run_in_child(
                read,
                path,
                scratch,
                limits=ChildLimits(timeout_s=_TIMEOUT_S, answer_bytes=_ANSWER_BYTES),
            )
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def _graph(path: Path, scratch: Path) -> dict[str, Any]:
    return partition_graph(path)


def _facts(path: Path, scratch: Path) -> dict[str, Any]:
    try:
        return model_facts(path, scratch)
    except ModelError as error:
        return {"problem": str(error)}
