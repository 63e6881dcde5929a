"""Real models for tests and benchmarks, found in installed packages without importing these.

`light_*` come from the onnx package; their weights are constant fills, good for structure and useless
for accuracy (`seeded_weights` replaces them). PP-OCR, silero and magika are trained models.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from collage.partitioner.tensor import TensorSpec
from tests.text_images import digits, strokes

Array = np.ndarray


@dataclass(frozen=True)
class TestModel:
    """A model file of an installed package.

    Args:
        package: the package that brings the file.
        file: path inside the package.
        dims: free dimensions as the model is usually run.
        ranges: values of inputs, low and high, where standard normal numbers make no sense.
        image: makes inputs that look like lines of text, where a network finds nothing in noise.
    """

    __test__ = False

    package: str
    file: str
    dims: Mapping[str, int] = field(default_factory=dict)
    ranges: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    image: Callable[[tuple[int, ...], int], Array] | None = None

    @property
    def path(self) -> Path:
        spec = importlib.util.find_spec(self.package)
        assert spec is not None and spec.origin is not None, f"{self.package} is not installed"
        return Path(spec.origin).parent / self.file


_OCR = "rapidocr_onnxruntime"
_LIGHT = [
    "bvlc_alexnet",
    "densenet121",
    "inception_v1",
    "inception_v2",
    "resnet50",
    "shufflenet",
    "squeezenet",
    "vgg19",
    "zfnet512",
]
MODELS: dict[str, TestModel] = {
    **{
        f"light_{name}": TestModel("onnx", f"backend/test/data/light/light_{name}.onnx")
        for name in _LIGHT
    },
    "ppocr_det": TestModel(
        _OCR, "models/ch_PP-OCRv4_det_infer.onnx", {"x:0": 1, "x:2": 480, "x:3": 640}, image=digits
    ),
    "ppocr_rec": TestModel(
        _OCR, "models/ch_PP-OCRv4_rec_infer.onnx", {"x:0": 1, "x:2": 48, "x:3": 320}, image=digits
    ),
    "ppocr_cls": TestModel(
        _OCR,
        "models/ch_ppocr_mobile_v2.0_cls_infer.onnx",
        {"x:0": 1, "x:2": 48, "x:3": 192},
        image=strokes,
    ),
    "silero": TestModel(
        "silero_vad", "data/silero_vad.onnx", {"input:0": 1, "input:1": 576, "state:1": 1, "sr": 16000}
    ),
    "silero_if": TestModel(
        "silero_vad",
        "data/silero_vad.onnx",
        {"input:0": 1, "input:1": 576, "state:1": 1},
        {"sr": (16000, 16000)},
    ),
    "silero_16k": TestModel(
        "silero_vad",
        "data/silero_vad_16k_op15.onnx",
        {"batch": 1, "sequence": 576},
        {"sr": (16000, 16000)},
    ),
    "magika": TestModel(
        "magika", "models/standard_v3_3/model.onnx", {"bytes:0": 1}, {"bytes": (0, 256)}
    ),
}


def model_path(name: str) -> Path:
    """The file of a model as its package brings it."""
    return MODELS[name].path


def default_dims(name: str) -> dict[str, int]:
    """The sizes of its free dimensions."""
    return dict(MODELS[name].dims)


def all_light() -> list[str]:
    """The onnx package's nine image models with constant weights."""
    return [name for name in MODELS if name.startswith("light_")]


def all_small() -> list[str]:
    """Models that are normalized and run in about a second."""
    return [
        "light_squeezenet",
        "light_shufflenet",
        "ppocr_cls",
        "silero",
        "silero_if",
        "silero_16k",
        "magika",
    ]


def seeded_input(
    shape: tuple[int, ...], dtype: str, seed: int = 0, low_high: tuple[int, int] | None = None
) -> Array:
    """Standard normal numbers, or whole numbers between two bounds, the same on every machine."""
    generator = np.random.default_rng(seed)
    if low_high is not None:
        low, high = low_high
        return np.asarray(generator.integers(low, high + 1 if low == high else high, shape)).astype(
            dtype
        )
    if np.issubdtype(np.dtype(dtype), np.floating):
        return np.asarray(generator.standard_normal(shape)).astype(dtype)
    return np.asarray(generator.integers(0, 2, shape)).astype(dtype)


def sample_inputs(name: str, specs: Iterable[TensorSpec], seed: int = 0) -> dict[str, Array]:
    """Seeded inputs that suit a model of this table."""
    model = MODELS[name]
    return {
        spec.name: model.image(spec.static_shape, seed)
        if model.image
        else seeded_input(spec.static_shape, spec.dtype, seed + i, model.ranges.get(spec.name))
        for i, spec in enumerate(specs)
    }
