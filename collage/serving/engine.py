"""A model that is ready to serve: N sessions of an artifact or of a package behind one call."""

from __future__ import annotations

import contextlib
import json
import queue
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np

from collage.artifact.division import divided
from collage.artifact.session import LoadError, load
from collage.backends.machine.process_policy import apply_environment, default_threads
from collage.backends.numerics.seeded import seeded_inputs
from collage.deploy import runner
from collage.partitioner.candidate import Instances
from collage.partitioner.errors import BadInputError, CollageError
from collage.partitioner.tensor import TensorSpec
from collage.serving.datatypes import NUMPY, datatype_of

_FALLBACK = "onnxruntime"
_UNKNOWN_SIZE = 8

Opened = TypeVar("Opened", bound="Session")


class Session(Protocol):
    """What a session of an artifact and one of a package have in common."""

    def run(self, output_names: Any, feed: Any, /) -> list[np.ndarray]: ...
    def get_inputs(self) -> list[Any]: ...
    def get_outputs(self) -> list[Any]: ...
    def close(self) -> None: ...


@dataclass(frozen=True)
class Port:
    """An input or output: its name, the protocol's datatype, and its shape, None for a free dimension."""

    name: str
    datatype: str
    shape: tuple[int | None, ...]


class Engine:
    """Sessions of one model; `infer` may be called from any thread, and waits for one that is free.

    Attributes:
        inputs, outputs: the model's, in order.
        about: what runs, in one line.
        threads: threads of one instance.
        bounds: what values of integer inputs stay below.
        rows: how many requests of one row a call was tuned for.
    """

    def __init__(
        self,
        sessions: Sequence[Session],
        about: str,
        *,
        threads: int = 1,
        bounds: Mapping[str, int] | None = None,
        example: Sequence[TensorSpec] = (),
        rows: int = 1,
    ) -> None:
        self._sessions = list(sessions)
        self._idle: queue.SimpleQueue[Session] = queue.SimpleQueue()
        for session in sessions:
            self._idle.put(session)
        self.inputs = _ports(sessions[0].get_inputs())
        self.outputs = _ports(sessions[0].get_outputs())
        self.about = about
        self.threads = threads
        self.bounds = bounds or {}
        self.rows = rows
        self._example = {spec.name: spec.shape for spec in example}

    @property
    def instances(self) -> int:
        """How many calls may run at once."""
        return len(self._sessions)

    def infer(self, feed: Mapping[str, np.ndarray], names: Sequence[str]) -> list[np.ndarray]:
        """The named outputs of one call."""
        session = self._idle.get()
        try:
            return session.run(list(names), dict(feed))
        finally:
            self._idle.put(session)

    def sample(self, seed: int, batch: int) -> dict[str, np.ndarray]:
        """Seeded inputs; `batch` is the size of the first dimension where it is free, others are as in the example."""
        specs = []
        for port in self.inputs:
            known = self._example.get(port.name) or port.shape
            rest = [_UNKNOWN_SIZE if size is None else size for size in known[1:]]
            first = [batch if size is None else size for size in port.shape[:1]]
            specs.append(TensorSpec(port.name, NUMPY[port.datatype].name, (*first, *rest)))
        return seeded_inputs(specs, seed, self.bounds)

    def close(self) -> None:
        """Give back memory and threads."""
        for session in self._sessions:
            session.close()


def open_engine(
    path: Path, instances: int | None, *, threads: int | None = None, fallback: bool = False
) -> Engine:
    """Load an artifact or a package so often as instances are wanted.

    Args:
        path: an artifact's file or a package's folder.
        instances: how many requests run at once; None for what it was tuned for, or one.
        threads: threads of one instance; None to divide the cores among the instances. A package was written
            for its own.
        fallback: serve on ONNX Runtime what cannot run here as planned; otherwise that is an error.

    Raises:
        BadInputError: it cannot be served here; the message says what to do.
    """
    if not path.exists():
        raise BadInputError(f"{path} is not there; give an artifact's file or a package's folder")
    apply_environment()
    return (
        _open_package(path, instances, threads=threads, fallback=fallback)
        if path.is_dir()
        else _open_artifact(path, instances, threads=threads, fallback=fallback)
    )


def _open_artifact(path: Path, instances: int | None, *, threads: int | None, fallback: bool) -> Engine:
    with _errors():
        session = load(
            path, _FALLBACK if fallback else None, threads=threads, instances=instances or "auto"
        )
    counted = f"{len(session.targets)} partition{'s' * (len(session.targets) > 1)}"
    about = f"{counted} on {', '.join(dict.fromkeys(map(str, session.targets)))}"
    for position, reason in session.fallbacks.items():
        about += f"; partition {position} on {_FALLBACK}, since {reason}"
    # With one size for each free dimension, where a session has such.
    example = session.example_inputs
    # It runs so many requests at once, on shared weights.
    return Engine(
        [session] * session.instances,
        about,
        threads=session.threads,
        bounds=session.bounds,
        example=example,
        rows=session.rows,
    )


def _open_package(path: Path, instances: int | None, *, threads: int | None, fallback: bool) -> Engine:
    if threads is not None:
        raise BadInputError("a package has its threads; write it again with collage package --threads")
    if not (path / runner.MANIFEST).is_file():
        raise BadInputError(f"{path} holds no package; write one with collage package")
    with _errors():
        first = runner.Session(path)
        if first.variant == runner.PLAIN and not fallback and len(first.variants) > 1:
            first.close()
            raise BadInputError(f"{first.why}; or give --fallback to serve the plain model")
        planned = _planned(first)
        count = instances or _count(planned)
        # Files and outputs are right: the others need no check of their own.
        others = _several(lambda: runner.Session(path, variant=first.variant, check=False), count - 1)
    described = _described(path)
    return Engine(
        [first, *others],
        f"variant {first.variant}: {first.why}",
        threads=first.threads,
        bounds=described.get("bounds"),
        # With one size for each free dimension, where it has such.
        example=[
            TensorSpec(spec["name"], spec["dtype"], tuple(spec["example"]))
            for spec in described["inputs"]
            if "example" in spec
        ],
        rows=1 if planned is None else planned.rows,
    )


def _planned(session: runner.Session) -> Instances | None:
    """What a package's variant was tuned for; None where it was one request at a time."""
    plan = session.variants[session.variant]["executor_info"][runner.NAMESPACE]
    if (tuned := plan.get("instances")) is None:
        return None
    return Instances(tuned["count"], session.threads, tuned["cores"], tuned["rows"])


def _count(planned: Instances | None) -> int:
    """How many requests run at once here."""
    return divided(instances="auto", threads=None, planned=planned, cores=default_threads())[0]


def _described(package: Path) -> dict[str, Any]:
    """What a package says of its model."""
    manifest = json.loads((package / runner.MANIFEST).read_text(encoding="utf-8"))
    found: dict[str, Any] = manifest["additional_metadata"][runner.NAMESPACE]
    return found


@contextlib.contextmanager
def _errors() -> Iterator[None]:
    """What keeps a model from being served is the caller's to repair."""
    try:
        yield
    except BadInputError:
        raise
    except (LoadError, runner.PackageError) as error:
        option = ", which is --fallback here" if "fallback=" in str(error) else ""
        raise BadInputError(f"{error}{option}") from None
    except CollageError as error:
        raise BadInputError(str(error)) from None


def _several(make: Callable[[], Opened], count: int) -> list[Opened]:
    made: list[Opened] = []
    try:
        for _ in range(count):
            made.append(make())
    except BaseException:
        for session in made:
            session.close()
        raise
    return made


def _ports(args: Sequence[Any]) -> tuple[Port, ...]:
    found = []
    for arg in args:
        datatype = datatype_of(arg.type)
        if datatype is None or arg.shape is None:
            raise BadInputError(
                f"{arg.name!r} is {arg.type} of shape {arg.shape}, which the protocol cannot carry; "
                "run this model with collage.load"
            )
        shape = tuple(size if isinstance(size, int) else None for size in arg.shape)
        found.append(Port(arg.name, datatype, shape))
    return tuple(found)
