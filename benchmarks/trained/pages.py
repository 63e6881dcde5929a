"""Lines and pages rendered with many fonts, sizes, noise and rotations; the truth is known."""

from __future__ import annotations

import string
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.trained.packages import importable, package

Array = np.ndarray

_PILLOW, _FONTS = "pillow==12.0.0", "matplotlib==3.10.7"
_WORDS = """
invoice total amount date number street market energy river window paper garden silver
music thunder copper valley engine signal orange pocket castle summer winter letter island
forest bridge mirror planet rocket saddle tunnel velvet walnut yellow zipper basket candle
dragon
"""
PAGE = (480, 640)
"""Height and width."""
# Of a line's height: people who draw boxes leave so much around the ink, and detectors learn it.
_AROUND = 0.2


def text_of(random: np.random.Generator, most: int) -> str:
    """Words and numbers of at most so many characters."""
    text = ""
    while len(text) < most // 2:
        word = str(random.choice(_WORDS.split()))
        if random.random() < 0.3:
            word = "".join(random.choice(list(string.digits), size=int(random.integers(2, 6))))
        elif random.random() < 0.3:
            word = word.capitalize()
        text = f"{text} {word}".strip()
    return text[:most].strip()


@cache
def fonts() -> Sequence[Path]:
    """Fonts with Latin letters that matplotlib ships."""
    folder = package(_FONTS) / "matplotlib" / "mpl-data" / "fonts" / "ttf"
    return sorted([*folder.glob("DejaVu*.ttf"), *folder.glob("STIXGeneral*.ttf")])


def pillow() -> tuple[Any, Any, Any]:
    """Pillow's modules Image, ImageDraw and ImageFont."""
    importable(_PILLOW)
    from PIL import Image, ImageDraw, ImageFont

    return Image, ImageDraw, ImageFont


def line_image(text: str, random: np.random.Generator) -> Array:
    """A line of text as it comes out of a camera or a scanner, (height, width, 3) of 0 to 255."""
    image_of, draw_of, font_of = pillow()
    size = int(random.integers(18, 44))
    font = font_of.truetype(str(random.choice(fonts())), size)
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
    return noisy(np.asarray(turned), random)


def _colors(random: np.random.Generator) -> tuple[tuple[int, ...], tuple[int, ...]]:
    paper = tuple(int(c) for c in random.integers(190, 256, 3))
    ink = tuple(int(c) for c in random.integers(0, 90, 3))
    return (ink, paper) if random.random() < 0.2 else (paper, ink)


def noisy(image: Array, random: np.random.Generator) -> Array:
    """The image with the noise of a camera."""
    noise = random.normal(0, random.uniform(0, 14), image.shape)
    return np.clip(image + noise, 0, 255)


def fitted(image: Array, shape: tuple[int, int]) -> Array:
    """The image with the network's height, padded at the right."""
    image_of, *_ = pillow()
    height, width = shape
    scaled = min(width, max(1, round(image.shape[1] * height / image.shape[0])))
    resized = np.asarray(image_of.fromarray(image.astype(np.uint8)).resize((scaled, height)))
    full = np.full((height, width, 3), 127.5)
    full[:, :scaled] = resized
    return full


def page_image(
    random: np.random.Generator, shape: tuple[int, int] = PAGE
) -> tuple[Array, list[list[float]]]:
    """A page, (height, width, 3) of 0 to 255, and the boxes of its lines."""
    image_of, draw_of, font_of = pillow()
    height, width = shape
    paper, ink = _colors(random)
    image = image_of.new("RGB", (width, height), paper)
    draw = draw_of.Draw(image)
    boxes: list[list[float]] = []
    y = int(random.integers(10, 40))
    while True:
        font = font_of.truetype(str(random.choice(fonts())), int(random.integers(16, 40)))
        text = text_of(random, 26)
        x = int(random.integers(10, 120))
        left, top, right, bottom = draw.textbbox((x, y), text, font=font)
        if bottom > height - 10:
            break
        if right < width - 5:
            draw.text((x, y), text, fill=ink, font=font)
            around = _AROUND * (bottom - top)
            boxes.append([left - around, top - around, right + around, bottom + around])
        y = int(bottom + random.integers(8, 40))
    return noisy(np.asarray(image), random), boxes
