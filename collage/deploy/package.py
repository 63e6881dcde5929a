"""Writes an artifact as a folder that runs without this package.

The folder is a package as ONNX Runtime reads it: `manifest.json` with one component, whose variants are one for each
kind of machine, and `plain`, the whole model on ONNX Runtime. A plan stands under the variant's `executor_info` in the
namespace `collage`; the plain model also in ONNX Runtime's own. `runner.py` is `collage/deploy/runner.py`.

Source: the model-package format, onnxruntime `model_package/README.md`, schema 1.0.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from collage.artifact.artifact import read_report
from collage.artifact.session import load
from collage.backends.machine.hardware import hardware
from collage.backends.machine.process_policy import default_threads
from collage.backends.standalone import Standalone
from collage.backends.support.file_digests import files_of
from collage.deploy import by_size, runner
from collage.deploy.packed import Packed, packed
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
        threads: threads of one call; None for the number of cores given to this process.

    Raises:
        BadInputError: the file is no artifact; a target cannot run without this package; or the folder holds something
            else.
    """
    known = _existing(folder)
    report = read_report(artifact)
    with (
        tempfile.TemporaryDirectory(prefix="collage-package-") as work,
        load(artifact, threads=threads, cache_dir=False, instances=1) as session,
    ):
        parts = packed(artifact, Path(work) / "parts")
        expected = [session.run(None, dict(sample)) for sample in parts.samples]
        described = {
            "source_sha256": json.loads(read_plan(artifact).text)["model_sha256"],
            "inputs": parts.described(parts.inputs),
            "outputs": parts.described(parts.outputs),
            "tolerance": _BOTH * parts.tolerance,
            "made_by": f"collage-tuner {version('collage-tuner')}",
        }
        if told := dict(session.get_modelmeta().custom_metadata_map):
            described["metadata"] = told
        if known is not None and known["additional_metadata"][runner.NAMESPACE] != described:
            raise BadInputError(f"{folder} is a package of another model; give a new folder")
        machine = hardware()
        name = f"{machine.architecture}-{machine.digest[:8]}"
        new = Path(work) / "package"
        if known is not None:
            shutil.copytree(folder, new)
        variants = {} if known is None else dict(known["components"][_COMPONENT]["variants"])
        shutil.rmtree(new / name, ignore_errors=True)
        count = threads or default_threads()
        place = new / name
        place.mkdir(parents=True)
        variants[name] = _planned(parts, place, count)
        (place / "report.json").write_text(json.dumps(report, indent=2), encoding="utf-8")
        variants.pop(PLAIN, None)
        if not (new / PLAIN / _MODEL).is_file():
            _copy_model(artifact, new / PLAIN / _MODEL)
        variants[PLAIN] = _plain(parts, new / PLAIN, count)  # last: the fallback
        # Given inputs may stand in another order than the model's.
        feeds = [[sample[spec.name] for spec in parts.inputs] for sample in parts.samples]
        _write_self_test(new / runner.SELF_TEST, feeds, expected)
        shutil.copy(runner.__file__, new / "runner.py")
        if parts.is_free:
            shutil.copy(by_size.__file__, new / "by_size.py")
        _write_manifest(new, variants, described)
        _write_requirements(new / _REQUIREMENTS, variants)
        _write_sums(new)
        _replace(new, folder)
    return WrittenPackage(folder, name, tuple(other for other in variants if other != name))


def _existing(folder: Path) -> dict[str, Any] | None:
    """The manifest of a package in a folder; None of a folder that is empty or not there."""
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return None
    manifest = folder / runner.MANIFEST
    try:
        found: dict[str, Any] = json.loads(manifest.read_text(encoding="utf-8"))
        found["additional_metadata"][runner.NAMESPACE]
    except (OSError, ValueError, KeyError, TypeError):
        raise BadInputError(f"{folder} is not empty and holds no package; give a new folder") from None
    return found


def _planned(parts: Packed, place: Path, threads: int) -> dict[str, Any]:
    """The variant of a plan, its files written to a folder."""
    machine = hardware()
    compiled = CompiledRegions(threads, None)
    described = []
    requirements: dict[str, str] = {}
    try:
        for i, (model, target) in enumerate(parts.partitions):
            executable = compiled.get(model.path.parent.name, model, target)
            alone = executable.standalone()
            specs = (*model.inputs, *model.outputs)
            is_static = all(spec.is_static for spec in specs)
            for spec in specs:
                if spec.dtype == "object" or not (spec.is_static or parts.is_free):
                    is_text = spec.dtype == "object"
                    what = "is text" if is_text else "has a shape that only a run tells"
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
            requirements[alone.distribution] = version(alone.distribution)
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
    variant = _variant(parts, place, described, requirements, machine.features, machine.describe())
    variant["executor_info"][runner.NAMESPACE]["threads"] = threads
    return variant


def _plain(parts: Packed, place: Path, threads: int) -> dict[str, Any]:
    """The variant of the whole model on ONNX Runtime."""
    made = [spec for spec in parts.outputs if spec.name not in parts.constants]
    entries = {"session.intra_op.allow_spinning": "1", "session.force_spinning_stop": "1"}
    whole = {
        "runtime": _ORT,
        "target": str(Target(_ORT)),
        "files": {"model": _MODEL},
        "settings": {"threads": threads, "level": "ORT_ENABLE_ALL", "entries": entries},
        "inputs": _described(parts.inputs),
        "outputs": _described(made),
    }
    if parts.is_free:
        whole = parts.by_size([whole], [(None, [0])])
    variant = _variant(parts, place, [whole], {_ORT: version(_ORT)}, (), "any machine")
    variant["ep"], variant["device"] = "CPUExecutionProvider", "cpu"
    variant["executor_info"]["ort"] = {"model_file": _MODEL}
    variant["executor_info"][runner.NAMESPACE]["threads"] = threads
    return variant


def _variant(
    parts: Packed,
    place: Path,
    partitions: Sequence[Mapping[str, Any]],
    requirements: Mapping[str, str],
    features: Sequence[str],
    description: str,
) -> dict[str, Any]:
    # By position: an output may have the name of an argument.
    np.savez(place / _CONSTANTS, *parts.constants.values())
    machine: dict[str, Any] = {"features": list(features), "description": description}
    if features:
        machine["architecture"] = hardware().architecture
    plan = {
        "machine": machine,
        "requirements": dict(requirements),
        "constants": _CONSTANTS,
        "constant_names": list(parts.constants),
        "partitions": list(partitions),
    }
    return {"variant_directory": place.name, "executor_info": {runner.NAMESPACE: plan}}


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
    destination.parent.mkdir(parents=True)
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


def _write_manifest(folder: Path, variants: Mapping[str, Any], described: Mapping[str, Any]) -> None:
    manifest = {
        "schema_version": "1.0",
        "components": {_COMPONENT: {"variants": dict(variants)}},
        "additional_metadata": {runner.NAMESPACE: dict(described)},
    }
    (folder / runner.MANIFEST).write_text(json.dumps(manifest, indent=2), encoding="utf-8")


def _write_requirements(path: Path, variants: Mapping[str, Any]) -> None:
    """Exact versions of numpy and of the runtimes that the newest plan needs."""
    needed = {"numpy": np.__version__}
    for variant in reversed(list(variants.values())):
        needed |= variant["executor_info"][runner.NAMESPACE]["requirements"]
    lines = [f"{name}=={number}" for name, number in sorted(needed.items())]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _write_sums(folder: Path) -> None:
    files = sorted(file for file in folder.rglob("*") if file.is_file() and file.name != runner.SUMS)
    lines = [f"{file_digest(file)}  {file.relative_to(folder).as_posix()}\n" for file in files]
    (folder / runner.SUMS).write_text("".join(lines), encoding="utf-8")


def _replace(new: Path, folder: Path) -> None:
    """Put a finished package in its place; what was there stays until then."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    unfinished = folder.with_name(f".{folder.name}.unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    shutil.copytree(new, unfinished)
    shutil.rmtree(folder, ignore_errors=True)
    unfinished.rename(folder)


def _described(specs: Sequence[TensorSpec]) -> list[dict[str, Any]]:
    return [{"name": s.name, "dtype": s.dtype, "shape": list(s.shape or ())} for s in specs]
