"""Lines and pages of text, rendered with many fonts, sizes, noise and rotations; the truth is known."""

from __future__ import annotations

import string
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from benchmarks.trained.case import Case
from benchmarks.trained.packages import importable, package

Array = np.ndarray

_OCR = "rapidocr-onnxruntime==1.4.4"
_PILLOW, _FONTS = "pillow==12.0.0", "matplotlib==3.10.7"
_WORDS = [
    "invoice",
    "total",
    "amount",
    "date",
    "number",
    "street",
    "market",
    "energy",
    "river",
    "window",
    "paper",
    "garden",
    "silver",
    "music",
    "thunder",
    "copper",
    "valley",
    "engine",
    "signal",
    "orange",
    "pocket",
    "castle",
    "summer",
    "winter",
    "letter",
    "island",
    "forest",
    "bridge",
    "mirror",
    "planet",
    "rocket",
    "saddle",
    "tunnel",
    "velvet",
    "walnut",
    "yellow",
    "zipper",
    "basket",
    "candle",
    "dragon",
]
_REC, _CLS, _DET = (48, 320), (48, 192), (480, 640)


def recognition(samples: int) -> Case:
    """Lines of text, scored by characters."""
    model = _model("ch_PP-OCRv4_rec_infer.onnx")
    symbols = _symbols(model)
    images, texts = [], []
    for seed in range(samples):
        random = np.random.default_rng(seed)
        text = _text(random, 22)
        images.append(_network(_fit(_line(text, random), _REC)))
        texts.append([symbols[character] for character in text])
    longest = max(map(len, texts))
    labels = np.array([[*text, *[-1] * (longest - len(text))] for text in texts])
    dims = {"p2o.DynamicDimension.0": 1, "x:2": _REC[0], "p2o.DynamicDimension.1": _REC[1]}
    return Case(
        model=model, inputs={"x": np.stack(images)}, evaluate="text", labels={"labels": labels}, dims=dims,
        about=f"{samples} lines",
    )  # fmt: skip


def orientation(samples: int) -> Case:
    """Lines of text, upright or upside down."""
    images, labels = [], []
    for seed in range(samples):
        random = np.random.default_rng(seed)
        image = _fit(_line(_text(random, 16), random), _CLS)
        labels.append(int(random.integers(2)))
        images.append(_network(image[::-1, ::-1] if labels[-1] else image))
    return Case(
        model=_model("ch_ppocr_mobile_v2.0_cls_infer.onnx"), inputs={"x": np.stack(images)}, evaluate="top1",
        labels={"labels": np.array(labels)}, dims={"x:0": 1, "x:2": _CLS[0], "x:3": _CLS[1]},
        about=f"{samples} lines, half upside down",
    )  # fmt: skip


def detection(samples: int) -> Case:
    """Pages, scored by the boxes of their lines."""
    pages = [_page(np.random.default_rng(seed)) for seed in range(samples)]
    most = max(len(boxes) for _, boxes in pages)
    labels = np.full((samples, most, 4), -1.0)
    for i, (_, boxes) in enumerate(pages):
        labels[i, : len(boxes)] = boxes
    names = [f"p2o.DynamicDimension.{i}" for i in range(3)]
    return Case(
        model=_model("ch_PP-OCRv4_det_infer.onnx"), inputs={"x": np.stack([_network(p) for p, _ in pages])},
        evaluate="map", labels={"boxes": labels}, dims=dict(zip(names, (1, *_DET), strict=True)),
        about=f"{samples} pages",
    )  # fmt: skip


def _model(name: str) -> Path:
    return package(_OCR) / "rapidocr_onnxruntime" / "models" / name


def _symbols(model: Path) -> dict[str, int]:
    """The class of each character, from the model's metadata; 0 is the blank, the last one the space."""
    (found,) = (p.value for p in onnx.load(model).metadata_props if p.key == "character")
    return {symbol: number for number, symbol in enumerate([*found.splitlines(), " "], 1)}


def _text(random: np.random.Generator, most: int) -> str:
    """Words and numbers of at most so many characters."""
    text = ""
    while len(text) < most // 2:
        word = str(random.choice(_WORDS))
        if random.random() < 0.3:
            word = "".join(random.choice(list(string.digits), size=int(random.integers(2, 6))))
        elif random.random() < 0.3:
            word = word.capitalize()
        text = f"{text} {word}".strip()
    return text[:most].strip()


@cache
def _fonts() -> Sequence[Path]:
    """Fonts with Latin letters that matplotlib ships."""
    folder = package(_FONTS) / "matplotlib" / "mpl-data" / "fonts" / "ttf"
    return sorted([*folder.glob("DejaVu*.ttf"), *folder.glob("STIXGeneral*.ttf")])


def _pillow() -> tuple[Any, Any, Any]:
    importable(_PILLOW)
    from PIL import Image, ImageDraw, ImageFont

    return Image, ImageDraw, ImageFont


def _line(text: str, random: np.random.Generator) -> Array:
    """A line of text as it comes out of a camera or a scanner, (height, width, 3) of 0 to 255."""
    image_of, draw_of, font_of = _pillow()
    size = int(random.integers(18, 44))
    font = font_of.truetype(str(random.choice(_fonts())), size)
    left, top, right, bottom = font.getbbox(text)
    margin = int(random.integers(2, 8))
    paper, ink = _colors(random)
    image = image_of.new("RGB", (right - left + 2 * margin, bottom - top + 2 * margin), paper)
    draw_of.Draw(image).text((margin - left, margin - top), text, fill=ink, font=font)
    turned = image.rotate(
        float(random.normal(0, 1.2)), expand=True, fillcolor=paper, resample=image_of.Resampling.BICUBIC
    )
    if random.random() < 0.3:  # a small picture, made larger again
        small = turned.resize((max(1, turned.width // 2), max(1, turned.height // 2)))
        turned = small.resize(turned.size)
    return _noisy(np.asarray(turned), random)


def _colors(random: np.random.Generator) -> tuple[tuple[int, ...], tuple[int, ...]]:
    paper = tuple(int(c) for c in random.integers(190, 256, 3))
    ink = tuple(int(c) for c in random.integers(0, 90, 3))
    return (ink, paper) if random.random() < 0.2 else (paper, ink)


def _noisy(image: Array, random: np.random.Generator) -> Array:
    noise = random.normal(0, random.uniform(0, 14), image.shape)
    return np.clip(image + noise, 0, 255)


def _fit(image: Array, shape: tuple[int, int]) -> Array:
    """The image with the network's height, padded at the right."""
    image_of, *_ = _pillow()
    height, width = shape
    scaled = min(width, max(1, round(image.shape[1] * height / image.shape[0])))
    resized = np.asarray(image_of.fromarray(image.astype(np.uint8)).resize((scaled, height)))
    full = np.full((height, width, 3), 127.5)
    full[:, :scaled] = resized
    return full


def _network(image: Array) -> Array:
    """As the models read it: channels first, blue to red, from -1 to 1, with a batch axis."""
    scaled = (image[:, :, ::-1] / 255.0 - 0.5) / 0.5
    return np.ascontiguousarray(scaled.transpose(2, 0, 1)[None], dtype=np.float32)


def rendered_page(random: np.random.Generator) -> Array:
    """A page, (height, width, 3) of 0 to 255."""
    return _page(random)[0]


def _page(random: np.random.Generator) -> tuple[Array, list[list[float]]]:
    """A page and the boxes of its lines."""
    image_of, draw_of, font_of = _pillow()
    height, width = _DET
    paper, ink = _colors(random)
    image = image_of.new("RGB", (width, height), paper)
    draw = draw_of.Draw(image)
    boxes: list[list[float]] = []
    y = int(random.integers(10, 40))
    while True:
        font = font_of.truetype(str(random.choice(_fonts())), int(random.integers(16, 40)))
        text = _text(random, 26)
        x = int(random.integers(10, 120))
        left, top, right, bottom = draw.textbbox((x, y), text, font=font)
        if bottom > height - 10:
            break
        if right < width - 5:
            draw.text((x, y), text, fill=ink, font=font)
            boxes.append([left, top, right, bottom])
        y = int(bottom + random.integers(8, 40))
    return _noisy(np.asarray(image), random), boxes
