"""What a sandboxed child reads of stored files for the pages; the last few answers are kept."""

from __future__ import annotations

import shutil
import tempfile
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from collage.backends.sandbox.run import ChildFailed, ChildLimits, run_in_child
from collage.partitioner.errors import BadInputError, ModelError
from collage.service.storage.blobs import BlobFiles
from collage.service.storage.model_facts import model_facts
from collage.service.storage.partition_graph import partition_graph
from collage.service.storage.spool import Spool
from collage.shapes.settle import settle

_KEPT = 32
_ANSWER_BYTES = 64 << 20
_TIMEOUT_S = 120
# A server that measures has little time to try sizes; a job tries longer.
_TRIALS_S = 10.0


class GraphCache:
    """Partition graphs of artifacts, and facts of models, by SHA-256; safe from many threads."""

    def __init__(self, files: BlobFiles, spool: Spool) -> None:
        self._files = files
        self._spool = spool
        self._lock, self._trying = threading.Lock(), threading.Lock()
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

    def sizes(self, model_sha256: str) -> dict[str, Any]:
        """Sizes that a stored model takes: `proposed`, a text by free dimension, or the `problem`.

        Raises:
            BlobMissingError: the model is gone.
        """
        key = ("sizes", model_sha256)
        with self._trying:  # one at a time, and nobody who reads a graph waits
            with self._lock:
                known = self._known.get(key)
            if known is None:
                with self._copied(model_sha256) as path:
                    known = _sizes(path)
                with self._lock:
                    self._known[key] = known
            return known

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
        with self._copied(sha256) as path:
            scratch = path.parent / "unpacked"
            scratch.mkdir()
            return run_in_child(
                read,
                path,
                scratch,
                limits=ChildLimits(timeout_s=_TIMEOUT_S, answer_bytes=_ANSWER_BYTES),
            )

    @contextmanager
    def _copied(self, sha256: str) -> Iterator[Path]:
        """A copy of a stored file in a folder of its own, for as long as it is used."""
        folder = Path(tempfile.mkdtemp(dir=self._spool.path, prefix="graph-"))
        try:
            self._files.copy_to(sha256, folder / "model.onnx")
            yield folder / "model.onnx"
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def _graph(path: Path, scratch: Path) -> dict[str, Any]:
    return partition_graph(path)


def _facts(path: Path, scratch: Path) -> dict[str, Any]:
    try:
        return model_facts(path, scratch)
    except ModelError as error:
        return {"problem": str(error)}


def _sizes(path: Path) -> dict[str, Any]:
    try:
        return {"proposed": dict(settle(path, {}, trials_s=_TRIALS_S).proposed)}
    except BadInputError as error:
        return {"problem": str(error)}
