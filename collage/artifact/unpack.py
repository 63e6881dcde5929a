"""An artifact unpacked: its partitions as models on disk, kept in the cache for the next load.

Runtimes that key compiled models by path (OpenVINO) find theirs again only because these files stay.

Invariants: the folder is named by the SHA-256 of every byte of the artifact; it is complete or absent.
What is compiled from it is verified by each load.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np

from collage.artifact.verification import VERIFICATION_KEY
from collage.backends.contract import SubModel
from collage.backends.machine.hardware import hardware
from collage.backends.numerics.tensor_files import read_samples, write_samples
from collage.backends.support.file_digests import files_of, remembered_digest
from collage.partitioner.candidate import Instances
from collage.partitioner.errors import BadInputError
from collage.partitioner.target import Target
from collage.partitioner.tensor import TensorSpec
from collage.shapes.classes import SHAPES_KEY

if TYPE_CHECKING:
    from collage.partitioner.graph.model import Model

Apart = TypeVar("Apart")

# Part of every folder's name: raise it when parts are made in another way.
_EDITION = 1
_CONTENTS = "parts.json"
_CONSTANTS = "constants.npz"


@dataclass(frozen=True)
class UnpackedArtifact:
    """What `load` needs of an artifact."""

    # each partition as a model of its own, in execution order; equal ones share a file
    models: tuple[SubModel, ...]
    targets: tuple[Target, ...]
    inputs: tuple[TensorSpec, ...]  # the model's inputs
    outputs: tuple[TensorSpec, ...]  # the model's outputs
    constants: Mapping[str, np.ndarray]  # outputs that are weights
    lanes: int  # how many partitions may run at once
    verification: str  # reference values as text
    instances: Instances | None = None  # how many requests it was tuned to run at once


def unpack(path: Path, work_dir: Path, cache_dir: Path | None) -> UnpackedArtifact:
    """Unpack an artifact, or find what was unpacked before.

    Args:
        work_dir: an empty folder that lives as long as the result is used.
        cache_dir: where unpacked artifacts are kept, or None.

    Raises:
        ModelError, BadInputError: the file is no artifact.
    """
    return kept_apart(path, work_dir, cache_dir, f"parts-{_EDITION}", Way(_take_apart, _write, _read))


@dataclass(frozen=True)
class Way(Generic[Apart]):
    """How an artifact is taken apart into a folder, and how what was made is written there and read."""

    take_apart: Callable[[Path, Path], Apart]
    write: Callable[[Apart, Path], None]
    read: Callable[[Path], Apart]


def kept_apart(path: Path, work_dir: Path, cache_dir: Path | None, name: str, way: Way[Apart]) -> Apart:
    """An artifact taken apart, from the cache where it is in it.

    Args:
        path: the artifact.
        work_dir: an empty folder, for where there is no cache.
        cache_dir: where artifacts are kept apart, or None.
        name: begins the names of folders in the cache.
        way: how it is done.
    """
    if cache_dir is None or not path.is_file():
        return way.take_apart(path, work_dir)
    folder = cache_dir / f"{name}-{_digest(path, cache_dir)}"
    try:
        return way.read(folder)
    except Exception:  # not there, or damaged: zip, JSON and numpy raise what they like
        shutil.rmtree(folder, ignore_errors=True)
    unfinished = cache_dir / f".parts.{os.getpid()}-{threading.get_ident()}"
    try:
        way.write(way.take_apart(path, unfinished), unfinished)
        unfinished.rename(folder)
        return way.read(folder)
    except OSError:  # another process was first, or the disk is full
        return way.take_apart(path, work_dir)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def _digest(path: Path, cache_dir: Path) -> str:
    digests = [remembered_digest(file, cache_dir) for file in files_of(path)]
    return hashlib.sha256("".join(digests).encode()).hexdigest()


def _take_apart(path: Path, folder: Path) -> UnpackedArtifact:
    # They read ONNX, which takes a second to import; an artifact that was unpacked before needs none of it.
    from collage.model.sub_models import RegionFiles
    from collage.partitioner.emit.annotate import read_plan

    stored = read_plan(path, mapped=True)
    model, index = stored.model, stored.model.index
    if SHAPES_KEY in stored.metadata:
        raise BadInputError(
            f"{path.name} has free dimensions, and this takes one size of each; tune the model with --dim NAME=SIZE"
        )
    if VERIFICATION_KEY not in stored.metadata:
        raise BadInputError(f"{path.name} holds no reference values; make one with collage tune")
    done = [
        partition.nodes
        for partition, note in zip(stored.plan.partitions, stored.notes, strict=True)
        if note.prepared
    ]
    regions = RegionFiles(model, folder, prepared=done)
    outputs = tuple(index.values[name] for name in index.outputs)
    constants = constants_of(model, outputs)
    return UnpackedArtifact(
        models=tuple(regions.get(partition.nodes) for partition in stored.plan.partitions),
        targets=tuple(partition.target for partition in stored.plan.partitions),
        inputs=tuple(index.values[name] for name in index.inputs),
        outputs=outputs,
        constants=constants,
        lanes=stored.plan.lanes,
        verification=stored.metadata[VERIFICATION_KEY],
        instances=stored.plan.instances,
    )


def constants_of(model: Model, outputs: Sequence[TensorSpec]) -> dict[str, np.ndarray]:
    """The outputs that are weights."""
    weights = {
        spec.name: model.ir.graph.initializers[spec.name].const_value
        for spec in outputs
        if spec.name in model.index.constants
    }
    # Copies, since the artifact may be replaced while a session runs.
    return {name: np.array(weight.numpy()) for name, weight in weights.items() if weight is not None}


def write_constants(constants: Mapping[str, np.ndarray], folder: Path) -> bool:
    """Write outputs that are weights into a folder; False, and no file, where there are none."""
    if constants:
        write_samples(folder / _CONSTANTS, [constants])
    return bool(constants)


def read_constants(are_there: bool, folder: Path) -> Mapping[str, np.ndarray]:
    """Read what `write_constants` wrote; `are_there` is what it returned."""
    return read_samples(folder / _CONSTANTS, ())[0] if are_there else {}


def _write(parts: UnpackedArtifact, folder: Path) -> None:
    contents = {
        "constants": write_constants(parts.constants, folder),
        "models": [
            {
                "path": str(model.path.relative_to(folder)),
                "inputs": described(model.inputs),
                "outputs": described(model.outputs),
                "prepared": model.prepared,
            }
            for model in parts.models
        ],
        "targets": [str(target) for target in parts.targets],
        "inputs": described(parts.inputs),
        "outputs": described(parts.outputs),
        "lanes": parts.lanes,
        "verification": parts.verification,
        "instances": None if parts.instances is None else asdict(parts.instances),
    }
    (folder / _CONTENTS).write_text(json.dumps(contents), encoding="utf-8")


def _read(folder: Path) -> UnpackedArtifact:
    contents = json.loads((folder / _CONTENTS).read_text(encoding="utf-8"))
    return UnpackedArtifact(
        models=tuple(
            SubModel(
                folder / m["path"], specs(m["inputs"]), specs(m["outputs"]), prepared=m["prepared"]
            )
            for m in contents["models"]
        ),
        targets=tuple(Target.parse(text) for text in contents["targets"]),
        inputs=specs(contents["inputs"]),
        outputs=specs(contents["outputs"]),
        constants=read_constants(contents["constants"], folder),
        lanes=contents["lanes"],
        verification=contents["verification"],
        instances=_instances(contents.get("instances")),
    )


def _instances(stated: Mapping[str, Any] | None) -> Instances | None:
    return Instances(**{**stated, "stages": tuple(stated.get("stages", ()))}) if stated else None


def described(specs: Sequence[TensorSpec]) -> list[Any]:
    """Specs as JSON-ready data."""
    return [[spec.name, spec.dtype, spec.shape] for spec in specs]


def specs(described: Sequence[Any]) -> tuple[TensorSpec, ...]:
    """Read what `described` made."""
    return tuple(
        TensorSpec(name, dtype, None if shape is None else tuple(shape))
        for name, dtype, shape in described
    )


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
