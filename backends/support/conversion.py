"""Helpers for converters of other runtimes: explicit defaults, weights inside the file, and a cache.

MNN's converter and pnnx misread attributes that ONNX lets a model leave out (`strides` of pooling,
`axis` of softmax). So a copy of the model states them. MNN cannot run a Dropout on its own, so that
becomes an Identity.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from collage.backends.support.file_digests import (
    boot,
    files_of,
    remember_digest,
    remembered_digest,
)
from collage.partitioner.file_digest import file_digest
from collage.partitioner.graph import weights
from collage.partitioner.graph.graph_index import GraphIndex, NodeInfo
from collage.partitioner.lazy import ir

_SUMS = "SHA256SUMS"
_TIMEOUT_S = 300
# Converters copy all weights several times, mostly into new pages. So glibc's malloc keeps freed
# memory, and takes large pages (docs/results/load-time.md).
_REUSE = {
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": str(1 << 40),
    "MALLOC_TOP_PAD_": str(256 << 20),
    "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",
}
# Part of every conversion's key: raise it when `write_explicit` writes something else.
_EDITION = 2
_INLINE_LIMIT_BYTES = 1 << 31  # of a protobuf
_FLAT_SOFTMAX_BEFORE = 13
_SOFTMAXES = {"Softmax", "LogSoftmax"}
_POOLS = {"AveragePool", "MaxPool"}
_INFERRING = 2  # inputs of a Dropout that is not told whether it trains


def refuse_flattening_softmax(index: GraphIndex, node: NodeInfo) -> str | None:
    """Refuse softmax that flattens several axes into one, as it did before opset 13."""
    spec = index.input_spec(node.index, 0)
    if node.op_type not in _SOFTMAXES or node.opset >= _FLAT_SOFTMAX_BEFORE or spec is None:
        return None
    axis, shape = node.attributes.get("axis", 1), spec.shape
    if shape and isinstance(axis, int) and all(d == 1 for d in shape[axis % len(shape) + 1 :]):
        return None
    return f"before opset 13 {node.op_type} flattens all axes that follow, and this runtime takes one"


def write_explicit(source: Path, destination: Path) -> None:
    """Write a model with misread defaults made explicit and all weights inside the file."""
    model = ir.load(source)
    flat = model.opset_imports.get("", _FLAT_SOFTMAX_BEFORE) < _FLAT_SOFTMAX_BEFORE
    for node in model.graph:
        if node.op_type in _POOLS and "strides" not in node.attributes:
            kernel = node.attributes["kernel_shape"].as_ints()
            node.attributes.add(ir.AttrInt64s("strides", [1] * len(kernel)))
        if node.op_type in _SOFTMAXES and "axis" not in node.attributes:
            node.attributes.add(ir.AttrInt64("axis", 1 if flat else -1))
        if node.op_type == "Dropout" and len(node.inputs) <= _INFERRING and len(node.outputs) == 1:
            node.op_type = "Identity"
            node.attributes.clear()
            node.resize_inputs(1)
    write_streamed(model, destination)


def write_streamed(model: ir.Model, destination: Path) -> None:
    """Write a model with all weights inside the file, without a protobuf of them."""
    structure = weights.whole_structure(model)
    weights.write(structure, list(model.graph.initializers.values()), destination, _INLINE_LIMIT_BYTES)


def run_converter(words: Sequence[str], folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a converter's command in a folder; its output is in the result.

    Raises:
        subprocess.TimeoutExpired: it took more than five minutes.
    """
    return subprocess.run(
        words,
        cwd=folder,
        env={**os.environ, **_REUSE},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        encoding="utf-8",
        errors="replace",
        timeout=_TIMEOUT_S,
        check=False,
    )


def converted(
    source: Path,
    files: Sequence[str],
    converter: str,
    convert: Callable[[Path, Path], None],
    work_dir: Path,
    cache_dir: Path | None,
) -> Path:
    """The folder with a runtime's own files for a model, from the cache where they are in it.

    Args:
        source: the ONNX file.
        files: names of the files that `convert` makes.
        converter: name and version of the converter, part of the cache's key.
        convert: makes the files from an explicit model (first argument) in a folder (second).
        work_dir: an empty folder for everything else.
        cache_dir: where conversions are kept, or None.
    """

    def make(folder: Path) -> None:
        explicit = work_dir / "explicit.onnx"
        write_explicit(source, explicit)
        try:
            convert(explicit, folder)
        finally:
            explicit.unlink(missing_ok=True)

    return cached(files_of(source), files, f"{converter} {_EDITION}", make, work_dir, cache_dir)


def cached(
    sources: Sequence[Path],
    files: Sequence[str],
    maker: str,
    make: Callable[[Path], None],
    work_dir: Path,
    cache_dir: Path | None,
) -> Path:
    """The folder with files that are made from others, from the cache where they are in it.

    Args:
        sources: the files that decide the result, beside the maker.
        files: names of the files that `make` makes.
        maker: name and version of the maker, part of the cache's key.
        make: makes the files in a folder.
        work_dir: an empty folder for everything else.
        cache_dir: where files are kept, or None.
    """
    if cache_dir is None:
        make(work_dir)
        return work_dir
    content = [maker, *(remembered_digest(source, cache_dir) for source in sources)]
    digest = hashlib.sha256("\n".join(content).encode()).hexdigest()
    folder = cache_dir / f"{maker.split()[0]}-{digest}"
    if not _is_whole(folder, files, cache_dir):
        shutil.rmtree(folder, ignore_errors=True)
        make(work_dir)
        _keep([work_dir / name for name in files], folder, cache_dir)
    else:
        with contextlib.suppress(OSError):
            os.utime(folder)  # the time of the last use decides what is removed for space
    return folder


def _is_whole(folder: Path, files: Sequence[str], cache_dir: Path) -> bool:
    """True when the cache has these files undamaged: native code may crash on damaged ones."""
    try:
        expected = (folder / _SUMS).read_text(encoding="utf-8")
        return expected == _sums({name: _digest(folder / name, cache_dir) for name in files})
    except (OSError, ValueError):
        return False


def _digest(file: Path, cache_dir: Path) -> str:
    # Remembered digests miss damage by a crash of the machine, so each start of it reads anew.
    return remembered_digest(file, cache_dir, boot()) if boot() else file_digest(file)


def _sums(digests: Mapping[str, str]) -> str:
    return "".join(f"{digest} {name}\n" for name, digest in digests.items())


def _keep(files: Sequence[Path], folder: Path, cache_dir: Path) -> None:
    """Move files into the cache so that a reader sees all of them or none."""
    unfinished = folder.with_name(f"{folder.name}.{os.getpid()}-{threading.get_ident()}")
    unfinished.mkdir(parents=True)
    digests = {file.name: file_digest(file) for file in files}
    (unfinished / _SUMS).write_text(_sums(digests), encoding="utf-8")
    for file in files:
        shutil.move(file, unfinished / file.name)
    try:
        unfinished.rename(folder)
    except OSError:  # another process was first, and its files are the same
        shutil.rmtree(unfinished)
        return
    if boot():
        for name, digest in digests.items():
            remember_digest(folder / name, digest, cache_dir, boot())
