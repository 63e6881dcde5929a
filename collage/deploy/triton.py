"""Writes an artifact as a model of a Triton repository, for the Python backend.

    <folder>/<model>/config.pbtxt      inputs and outputs
    <folder>/<model>/1/model.py        `triton_model.py`
    <folder>/<model>/1/package         the package, which model.py opens with its own runner

Source: Triton's model repository, model configuration and Python backend.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from collage.deploy import runner
from collage.deploy.package import WrittenPackage, write_package
from collage.partitioner.errors import BadInputError

CONFIG = "config.pbtxt"
_VERSION = "1"
_MODEL = "model.py"
_PACKAGE = "package"
# Found beside this file, and not imported: its module of Triton's exists only there.
_SOURCE = Path(__file__).with_name("triton_model.py")
_TYPES = {
    "bool": "TYPE_BOOL",
    "float16": "TYPE_FP16",
    "float32": "TYPE_FP32",
    "float64": "TYPE_FP64",
    **{
        f"{sign}int{bits}": f"TYPE_{sign}INT{bits}".upper()
        for sign in ("", "u")
        for bits in (8, 16, 32, 64)
    },
}


def write_triton_model(
    artifact: Path, repository: Path, threads: int | None = None
) -> tuple[Path, WrittenPackage]:
    """Write a model below a repository's folder, or add a variant to the one that is there.

    Args:
        artifact: a partitioned model; the model is named by its file.
        repository: Triton's `--model-repository`.
        threads: threads of one call; None for the number of cores given to this process.

    Returns:
        The model's folder, and its package.

    Raises:
        BadInputError: the artifact cannot be packaged, or Triton has no name for a type of its tensors.
    """
    name = re.sub(r"[^A-Za-z0-9_.-]", "_", artifact.name.removesuffix(".onnx").removesuffix(".collage"))
    model = repository / name
    written = write_package(artifact, model / _VERSION / _PACKAGE, threads)
    manifest = json.loads((written.folder / runner.MANIFEST).read_text(encoding="utf-8"))
    described = manifest["additional_metadata"][runner.NAMESPACE]
    (model / CONFIG).write_text(config(described["inputs"], described["outputs"]), encoding="utf-8")
    shutil.copy(_SOURCE, model / _VERSION / _MODEL)
    return model, written


def config(inputs: Sequence[Mapping[str, Any]], outputs: Sequence[Mapping[str, Any]]) -> str:
    """A model's configuration; its name is left to the folder, and each request is a whole batch."""
    tensors = [_tensor("input", each) for each in inputs] + [
        _tensor("output", each) for each in outputs
    ]
    head = 'backend: "python"\nmax_batch_size: 0\n'
    return head + "".join(tensors) + "instance_group [ { count: 1 kind: KIND_CPU } ]\n"


def _tensor(kind: str, described: Mapping[str, Any]) -> str:
    name, dtype, shape = described["name"], described["dtype"], described["shape"]
    if dtype not in _TYPES:
        raise BadInputError(f"{kind} {name!r} is {dtype}, which Triton's Python backend has not")
    # Triton has no tensors without dimensions, and lets only models with batches reshape to such; `model.py` does.
    # A size of 0 it takes from requests alone.
    dims = ", ".join(str(size if isinstance(size, int) and size else -1) for size in shape or [1])
    return (
        f"{kind} [ {{ name: {json.dumps(name, ensure_ascii=False)} data_type: {_TYPES[dtype]} "
        f"dims: [ {dims} ] }} ]\n"
    )
