"""One color per target, the same on every page; graph.js and job.js read the classes that are made here."""

from __future__ import annotations

_KNOWN = ("onnxruntime", "openvino", "mnn", "ncnn", "torch")
_COLORS = 8
_SHADES = 3


def color_class(target: str) -> str:
    """The CSS classes of a target: a hue for its backend, and a shade for its options.

    Args:
        target: a target's text, such as `openvino -threads=1`.
    """
    backend, _, options = target.strip().partition(" ")
    spare = _COLORS - len(_KNOWN)
    hue = _KNOWN.index(backend) if backend in _KNOWN else len(_KNOWN) + _hash(backend) % spare
    shade = 1 + _hash(options) % _SHADES if options else 0
    return f"c{hue} v{shade}"


def _hash(text: str) -> int:
    """A number that stays the same between processes; colors.js has the same rule."""
    total = 7
    for character in text:
        total = (total * 31 + ord(character)) % 65_521
    return total
