"""What a sandboxed child reads of stored files for the pages; the last few answers are kept."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from collage.backends.sandbox.run import ChildFailed, ChildLimits, run_in_child
from collage.partitioner.errors import BadInputError, ModelError
from collage.service.storage.blobs import BlobFiles
from collage.service.storage.model_facts import model_facts
from collage.service.storage.partition_graph import partition_graph
from collage.service.storage.spool import Spool
from collage.service.storage.turns import TooManyWaitingError, Turns
from collage.shapes.settle import settle

_KEPT = 32
_FAILURE_KEPT_S = 300.0
_ANSWER_BYTES = 64 << 20
_TIMEOUT_S = 120
# A server that measures has little time to try sizes; a job tries longer.
_TRIALS_S, _READING_S = 10.0, 20.0
_READERS, _TRIERS = 2, 1

_Key = tuple[str, str]


@dataclass(frozen=True)
class _Outcome:
    """What came of reading a file."""

    value: dict[str, Any] | None = None
    error: BaseException | None = None
    until: float = float("inf")  # by the monotonic clock


@dataclass
class _Reading:
    """A file that several callers may wait for: it is read when it is the first one's turn.

    Args:
        tasks: of each caller that waits in turn.
        begun: locked when the turn has come.
    """

    outcome: asyncio.Future[_Outcome]
    tasks: dict[str, asyncio.Task[_Outcome | None]] = field(default_factory=dict)
    begun: threading.Lock = field(default_factory=threading.Lock)


class GraphCache:
    """Partition graphs of artifacts, and facts of models, by SHA-256.

    Lives in the event loop's thread. Requests for one file share one child, and whoever waits for it holds
    no thread. Sizes are tried beside: nobody who reads waits for that. Nobody is refused what is being read
    already, nor waits longer because somebody asked before.
    """

    def __init__(self, files: BlobFiles, spool: Spool) -> None:
        self._files = files
        self._spool = spool
        self._readers, self._triers = Turns(_READERS), Turns(_TRIERS)
        self._known: OrderedDict[_Key, _Outcome] = OrderedDict()
        self._making: dict[_Key, _Reading] = {}

    async def get(self, caller: str, artifact_sha256: str) -> dict[str, Any]:
        """The graph of an artifact.

        Args:
            caller: who asks; each has its turn.
            artifact_sha256: the artifact.

        Raises:
            BlobMissingError: the artifact is gone.
            ChildFailed: it could not be read.
        """
        read = partial(self._make, artifact_sha256, _graph)
        return await self._remembered(caller, self._readers, ("graph", artifact_sha256), read)

    async def facts(self, caller: str, model_sha256: str) -> dict[str, Any]:
        """The inputs of a stored model.

        Raises:
            BlobMissingError: the model is gone.
            ModelError: it is no model that can be read.
        """
        read = partial(self._make, model_sha256, _facts)
        try:
            found = await self._remembered(caller, self._readers, ("facts", model_sha256), read)
        except ChildFailed as failure:
            raise ModelError(
                f"the model could not be read: {failure.reason}; check it with onnx.checker"
            ) from None
        if "problem" in found:
            raise ModelError(found["problem"])
        return found

    async def sizes(self, caller: str, model_sha256: str) -> dict[str, Any]:
        """Sizes that a stored model takes: `proposed`, a text by free dimension, or the `problem`.

        Raises:
            BlobMissingError: the model is gone.
        """
        read = partial(self._try_sizes, model_sha256)
        return await self._remembered(caller, self._triers, ("sizes", model_sha256), read)

    async def _remembered(
        self, caller: str, turns: Turns, key: _Key, read: Callable[[], dict[str, Any]]
    ) -> dict[str, Any]:
        found = self._known.get(key)
        if found is None or found.until < time.monotonic():
            # Shielded: the one that asked first may leave while others wait for the answer.
            found = await asyncio.shield(self._reading(caller, turns, key, read).outcome)
        if key in self._known:
            self._known.move_to_end(key)
        if found.error is not None:
            raise found.error.with_traceback(None)
        assert found.value is not None
        return found.value

    def _reading(
        self, caller: str, turns: Turns, key: _Key, read: Callable[[], dict[str, Any]]
    ) -> _Reading:
        """The reading of a file, in which the caller has its turn.

        Raises:
            TooManyWaitingError: too much of the caller's waits already, and nobody reads this.
        """
        reading = self._making.get(key) or _Reading(asyncio.get_running_loop().create_future())
        if caller in reading.tasks or reading.begun.locked():
            return reading

        def first() -> _Outcome | None:
            return _outcome(read) if reading.begun.acquire(blocking=False) else None

        try:
            task = reading.tasks[caller] = turns.start(caller, first)
        except TooManyWaitingError:
            if key not in self._making:
                raise
        else:
            task.add_done_callback(partial(self._end, key, reading))
            self._making[key] = reading
        return reading

    def _end(self, key: _Key, reading: _Reading, task: asyncio.Task[_Outcome | None]) -> None:
        """Give the outcome to all who wait, where this task has it."""
        if task.cancelled() or reading.outcome.done():
            return
        error = task.exception()
        made = task.result() if error is None else _Outcome(error=error, until=0.0)
        if made is None:  # another caller's turn has come before
            return
        del self._making[key]
        reading.outcome.set_result(made)
        for other in reading.tasks.values():
            other.cancel()
        if made.until:
            self._known[key] = made
            while len(self._known) > _KEPT:
                self._known.popitem(last=False)

    def _try_sizes(self, sha256: str) -> dict[str, Any]:
        with self._copied(sha256) as path:
            return _sizes(path)

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


def _outcome(read: Callable[[], dict[str, Any]]) -> _Outcome:
    try:
        value = read()
    except ChildFailed as failure:
        return _Outcome(error=failure, until=0.0 if failure.kind == "killed" else _soon())
    except Exception as error:
        return _Outcome(error=error, until=0.0)
    # A busy machine may be why a file has a problem, so that is forgotten.
    return _Outcome(value, until=_soon()) if "problem" in value else _Outcome(value)


def _graph(path: Path, scratch: Path) -> dict[str, Any]:
    return partition_graph(path)


def _facts(path: Path, scratch: Path) -> dict[str, Any]:
    try:
        return model_facts(path, scratch)
    except ModelError as error:
        return {"problem": str(error)}


def _sizes(path: Path) -> dict[str, Any]:
    try:
        return {"proposed": dict(settle(path, {}, trials_s=_TRIALS_S, reading_s=_READING_S).proposed)}
    except BadInputError as error:
        return {"problem": str(error)}


def _soon() -> float:
    return time.monotonic() + _FAILURE_KEPT_S
