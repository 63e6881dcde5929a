"""The models that benchmarks run on, by name: each is built or found, then kept in a cache folder.

* `light_*`: nine image models of the onnx package, constant weights replaced by seeded ones;
* `ppocr_det`, `ppocr_rec`, `ppocr_cls`, `silero`, `magika`: trained models of installed packages;
* the rest: published architectures rebuilt in `benchmarks.support.zoo` with seeded weights.

All have batch size 1. Where a benchmark accepts files, a model of the user's own is written `FILE` or,
with its free dimensions, `FILE:batch=1,length=128`.
"""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx

from benchmarks.support.zoo import convolutional, nasnet, transformers
from collage.backends.numerics import reference, seeded
from collage.partitioner.graph.model import Model
from collage.partitioner.ingest.normalize import normalize
from tests import models as installed
from tests.seeded_weights import calibrate, reseed

# Part of every cached file's name: change it when a model is built in another way.
_EDITION = 2

_BUILT: dict[str, Callable[[], onnx.ModelProto]] = {
    "resnext50": convolutional.resnext50,
    "mobilenet_v2": convolutional.mobilenet_v2,
    "r3d_18": convolutional.resnet18_3d,
    "dcgan": convolutional.dcgan,
    "nasnet_mobile": nasnet.nasnet_mobile,
    "bert_base": transformers.bert_base,
    "gpt2": transformers.gpt2,
    "vit_small": transformers.vit_small,
}
_TRAINED = ("ppocr_det", "ppocr_rec", "ppocr_cls", "silero", "magika")
_RANGES: dict[str, tuple[int, int]] = {
    "input_ids": (0, 30000),
    "attention_mask": (1, 1),
    "token_type_ids": (0, 2),
}
_FILE = re.compile(r"(?P<path>.+\.(?:onnx|zip))(?::(?P<dims>[^=,]+=[1-9]\d*(?:,[^=,]+=[1-9]\d*)*))?")


@dataclass(frozen=True)
class BenchmarkModel:
    """A model ready to be tuned.

    Args:
        name: in `names()`.
        path: the ONNX file; for trained models the package's own.
        dims: its free dimensions.
    """

    name: str
    path: Path
    dims: Mapping[str, int]

    def inputs(self, model: Model, seed: int = 0) -> dict[str, np.ndarray]:
        """Seeded inputs of the normalized model, in ranges that make sense for it."""
        return seeded_inputs(self.name, model, seed)


def names() -> tuple[str, ...]:
    """Every model, the nine light ones first."""
    return (*installed.all_light(), *_TRAINED, *_BUILT)


def name_or_file(word: str) -> str:
    """The word itself, for argparse.

    Raises:
        argparse.ArgumentTypeError: it is neither one of `names()` nor a file that is there.
    """
    found = _FILE.fullmatch(word)
    if word in names() or (found and Path(found["path"]).is_file()):
        return word
    raise argparse.ArgumentTypeError(
        f"{word!r} is neither a file (FILE.onnx or FILE.onnx:batch=1) nor one of {', '.join(names())}"
    )


def benchmark_model(name: str, cache: Path | None = None) -> BenchmarkModel:
    """Find a model, or build it once.

    Args:
        name: one of `names()`, or a file as `name_or_file` accepts it.
        cache: a folder for what is built; by default `COLLAGE_BENCHMARK_CACHE` or
            `~/.cache/collage/benchmarks`.

    Raises:
        KeyError: there is no such model.
    """
    if file := _FILE.fullmatch(name):
        given = dict(pair.split("=") for pair in (file["dims"] or "").split(",") if pair)
        return BenchmarkModel(name, Path(file["path"]), {dim: int(size) for dim, size in given.items()})
    if name in _TRAINED:
        return BenchmarkModel(name, installed.model_path(name), installed.default_dims(name))
    folder = cache or default_cache()
    path = folder / f"{name}-{_EDITION}.onnx"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        proto = _BUILT[name]() if name in _BUILT else _light(name, folder)
        _settle(name, proto)
        partial = path.with_suffix(f".{os.getpid()}.partial")
        onnx.save(proto, partial)
        partial.replace(path)
    return BenchmarkModel(name, path, {})


def seeded_inputs(name: str, model: Model, seed: int = 0) -> dict[str, np.ndarray]:
    """Inputs of a normalized model, the same on every machine."""
    specs = [model.index.values[value] for value in model.index.inputs]
    if name not in names():
        return seeded.seeded_inputs(specs, seed, reference.table_bounds(model.index))
    if name in installed.MODELS:
        return installed.sample_inputs(name, specs, seed)
    return {
        spec.name: installed.seeded_input(
            spec.static_shape, spec.dtype, seed + i, _RANGES.get(spec.name)
        )
        for i, spec in enumerate(specs)
    }


def default_cache() -> Path:
    """The folder of what benchmarks build and download."""
    folder = os.environ.get("COLLAGE_BENCHMARK_CACHE")
    return Path(folder) if folder else Path.home() / ".cache" / "collage" / "benchmarks"


def _normalized(source: Path, folder: Path, name: str) -> onnx.ModelProto:
    """The normalized form as one protobuf: constant fills are weights there."""
    destination = folder / f".{name}.{os.getpid()}"
    try:
        return onnx.load(normalize(source, destination, {}).path)
    finally:
        for file in destination.glob("*"):
            file.unlink()
        if destination.exists():
            destination.rmdir()


def _light(name: str, folder: Path) -> onnx.ModelProto:
    proto = _normalized(installed.MODELS[name].path, folder, name)
    reseed(proto, seed=len(name))
    return proto


def _settle(name: str, proto: onnx.ModelProto) -> None:
    """Give batch norms and the last layer numbers that a trained model would have."""
    if not any(node.op_type == "BatchNormalization" for node in proto.graph.node) and name in _BUILT:
        return
    feed = {
        value.name: installed.seeded_input(
            tuple(d.dim_value for d in value.type.tensor_type.shape.dim), "float32", 99
        )
        for value in proto.graph.input
    }
    calibrate(proto, feed)
