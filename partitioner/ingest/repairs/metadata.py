"""The metadata of a model's author: class names, strides, sample rates, which the code around the model reads."""

from __future__ import annotations

import onnx

from collage.partitioner.wire_format import METADATA_PREFIX

MOST_BYTES = 4 << 20


def authors_metadata(proto: onnx.ModelProto, notes: list[str]) -> dict[str, str]:
    """What a model says of itself, without what this project wrote; `notes` tells what is too large to keep."""
    entries = {e.key: e.value for e in proto.metadata_props if not e.key.startswith(METADATA_PREFIX)}
    kept: dict[str, str] = {}
    left = MOST_BYTES
    for key, value in sorted(entries.items(), key=lambda entry: len(entry[1])):
        left -= len(key.encode()) + len(value.encode())
        if left >= 0:
            kept[key] = value
    lost = [key for key in entries if key not in kept]
    if lost:
        notes.append(
            f"metadata of more than {MOST_BYTES >> 20} MiB is not kept; left out: {', '.join(lost)[:200]}"
        )
    return {key: value for key, value in entries.items() if key in kept}
