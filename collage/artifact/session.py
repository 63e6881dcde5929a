"""`collage.load`: an artifact becomes a session that runs, with the calls ONNX Runtime has.

A session compiles each partition for its target and compares it with the artifact's reference values
before it serves. It has one or several instances, each with buffers of its own. It is safe to call from
several threads: so many requests run at once, and the others wait for their turn in order.
"""

from __future__ import annotations

import contextlib
import importlib
import shutil
import tempfile
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, TypeVar

import numpy as np

from collage.artifact.division import Count, divided, stages_here
from collage.artifact.node_arg import ModelMeta, NodeArg, Wanted, check_feed, fixed
from collage.artifact.state import State
from collage.artifact.unpack import default_cache_folder as default_cache_folder
from collage.artifact.unpack import unpack
from collage.artifact.unpack import usable_folder as usable_folder
from collage.artifact.verification import Verification, VerificationError
from collage.artifact.verify import (
    WrongPartitionError,
    not_rewritten,
    note_of,
    noted_errors,
    prove,
    versions_of,
    write_note,
)
from collage.backends.machine.process_policy import default_threads
from collage.backends.registry import resolve
from collage.partitioner.emit.metadata import metadata_of
from collage.partitioner.errors import BadInputError, CollageError, TargetError
from collage.partitioner.target import Target
from collage.partitioner.tensor import TensorSpec
from collage.runtime.compiled import CompiledRegions, CompileError
from collage.runtime.executor import Executor
from collage.runtime.instances import PlannedStep, executors
from collage.runtime.joined import JoinedRequests
from collage.runtime.pipeline import Pipeline
from collage.runtime.requests import Requests
from collage.runtime.turns import ClosedError
from collage.shapes.classes import SHAPES_KEY

# It builds on this module, and on ONNX, which artifacts without free dimensions may be loaded without.
_SHAPED = "collage.artifact.shaped_session"
_CLOSED = "the session is closed; load the artifact again"
Answer = TypeVar("Answer")


class LoadError(CollageError):
    """An artifact cannot be served here: the message names the partition and what to do."""


class Session:
    """A partitioned model, compiled and verified; made by `load`.

    Attributes:
        inputs: the model's inputs with dtype and shape.
        targets: the target of each partition, in execution order, after any fallback.
        fallbacks: partitions that run elsewhere than planned, with the reason; empty normally.
        errors: per value the largest error that verification saw.
        bounds: what values of integer inputs stay below, where they look up a short table.
        instances: how many calls run at once.
        threads: of one call.
        rows: how many requests of one row a call computes.
    """

    def __init__(
        self,
        path: Path,
        fallback: str | None,
        threads: int | None,
        cache_dir: Path | None,
        instances: Count = 1,
    ) -> None:
        self._lock = threading.Lock()
        self._directory = Path(tempfile.mkdtemp(prefix="collage-session-"))
        # Closed at the end, the newest first.
        self._owned = contextlib.ExitStack()
        # Called by `close`, or when the session is collected or Python ends.
        self._owned.callback(weakref.finalize(self, shutil.rmtree, self._directory, ignore_errors=True))
        self._requests: Requests[Any] = Requests(())
        self._joined: JoinedRequests | Pipeline | None = None
        self.rows = 1
        self.fallbacks: dict[int, str] = {}
        self.errors: dict[str, float] = {}
        self._meta = ModelMeta.of(path)
        try:
            self._open(path, fallback, threads, cache_dir, instances)
        except BaseException:
            self.close()
            raise

    def _open(
        self,
        path: Path,
        fallback: str | None,
        threads: int | None,
        cache_dir: Path | None,
        instances: Count,
    ) -> None:
        parts = unpack(path, self._directory, cache_dir)
        wanted: Any = {"instances": instances, "threads": threads, "planned": parts.instances}
        wanted["cores"] = default_threads()
        self.instances, self.threads = divided(**wanted)
        stages = stages_here(**wanted)
        compiled = CompiledRegions(self.threads, cache_dir, 1 if stages else self.instances)
        self._owned.callback(compiled.close)
        self.targets = tuple(
            self._placed(i, target, fallback) for i, target in enumerate(parts.targets)
        )
        steps = []
        for i, (model, target) in enumerate(zip(parts.models, self.targets, strict=True)):
            if (reason := not_rewritten(i, target, model)) is not None:
                raise LoadError(reason)
            steps.append(PlannedStep(model.path.parent.name, model, target))
        self.inputs, self._outputs, self._constants = parts.inputs, parts.outputs, parts.constants
        self._wanted: Wanted = {spec.name: (np.dtype(spec.dtype), fixed(spec)) for spec in self.inputs}
        self._state = State(self.inputs, self._outputs)
        self._names = [spec.name for spec in self._outputs]
        made = [spec.name for spec in parts.outputs if spec.name not in parts.constants]
        opened = executors(
            compiled,
            steps,
            self.inputs,
            made,
            lanes=parts.lanes if self.instances == 1 else min(parts.lanes, self.threads),
            instances=self.instances,
        )
        for executor in opened:
            self._owned.callback(executor.close)
        verification = Verification.from_text(parts.verification)
        self.bounds = verification.bounds
        facts = (parts.verification, steps, versions_of(self.targets), self.instances, self.threads)
        note = note_of(cache_dir, compiled.kept_files(), (*facts, parts.lanes))
        noted = noted_errors(note)
        self.errors = noted or {}
        if noted is None or compiled.loads_differ:
            for executor in opened:
                self._verify(executor, verification if noted is None else verification.of_one_sample)
            write_note(note, self.errors)
        self.rows = parts.instances.rows if parts.instances else 1
        if self.rows > 1:
            self._join(opened)
        elif stages and not self._constants and all(executor.is_fixed for executor in opened):
            self._joined = Pipeline(opened, stages)
        else:
            self._requests = Requests(opened)
        if self._joined is not None:
            weakref.finalize(self, self._joined.end)

    def _join(self, opened: Sequence[Executor]) -> None:
        """Let each call compute the rows of several requests."""
        specs = (*self.inputs, *self._outputs)
        if self._constants or any((fixed(spec) or ())[:1] != (self.rows,) for spec in specs):
            raise LoadError(f"the model has no calls of {self.rows} rows; tune the model again")
        self._wanted = {n: (d, (None, *(s or ())[1:])) for n, (d, s) in self._wanted.items()}
        self._joined = JoinedRequests(opened, self.rows)

    def _placed(self, position: int, target: Target, fallback: str | None) -> Target:
        """The target, or its fallback where it cannot be used and the caller allows one."""
        try:
            resolve(target)
        except TargetError as error:
            if fallback is None:
                raise LoadError(
                    f"partition {position} needs a target that cannot be used here: {error}; "
                    "or allow another one with load(path, fallback='onnxruntime')"
                ) from None
            other = Target.parse(fallback)
            resolve(other)
            self.fallbacks[position] = str(error)
            return other
        return target

    def _verify(self, executor: Executor, verification: Verification) -> None:
        try:
            for name, error in prove(executor, self.inputs, verification).items():
                self.errors[name] = max(self.errors.get(name, 0.0), error)
        except WrongPartitionError as wrong:
            raise LoadError(
                f"partition {wrong.step} on {self.targets[wrong.step]} was compiled wrongly: {wrong}; load "
                "again (some runtimes do this once in a while), or tune without this target"
            ) from None
        except VerificationError as error:
            raise LoadError(str(error)) from None

    @property
    def example_inputs(self) -> tuple[TensorSpec, ...]:
        """The model's inputs with one size for each dimension."""
        return self.inputs

    def get_inputs(self) -> list[NodeArg]:
        """The model's inputs, in order."""
        return [NodeArg.of(spec, self.rows > 1) for spec in self.inputs]

    def get_outputs(self) -> list[NodeArg]:
        """The model's outputs, in order."""
        return [NodeArg.of(spec, self.rows > 1) for spec in self._outputs]

    def get_modelmeta(self) -> ModelMeta:
        """The metadata that the model came with."""
        return self._meta

    def run(
        self, output_names: Sequence[str] | None, feed: Mapping[str, np.ndarray]
    ) -> list[np.ndarray]:
        """Compute outputs from inputs.

        Args:
            output_names: which outputs, in which order; None for all that feed no input of the next call.
            feed: every input by name, of its exact type and shape; bound ones may be left out
                (`bind_output_to_input`).

        Returns:
            New arrays, the caller's own.

        Raises:
            BadInputError: an input is missing, unknown, or of a wrong type or shape; an output is
                unknown; or another call changes the state meanwhile.
        """
        if self._state.pairs:
            return self._state.run(self._run, output_names, feed)
        return self._run(output_names, feed)

    def _run(
        self, output_names: Sequence[str] | None, feed: Mapping[str, np.ndarray]
    ) -> list[np.ndarray]:
        if self._joined is None:
            return self._in_turn(self._request(output_names, feed))
        return self.run_async(output_names, feed).result()

    def _in_turn(self, call: Callable[[Any], Answer]) -> Answer:
        try:
            return self._requests.run(call)
        except ClosedError:
            raise BadInputError(_CLOSED) from None

    def run_async(
        self, output_names: Sequence[str] | None, feed: Mapping[str, np.ndarray]
    ) -> Future[list[np.ndarray]]:
        """Compute outputs from inputs in another thread; requests are served in the order of all calls.

        Args:
            output_names: as for `run`.
            feed: as for `run`; the arrays are not to be changed until the result is there.

        Returns:
            A future of what `run` returns, or raises while it computes; its callbacks may ask and close.

        Raises:
            BadInputError: at once, as `run` does; or the session keeps state.
        """
        if self._state.pairs:
            raise BadInputError("a session that keeps state makes one call after the other: use run")
        try:
            if self._joined is not None:
                return self._joined.submit(self._asked(output_names, feed), feed)
            return self._requests.submit(self._request(output_names, feed))
        except ClosedError:
            raise BadInputError(_CLOSED) from None

    def bind_output_to_input(self, output: str, to: str) -> dict[str, str]:
        """Let outputs of each call feed inputs of the next one, without a copy.

        Such inputs need not be given: at first they are zeros, and empty along free dimensions. One that
        is given replaces what was kept. `run` returns such outputs only by name.

        Args:
            output: a name, or a pattern: each `*` stands for any text, as in `present.*`.
            to: the input, with the same text for each `*`, as in `past.*`.

        Returns:
            What is bound: inputs by output.

        Raises:
            BadInputError: a name is unknown, types differ, shapes can never fit, or the session has been
                closed.
        """
        if self._joined is not None:
            raise BadInputError("a pipeline, or a call of several requests, keeps no state")
        if self.instances > 1:
            raise BadInputError("a session that keeps state has one instance: load(path, instances=1)")
        pairs = self._state.bind(output, to)
        self._in_turn(self._hand_over)
        return pairs

    def _hand_over(self, executor: Executor) -> None:
        """Let the executor give what is bound to inputs away instead of copying it."""
        executor.hand_over(self._state.names)
        executor.bind()

    def reset_state(self) -> None:
        """Forget what bound outputs have left, so that the next call begins a new sequence."""
        self._state.reset()

    def _request(
        self, output_names: Sequence[str] | None, feed: Mapping[str, np.ndarray]
    ) -> Callable[[Any], list[np.ndarray]]:
        """The call that computes outputs on an instance; what is asked is checked at once."""
        return partial(self._compute, self._asked(output_names, feed), feed)

    def _asked(
        self, output_names: Sequence[str] | None, feed: Mapping[str, np.ndarray]
    ) -> Sequence[str]:
        """The outputs that are wanted, of a feed that is right."""
        names = self._names if output_names is None else list(output_names)
        unknown = [name for name in names if name not in self._names]
        if unknown:
            raise BadInputError(f"unknown outputs {unknown}; the model has {sorted(self._names)}")
        check_feed(feed, self._wanted, self.rows)
        return names

    def _compute(
        self, names: Sequence[str], feed: Mapping[str, np.ndarray], executor: Executor
    ) -> list[np.ndarray]:
        executor.feed(feed)
        executor.run()
        made = {name: executor.output(name) for name in names if name not in self._constants}
        return [made[name] if name in made else self._constants[name].copy() for name in names]

    def close(self) -> None:
        """Wait for the requests under way and waiting, then give back memory and threads; may be called twice."""
        self._requests.close()
        if self._joined is not None:
            self._joined.close()
        with self._lock:
            self._owned.close()

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def load(
    path: str | Path,
    fallback: str | None = None,
    *,
    threads: int | None = None,
    cache_dir: str | Path | Literal[False] | None = None,
    instances: Count = "auto",
    outside: Literal["refuse", "run"] = "refuse",
    most_copies: int | None = None,
) -> Session:
    """Compile an artifact's partitions, verify each, and return a session that runs it.

    Args:
        fallback: a target for partitions whose own cannot be used here; None makes that an error.
        threads: threads of one call; None for its share of the cores given to this process.
        cache_dir: folder for what runtimes compile; None for `default_cache_folder()`, False or "" for none.
        instances: how many requests run at once; "auto" for what the artifact was tuned for, or one.
        outside: what becomes of a shape outside the artifact's ranges: an error, or `run`.
        most_copies: so many partitions may stay compiled for one shape each; None for what the artifact says.

    Raises:
        BadInputError: the file is not an artifact, `outside` is neither, or so many instances do not fit the cores.
        LoadError: a target is missing, or a partition is compiled wrongly.
    """
    if outside not in ("refuse", "run"):
        raise BadInputError(f'outside must be "refuse" or "run", not {outside!r}')
    cache = default_cache_folder() if cache_dir is None else Path(cache_dir) if cache_dir else None
    folder = usable_folder(cache)
    if folder is not None:
        # A cached blob may be damaged, so a failure is tried again without the cache.
        with contextlib.suppress(LoadError, CompileError):
            return _session(Path(path), fallback, threads, folder, instances, outside, most_copies)
    return _session(Path(path), fallback, threads, None, instances, outside, most_copies)


def _session(
    path: Path,
    fallback: str | None,
    threads: int | None,
    cache_dir: Path | None,
    instances: Count,
    outside: Literal["refuse", "run"],
    most_copies: int | None,
) -> Session:
    if path.is_file() and SHAPES_KEY in metadata_of(path):
        shaped = importlib.import_module(_SHAPED).ShapedSession
        session: Session = shaped(path, fallback, threads, cache_dir, instances, outside, most_copies)
        return session
    return Session(path, fallback, threads, cache_dir, instances)
