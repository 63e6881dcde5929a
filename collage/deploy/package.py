"""Writes an artifact as a folder that runs without this package.

The folder is a package as ONNX Runtime reads it: `manifest.json` with one component, whose variants are one for each
kind of machine, and `plain`, the whole model on ONNX Runtime. A plan stands under the variant's `executor_info` in the
namespace `collage`; the plain model also in ONNX Runtime's own. `runner.py` is `collage/deploy/runner.py`.

Invariants: files that the package does not list are not touched. A package that gets a variant was whole before.

Source: the model-package format, onnxruntime `model_package/README.md`, schema 1.0.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np

from collage.artifact.artifact import read_report
from collage.artifact.division import divided
from collage.artifact.session import load
from collage.backends.machine.hardware import hardware
from collage.backends.machine.process_policy import default_threads
from collage.backends.standalone import Standalone
from collage.backends.support.file_digests import files_of
from collage.deploy import by_size, runner
from collage.deploy.packed import Packed, packed
from collage.partitioner.candidate import Instances
from collage.partitioner.emit.annotate import read_plan
from collage.partitioner.errors import BadInputError
from collage.partitioner.file_digest import file_digest
from collage.partitioner.target import Target
from collage.partitioner.tensor import TensorSpec
from collage.runtime.compiled import CompiledRegions

PLAIN = runner.PLAIN
_COMPONENT = "model"
_CONSTANTS = "constants.npz"
_REQUIREMENTS = "requirements.txt"
_UNFINISHED = ".unfinished"
_MODEL = "model.onnx"
_ORT = "onnxruntime"
# Runtimes whose partitions take any size there.
_ANY_SIZE = ("onnxruntime", "openvino", "mnn")
# Both the artifact and a package may differ from the reference by the tolerance.
_BOTH = 2.0


@dataclass(frozen=True)
class WrittenPackage:
    """A package on disk, the variant that was written now, and the others that it has."""

    folder: Path
    variant: str
    others: tuple[str, ...]


def write_package(artifact: Path, folder: Path, threads: int | None = None) -> WrittenPackage:
    """Write an artifact as a package, or add it as a variant to a package of the same model.

    Args:
        artifact: a partitioned model, tuned for a machine like this one.
        folder: new or empty, or a package of the same model from another kind of machine.
        threads: threads of one call; None for what the artifact was tuned for, or the cores given to this process.

    Raises:
        BadInputError: the file is no artifact; a target cannot run without this package; the folder holds something
            else or was changed, or it cannot be written to.
    """
    known = _existing(folder)
    listed = {} if known is None else _checked(folder, known)
    report = read_report(artifact)
    with tempfile.TemporaryDirectory(prefix="collage-package-") as work:
        parts = packed(artifact, Path(work) / "parts")
        at_once = _at_once(parts, threads)
        described = _model_of(artifact, parts)
        if known is not None:
            _add_to(known["additional_metadata"][runner.NAMESPACE], described, folder)
        with load(artifact, threads=at_once.threads, cache_dir=False, instances=1) as session:
            expected = [session.run(None, dict(sample)) for sample in parts.samples]
            described["bounds"] = dict(session.bounds)
            if told := dict(session.get_modelmeta().custom_metadata_map):
                described["metadata"] = told
        machine = hardware()
        name = f"{machine.architecture}-{machine.digest[:8]}"
        kept = {file: listed[file] for file in listed if not file.startswith(f"{name}/")}
        others = {} if known is None else known["components"][_COMPONENT]["variants"]
        variants = {other: each for other, each in others.items() if other not in (name, PLAIN)}
        new = Path(work) / "package"
        for variant in (name, PLAIN):
            (new / variant).mkdir(parents=True)
        variants[name] = _planned(parts, new / name, at_once)
        (new / name / "report.json").write_text(json.dumps(report, indent=2), encoding="utf-8")
        if f"{PLAIN}/{_MODEL}" not in kept:
            _copy_model(artifact, new / PLAIN / _MODEL)
        variants[PLAIN] = _plain(parts, new / PLAIN, at_once)  # last: the fallback
        # Given inputs may stand in another order than the model's.
        feeds = [[sample[spec.name] for spec in parts.inputs] for sample in parts.samples]
        _write_self_test(new / runner.SELF_TEST, feeds, expected)
        shutil.copy(runner.__file__, new / "runner.py")
        if parts.is_free:
            shutil.copy(by_size.__file__, new / "by_size.py")
        _write_requirements(new / _REQUIREMENTS, variants)
        _write_manifest(new, variants, described, kept)
        sums = _write_sums(new, kept)
        _put(new, folder, [file for file in listed if file not in sums])
    return WrittenPackage(folder, name, tuple(other for other in variants if other != name))


def _existing(folder: Path) -> dict[str, Any] | None:
    """The manifest of a package in a folder; None of a folder that is empty or not there."""
    place = next(p for p in (folder, *folder.absolute().parents) if p.exists())
    if not os.access(place, os.W_OK | os.X_OK):
        raise BadInputError(f"{place} cannot be written to; give another folder")
    if place != folder or (folder.is_dir() and {p.name for p in folder.iterdir()} <= {_UNFINISHED}):
        return None
    manifest = folder / runner.MANIFEST
    try:
        found: dict[str, Any] = json.loads(manifest.read_text(encoding="utf-8"))
        found["additional_metadata"][runner.NAMESPACE]
    except (OSError, ValueError, KeyError, TypeError):
        raise BadInputError(f"{folder} is not empty and holds no package; give a new folder") from None
    return found


def _checked(folder: Path, known: Mapping[str, Any]) -> dict[str, str]:
    """The SHA-256 of each file of a package, none of which was changed."""
    try:
        return runner.check_files(folder, known["additional_metadata"][runner.NAMESPACE])
    except runner.PackageError as error:
        raise BadInputError(f"{folder}: {error}, or give a new folder") from None


def _at_once(parts: Packed, threads: int | None) -> Instances:
    """How many requests run at once here, and the threads of each; a package has no pipelines."""
    planned = None if parts.instances is None else replace(parts.instances, stages=())
    cores = default_threads()
    count, each = divided(instances="auto", threads=threads, planned=planned, cores=cores)
    return Instances(count, threads or each, cores, 1 if planned is None else planned.rows)


def _model_of(artifact: Path, parts: Packed) -> dict[str, Any]:
    """What the manifest says of the model."""
    return {
        "source_sha256": json.loads(read_plan(artifact).text)["model_sha256"],
        "inputs": parts.described(parts.inputs),
        "outputs": parts.described(parts.outputs),
        "tolerance": _BOTH * parts.tolerance,
        "made_by": f"collage-tuner {version('collage-tuner')}",
    }


def _add_to(known: Mapping[str, Any], described: dict[str, Any], folder: Path) -> None:
    """Check that a package is of this model; the self-test allows what any of its variants may differ."""
    if known.get("source_sha256") != described["source_sha256"]:
        raise BadInputError(f"{folder} is a package of another model; give a new folder")
    for side in runner.SIDES:
        there, here = (
            [(spec["name"], spec["dtype"], spec["shape"]) for spec in each[side]]
            for each in (known, described)
        )
        if there != here:
            raise BadInputError(
                f"{folder} is a package with other {side}, {there} and not {here}; give a new folder"
            )
    described["tolerance"] = max(described["tolerance"], float(known["tolerance"]))


def _planned(parts: Packed, place: Path, at_once: Instances) -> dict[str, Any]:
    """The variant of a plan, its files written to a folder."""
    machine = hardware()
    compiled = CompiledRegions(at_once.threads, None)
    described = []
    requirements: dict[str, str] = {}
    try:
        for i, (model, target) in enumerate(parts.partitions):
            executable = compiled.get(model.path.parent.name, model, target)
            alone = executable.standalone()
            specs = (*model.inputs, *model.outputs)
            is_static = all(spec.is_static for spec in specs)
            for spec in specs:
                if (what := _unlike_packages(spec, parts.is_free)) is not None:
                    raise BadInputError(
                        f"{spec.name!r} of partition {i} {what}, which packages do not have yet; "
                        "run the artifact with collage.load"
                    )
            if alone is None or not (is_static or alone.runtime in _ANY_SIZE):
                sizes = "with free dimensions " if parts.is_free else ""
                raise BadInputError(
                    f"partition {i} on {target} cannot run {sizes}without Collage yet; tune without this target, or "
                    "with its options at their defaults"
                )
            files = _copy_files(alone, place / f"partition-{i}", place)
            requirements[alone.distribution] = _version(alone.distribution)
            described.append(
                {
                    "runtime": alone.runtime,
                    "target": str(target),
                    "files": files,
                    "settings": dict(alone.settings),
                    "inputs": _described(model.inputs),
                    "outputs": _described(model.outputs),
                }
            )
    finally:
        compiled.close()
    if parts.is_free:
        described = [parts.by_size(described, parts.classes)]
    about = {
        "features": list(machine.features),
        "description": machine.describe(),
        "architecture": machine.architecture,
        "cpu": runner.cpu()[0],
        "threads": machine.threads,
    }
    return _variant(parts, place, described, requirements, about, at_once)


def _unlike_packages(spec: TensorSpec, is_free: bool) -> str | None:
    """Why the runner cannot hand a value on, or None; it has numpy's own types alone."""
    if spec.dtype == "object":
        return "is text"
    if not (spec.is_static or is_free):
        return "has a shape that only a run tells"
    is_known = spec.dtype == "unknown" or np.dtype(spec.dtype).kind in "biufc"
    return None if is_known else f"is {spec.dtype}"


def _plain(parts: Packed, place: Path, at_once: Instances) -> dict[str, Any]:
    """The variant of the whole model on ONNX Runtime."""
    # An output that is an input has its array already.
    there = {*parts.constants, *(spec.name for spec in parts.inputs)}
    made = [spec for spec in parts.outputs if spec.name not in there]
    entries = {"session.intra_op.allow_spinning": "1", "session.force_spinning_stop": "1"}
    whole = {
        "runtime": _ORT,
        "target": str(Target(_ORT)),
        "files": {"model": _MODEL},
        "settings": {"threads": at_once.threads, "level": "ORT_ENABLE_ALL", "entries": entries},
        "inputs": _described(parts.inputs),
        "outputs": _described(made),
    }
    if parts.is_free:
        whole = parts.by_size([whole], [(None, [0])])
    about = {"features": [], "description": "any machine"}
    variant = _variant(parts, place, [whole], {_ORT: _version(_ORT)}, about, at_once)
    variant["ep"], variant["device"] = "CPUExecutionProvider", "cpu"
    variant["executor_info"]["ort"] = {"model_file": _MODEL}
    return variant


def _variant(
    parts: Packed,
    place: Path,
    partitions: Sequence[Mapping[str, Any]],
    requirements: Mapping[str, str],
    machine: Mapping[str, Any],
    at_once: Instances,
) -> dict[str, Any]:
    # By position: an output may have the name of an argument.
    np.savez(place / _CONSTANTS, *parts.constants.values())
    plan = {
        "machine": dict(machine),
        "threads": at_once.threads,
        "requirements": dict(requirements),
        "constants": _CONSTANTS,
        "constant_names": list(parts.constants),
        "partitions": list(partitions),
    }
    if parts.instances is not None:
        plan["instances"] = {
            "count": at_once.count,
            "cores": at_once.cores,
            "rows": at_once.rows,
        }
    return {"variant_directory": place.name, "executor_info": {runner.NAMESPACE: plan}}


def _version(distribution: str) -> str:
    """The version of a runtime; a build for GPUs has the versions of the one for the processor."""
    for name in (distribution, f"{distribution}-gpu"):
        with contextlib.suppress(PackageNotFoundError):
            return version(name)
    raise BadInputError(f"the package needs {distribution}: pip install {distribution}")


def _copy_files(alone: Standalone, folder: Path, place: Path) -> dict[str, str]:
    """Copy what a partition reads; by role the path below the variant's folder."""
    folder.mkdir()
    found = {}
    for role, source in alone.files.items():
        for file in files_of(source):
            shutil.copy(file, folder / file.name)
        found[role] = (folder / source.name).relative_to(place).as_posix()
    return found


def _copy_model(artifact: Path, destination: Path) -> None:
    first, *beside = files_of(artifact)
    shutil.copy(first, destination)
    for file in beside:  # the model names it
        shutil.copy(file, destination.parent / file.name)


def _write_self_test(
    path: Path, feeds: Sequence[Sequence[np.ndarray]], expected: Sequence[Sequence[np.ndarray]]
) -> None:
    """Write the inputs and outputs of each sample, one array after the other."""
    pairs = zip(feeds, expected, strict=True)
    np.savez(path, *(array for feed, outputs in pairs for array in (*feed, *outputs)))


def _write_manifest(
    folder: Path,
    variants: Mapping[str, Any],
    described: Mapping[str, Any],
    kept: Mapping[str, str],
) -> None:
    """Write the manifest, which names all other files: those in the folder, and those that are kept."""
    names = {*kept, *_names(folder)} - {runner.MANIFEST}
    manifest = {
        "schema_version": "1.0",
        "components": {_COMPONENT: {"variants": dict(variants)}},
        "additional_metadata": {runner.NAMESPACE: {**described, "files": sorted(names)}},
    }
    (folder / runner.MANIFEST).write_text(json.dumps(manifest, indent=2), encoding="utf-8")


def _write_requirements(path: Path, variants: Mapping[str, Any]) -> None:
    """Exact versions of numpy and of the runtimes that the variants need; those of the newest one count."""
    needed = {"numpy": np.__version__}
    for variant in variants.values():
        needed |= variant["executor_info"][runner.NAMESPACE]["requirements"]
    lines = [f"{name}=={number}" for name, number in sorted(needed.items())]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _names(folder: Path) -> list[str]:
    """The files below a folder, by their paths there."""
    return [file.relative_to(folder).as_posix() for file in folder.rglob("*") if file.is_file()]


def _write_sums(folder: Path, kept: Mapping[str, str]) -> dict[str, str]:
    """Write the SHA-256 of all files: those in the folder, and those that are kept."""
    sums = {**kept, **{name: file_digest(folder / name) for name in _names(folder)}}
    lines = [f"{sums[name]}  {name}\n" for name in sorted(sums)]
    (folder / runner.SUMS).write_text("".join(lines), encoding="utf-8")
    return sums


def _put(new: Path, folder: Path, gone: Sequence[str]) -> None:
    """Put finished files into a folder, which may be a mount point or this process's own; remove what is gone."""
    unfinished = folder / _UNFINISHED
    shutil.rmtree(unfinished, ignore_errors=True)
    try:
        shutil.copytree(new, unfinished)
        # The list comes last: until then it tells that the package is not whole.
        for name in sorted(_names(unfinished), key=lambda name: name == runner.SUMS):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (unfinished / name).replace(folder / name)
        for name in gone:
            if ".." not in Path(name).parts:
                (folder / name).unlink(missing_ok=True)
    except (OSError, shutil.Error) as error:
        raise BadInputError(
            f"{folder} cannot be written to: {error}; make room there, or give another folder"
        ) from None
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def _described(specs: Sequence[TensorSpec]) -> list[dict[str, Any]]:
    return [{"name": s.name, "dtype": s.dtype, "shape": list(s.shape or ())} for s in specs]
