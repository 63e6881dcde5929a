"""`collage.load`: an artifact becomes a session that runs, with the calls ONNX Runtime has.

A session compiles each partition for its target and compares it with the artifact's reference values
before it serves. It is safe to call from several threads; runs go one after the other, since they share
buffers.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import shutil
import tempfile
import threading
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

import numpy as np

from collage.artifact.state import State
from collage.artifact.unpack import unpack
from collage.artifact.verification import Verification, VerificationError
from collage.artifact.verify import WrongPartitionError, prove
from collage.backends.machine.hardware import hardware
from collage.backends.machine.process_policy import default_threads
from collage.backends.registry import resolve
from collage.partitioner.emit.metadata import metadata_of
from collage.partitioner.errors import BadInputError, CollageError, TargetError
from collage.partitioner.target import Target
from collage.partitioner.tensor import TensorSpec
from collage.runtime.compiled import CompiledRegions, CompileError
from collage.runtime.executor import Executor
from collage.runtime.step import Step
from collage.shapes.classes import SHAPES_KEY

# It builds on this module, and on ONNX, which artifacts without free dimensions may be loaded without.
_SHAPED = "collage.artifact.shaped_session"
_ONNX_TYPES = {"float32": "float", "float64": "double", "object": "string"}


class LoadError(CollageError):
    """An artifact cannot be served here: the message names the partition and what to do."""


@dataclass(frozen=True)
class NodeArg:
    """An input or output as ONNX Runtime describes it: `name`, `shape`, `type` as `tensor(float)`."""

    name: str
    shape: tuple[int | str | None, ...] | None
    type: str

    @classmethod
    def of(cls, spec: TensorSpec) -> NodeArg:
        return cls(spec.name, spec.shape, f"tensor({_ONNX_TYPES.get(spec.dtype, spec.dtype)})")


class Session:
    """A partitioned model, compiled and verified; made by `load`.

    Attributes:
        inputs: the model's inputs with dtype and shape.
        targets: the target of each partition, in execution order, after any fallback.
        fallbacks: partitions that run elsewhere than planned, with the reason; empty normally.
        errors: per value the largest error that verification saw.
        bounds: what values of integer inputs stay below, where they look up a short table.
    """

    def __init__(
        self, path: Path, fallback: str | None, threads: int | None, cache_dir: Path | None
    ) -> None:
        self._lock = threading.Lock()
        self._directory = Path(tempfile.mkdtemp(prefix="collage-session-"))
        self._compiled = CompiledRegions(threads or default_threads(), cache_dir)
        # Closed at the end, the newest first.
        self._owned = contextlib.ExitStack()
        # Called by `close`, or when the session is collected or Python ends.
        self._owned.callback(weakref.finalize(self, shutil.rmtree, self._directory, ignore_errors=True))
        self._owned.callback(self._compiled.close)
        self.fallbacks: dict[int, str] = {}
        self.errors: dict[str, float] = {}
        self._closed = False
        try:
            self._open(path, fallback, cache_dir)
        except BaseException:
            self.close()
            raise

    def _open(self, path: Path, fallback: str | None, cache_dir: Path | None) -> None:
        parts = unpack(path, self._directory, cache_dir)
        self.targets = tuple(
            self._placed(i, target, fallback) for i, target in enumerate(parts.targets)
        )
        steps = []
        for i, (model, target) in enumerate(zip(parts.models, self.targets, strict=True)):
            if resolve(target).preparation(target) is not None and not model.prepared:
                raise LoadError(
                    f"partition {i} is planned for {target}, but its nodes were not rewritten for it; tune "
                    "the model again, and load the artifact that comes out"
                )
            executable = self._compiled.get(model.path.parent.name, model, target)
            steps.append(Step(executable, model.inputs, model.outputs))
        self.inputs, self._outputs, self._constants = parts.inputs, parts.outputs, parts.constants
        self._wanted: dict[str, tuple[np.dtype[Any], tuple[int, ...] | None]] = {
            spec.name: (np.dtype(spec.dtype), _fixed(spec)) for spec in self.inputs
        }
        self._names = [spec.name for spec in self._outputs]
        self._state = State(self.inputs, self._outputs)
        made = [spec.name for spec in parts.outputs if spec.name not in parts.constants]
        self._executor = Executor(steps, self.inputs, made, parts.lanes)
        self._owned.callback(self._executor.close)
        self._executor.bind()
        self._verify(Verification.from_text(parts.verification))

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

    def _verify(self, verification: Verification) -> None:
        try:
            self.errors = prove(self._executor, self.inputs, verification)
            self.bounds = verification.bounds
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
        return [NodeArg.of(spec) for spec in self.inputs]

    def get_outputs(self) -> list[NodeArg]:
        """The model's outputs, in order."""
        return [NodeArg.of(spec) for spec in self._outputs]

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
        names = self._names if output_names is None else list(output_names)
        self._check_names(names)
        self._check_feed(feed)
        with self._lock:
            self._check_open()
            made = self._computed(feed, [name for name in names if name not in self._constants])
        return [made[name] if name in made else self._constants[name].copy() for name in names]

    def _computed(self, feed: Mapping[str, np.ndarray], names: Sequence[str]) -> dict[str, np.ndarray]:
        """Outputs that are no constants, the caller's own."""
        self._executor.feed(feed)
        self._executor.run()
        return {name: self._executor.output(name) for name in names}

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
        pairs = self._state.bind(output, to)
        with self._lock:
            self._check_open()
            self._hand_over()
        return pairs

    def _hand_over(self) -> None:
        """Let the executor give what is bound to inputs away instead of copying it."""
        self._executor.hand_over(self._state.names)
        self._executor.bind()

    def reset_state(self) -> None:
        """Forget what bound outputs have left, so that the next call begins a new sequence."""
        self._state.reset()

    def _check_names(self, names: Sequence[str]) -> None:
        unknown = [name for name in names if name not in self._names]
        if unknown:
            raise BadInputError(f"unknown outputs {unknown}; the model has {sorted(self._names)}")

    def _check_open(self) -> None:
        if self._closed:
            raise BadInputError("the session is closed; load the artifact again")

    def _check_feed(self, feed: Mapping[str, np.ndarray]) -> None:
        if feed.keys() != self._wanted.keys():
            known = self._wanted.keys()
            missing, unknown = sorted(known - feed.keys()), sorted(feed.keys() - known)
            raise BadInputError(f"inputs missing: {missing or 'none'}, unknown: {unknown or 'none'}")
        for name, (dtype, shape) in self._wanted.items():
            value = feed[name]
            if type(value) is np.ndarray and value.dtype == dtype and shape in (None, value.shape):
                continue
            _check_input(name, value, dtype, shape)

    def close(self) -> None:
        """Give back memory and threads; may be called twice."""
        with self._lock:
            self._closed = True
            self._owned.close()

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _check_input(name: str, value: object, dtype: np.dtype[Any], shape: tuple[int, ...] | None) -> None:
    if isinstance(value, np.generic):
        value = np.asarray(value)
    if not isinstance(value, np.ndarray):
        found = type(value).__name__
        raise BadInputError(f"input {name!r} must be a numpy array of {dtype.name}, not {found}")
    if value.dtype.name != dtype.name:  # of another byte order it is the same
        raise BadInputError(
            f"input {name!r} must be a numpy array of {dtype.name}, not {value.dtype.name}"
        )
    if shape is not None and value.shape != shape:
        raise BadInputError(f"input {name!r} must have shape {shape}, not {value.shape}")


def _fixed(spec: TensorSpec) -> tuple[int, ...] | None:
    return spec.static_shape if spec.is_static else None


def load(
    path: str | Path,
    fallback: str | None = None,
    *,
    threads: int | None = None,
    cache_dir: str | Path | Literal[False] | None = None,
    outside: Literal["refuse", "run"] = "refuse",
    most_copies: int | None = None,
) -> Session:
    """Compile an artifact's partitions, verify each, and return a session that runs it.

    Args:
        fallback: a target for partitions whose own cannot be used here; None makes that an error.
        threads: threads of one call; None for the number of cores given to this process.
        cache_dir: folder for what runtimes compile; None for `default_cache_folder()`, False or "" for
            none.
        outside: what becomes of a shape outside the artifact's ranges: an error, or `run`.
        most_copies: how many partitions may stay compiled for one shape each, which takes memory; 0 for none,
            None for what the artifact says.

    Raises:
        BadInputError: the file is not an artifact.
        LoadError: a target is missing, or a partition is compiled wrongly.
    """
    cache = default_cache_folder() if cache_dir is None else Path(cache_dir) if cache_dir else None
    folder = usable_folder(cache)
    if folder is not None:
        # A cached blob may be damaged, so a failure is tried again without the cache.
        with contextlib.suppress(LoadError, CompileError):
            return _session(Path(path), fallback, threads, folder, outside, most_copies)
    return _session(Path(path), fallback, threads, None, outside, most_copies)


def _session(
    path: Path,
    fallback: str | None,
    threads: int | None,
    cache_dir: Path | None,
    outside: Literal["refuse", "run"],
    most_copies: int | None,
) -> Session:
    if path.is_file() and SHAPES_KEY in metadata_of(path):
        session: Session = importlib.import_module(_SHAPED).ShapedSession(
            path, fallback, threads, cache_dir, outside, most_copies
        )
        return session
    return Session(path, fallback, threads, cache_dir)


def default_cache_folder() -> Path:
    """This user's folder for compiled models of this kind of machine; it may be deleted at any time."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "collage" / "compiled" / hardware().digest[:16]


def usable_folder(folder: Path | None) -> Path | None:
    """The folder, made if need be; None where it cannot be written to."""
    if folder is None:
        return None
    try:
        # Native code reads these files, so only their owner may write here.
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError:
        return None
    return folder if os.access(folder, os.W_OK | os.X_OK) else None
