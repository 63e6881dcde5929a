"""Sample inputs of one shape, cut or repeated for another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np


def resized(
    sample: Mapping[str, np.ndarray], shapes: Mapping[str, Sequence[int]]
) -> dict[str, np.ndarray] | None:
    """A sample cut or repeated along the axes whose size changes; None where that may not fit the model.

    An integer input may hold sizes of other inputs, such as the lengths of texts. Where all its elements are a size that
    changes elsewhere, they become the new one. Where only some are, nobody knows what they mean.

    Args:
        sample: an array for each input.
        shapes: that are wanted, of the same ranks.
    """
    changes = {
        name: {(old, new) for old, new in zip(array.shape, shapes[name], strict=True) if old != new}
        for name, array in sample.items()
    }
    made = {}
    for name, given in sample.items():
        array = given
        for axis, size in enumerate(shapes[name]):
            if size == array.shape[axis]:
                continue
            if not array.shape[axis]:
                return None
            array = np.take(array, np.arange(size) % array.shape[axis], axis)
        if array.dtype.kind in "iu" and array.size:
            others = {pair for other in changes.values() for pair in other} - changes[name]
            held = {pair for pair in others if (array == pair[0]).any()}
            if len(held) > 1 or (held and (array != min(held)[0]).any()):
                return None
            if held:
                array = np.full_like(array, min(held)[1])
        made[name] = np.ascontiguousarray(array).reshape(array.shape)
    return made
