"""Seeded images that a network for text finds something in."""

from __future__ import annotations

import numpy as np

Array = np.ndarray

_SEGMENTS = ("abcdef", "bc", "abdeg", "abcdg", "bcfg", "acdfg", "acdefg", "abc", "abcdefg", "abcdfg")


def digits(shape: tuple[int, ...], seed: int = 0) -> Array:
    """Rows of dark digits on light paper, as scanned text looks: (N, C, H, W) in [-1, 1].

    Legible, since a network guesses at illegible text, and any rounding changes a guess.
    """
    generator = np.random.default_rng(seed)
    height, width = shape[-2:]
    page = np.full((height, width), 0.9, np.float32)
    tall = min(32, height * 2 // 3)
    wide, gap = tall // 2, tall // 6
    for top in range(tall if height > 3 * tall else (height - tall) // 2, height - tall + 1, 3 * tall):
        left = wide
        while left + wide < width:
            for _ in range(generator.integers(3, 8)):
                if left + wide < width:
                    page[top : top + tall, left : left + wide] -= 1.7 * _digit(
                        generator.integers(len(_SEGMENTS)), tall
                    )
                left += wide + gap
            left += 2 * wide
    page[1:-1] = (page[:-2] + 2 * page[1:-1] + page[2:]) / 4
    page[:, 1:-1] = (page[:, :-2] + 2 * page[:, 1:-1] + page[:, 2:]) / 4
    noise = generator.standard_normal(shape, np.float32) * np.float32(0.02)
    return np.clip(page + noise, -1, 1).astype(np.float32)


def strokes(shape: tuple[int, ...], seed: int = 0) -> Array:
    """Rows of dark strokes on light paper, with an up and a down as text has: (N, C, H, W) in [-1, 1]."""
    generator = np.random.default_rng(seed)
    height, width = shape[-2:]
    page = np.full((height, width), 0.9, np.float32)
    line = min(40, height)
    for top in range(line // 5, height - line // 2, 2 * line):
        for left in range(line // 2, width - line, line * 3 // 4):
            for _ in range(4):
                y, x = generator.integers(0, line // 2, 2)
                tall, wide = (line // 2, 3) if generator.random() < 0.5 else (3, line // 2)
                page[top + y // 2 : top + y // 2 + tall, left + x : left + x + wide] = -0.8
    noise = generator.standard_normal(shape, np.float32) * np.float32(0.02)
    return np.clip(page + noise, -1, 1).astype(np.float32)


def _digit(number: int, tall: int) -> Array:
    """A digit of seven segments, 1 where there is ink: (tall, tall // 2)."""
    ink = np.zeros((tall, tall // 2), np.float32)
    pen, middle = max(2, tall // 9), tall // 2
    across = slice(middle - pen // 2, middle - pen // 2 + pen)
    places = {
        "a": (slice(pen), slice(None)),
        "b": (slice(middle), slice(-pen, None)),
        "c": (slice(middle, None), slice(-pen, None)),
        "d": (slice(-pen, None), slice(None)),
        "e": (slice(middle, None), slice(pen)),
        "f": (slice(middle), slice(pen)),
        "g": (across, slice(None)),
    }
    for segment in _SEGMENTS[number]:
        ink[places[segment]] = 1
    return ink
