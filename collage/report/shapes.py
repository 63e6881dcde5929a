"""What a report says of a range of shapes, in words."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from collage.report.verdict import title

_NUMBERS = re.compile(r"[0-9.]+")


def sentence(shapes: Mapping[str, Any]) -> str:
    """The answer in one sentence: the mean over all shapes beside that of each single target."""
    weighted = shapes["weighted"]
    ranges = ", ".join(f"{name} {text}" for name, text in shapes["dims"].items())
    count = len(shapes["classes"])
    plans = "one plan" if count == 1 else f"{count} plans"
    others = [s for s in weighted["singles"] if s["any_shape_us"] is not None]
    told = ", ".join(
        f"{s['any_shape_us'] / weighted['latency_us']:.2f} × {title(s['target'])}"
        for s in sorted(others, key=lambda s: float(s["any_shape_us"]))
    )
    return (
        f"{plans} for {ranges}: {weighted['latency_us'] / 1e3:.3f} ms in the mean over shapes"
        f"{f', {told}, each compiled for any shape' if told else ''}."
    )


def class_texts(shapes: Mapping[str, Any]) -> list[str]:
    """What runs each class of shapes, one sentence each."""
    return [
        _class(shapes["classes"], number, one, shapes["rows"])
        for number, one in enumerate(shapes["classes"])
    ]


def memory_text(shapes: Mapping[str, Any]) -> str:
    """What processes held that ran all shapes."""
    peaks = shapes.get("peak_rss_bytes", {})  # reports of before have none
    held = ", ".join(
        f"{name} {size >> 20} MiB" + (f" ({peaks[name] >> 20} MiB at most)" if name in peaks else "")
        for name, size in shapes["rss_bytes"].items()
    )
    return f"memory of a process that ran all shapes: {held}"


def _class(
    classes: Sequence[Mapping[str, Any]],
    number: int,
    one: Mapping[str, Any],
    rows: Sequence[Mapping[str, Any]],
) -> str:
    text = f"class {number}{_where(classes, number, rows)}: {_plan(one)}, compiled once for any shape"
    hot = one["hot"]
    if hot is None:
        return text
    buckets = hot.get("buckets")  # reports of before have none
    how = "compiled for it alone"
    if buckets:
        padded = ", ".join(f"{name} {', '.join(map(str, sizes))}" for name, sizes in buckets.items())
        how = f"padded to {padded} and compiled for each"
    return (
        f"{text}; from request {hot['from_request']} of a shape on {_plan(hot)}, {how} in "
        f"{hot['compile_s']:.2g} s"
    )


def _where(classes: Sequence[Mapping[str, Any]], number: int, rows: Sequence[Mapping[str, Any]]) -> str:
    if len(classes) == 1:
        return ""
    of = " × ".join(rows[0]["sizes"])
    up_to, before = classes[number]["up_to"], classes[number - 1]["up_to"] if number else None
    return f" ({of} up to {up_to})" if up_to is not None else f" ({of} above {before})"


def _plan(one: Mapping[str, Any]) -> str:
    names = ", ".join(one["targets"])
    return names if one["partitions"] == 1 else f"{one['partitions']} partitions ({names})"


def not_told(told: Iterable[str], more: Iterable[str]) -> list[str]:
    """Warnings that differ from those before them by more than their numbers."""
    kinds = {_NUMBERS.sub("", text) for text in told}
    found = []
    for text in more:
        kind = _NUMBERS.sub("", text)
        if kind not in kinds:
            found.append(text)
        kinds.add(kind)
    return found
