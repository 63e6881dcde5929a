"""Weights rounded one after another, each making up for the errors of those before it.

Rounding to nearest errs least in each weight, but not in a product's sums: inputs correlate, so one
weight can compensate another. The squared error of a sum is `e G e`: `e` are the errors of its weights,
G are the inputs' second moments (the *Gram matrix*). With the Cholesky factor of G, rounding from the
last weight to the first keeps it small; weights of the largest inputs come first. A weight of zero
stays zero: an input that is always zero in the samples may have any size elsewhere.

Source: Frantar et al. 2022, "GPTQ: Accurate Post-Training Quantization for Generative Pre-trained
Transformers"; as the nearest-plane algorithm of Babai 1986, which saves the inverse: Chen et al. 2025,
"The Geometry of LLM Quantization".
"""

from __future__ import annotations

import numpy as np

Array = np.ndarray

LARGEST = 127
# Share of the mean second moment that is added to each, since few samples do not show everything.
_DAMPING = 0.1
# Rows that are rounded before their errors are passed on in one product.
_ROWS = 32


def fed_back(
    weights: Array,
    steps: Array,
    gram: Array,
    least: Array | int = -LARGEST,
    most: Array | int = LARGEST,
) -> Array:
    """Weights as whole steps, so that sums over inputs err little.

    Args:
        weights: (inputs, channels) float32.
        steps: (channels,) or (inputs, channels), the size of a step.
        gram: (inputs, inputs) float32, the inputs' mean products with each other.
        least: the smallest number of steps, for all or as (inputs, channels).
        most: the largest, the same way.

    Returns:
        int8 of the same shape.
    """
    steps, least, most = (np.broadcast_to(each, weights.shape) for each in (steps, least, most))
    moments = np.diagonal(gram)
    if not moments.any():
        nearest: Array = np.clip(np.rint(weights / steps), least, most).astype(np.int8)
        return nearest
    order = np.argsort(moments, kind="stable")
    damped = gram[np.ix_(order, order)]
    damped[np.diag_indices_from(damped)] += _DAMPING * moments.mean()
    factor = np.linalg.cholesky(damped)
    factor /= np.diagonal(factor)
    wanted, steps, least, most = weights[order], steps[order], least[order], most[order]
    whole, missed = np.empty_like(wanted), np.empty_like(wanted)
    for start in reversed(range(0, len(order), _ROWS)):
        end = min(start + _ROWS, len(order))
        passed = factor[end:, start:end].T @ missed[end:]
        for row in reversed(range(start, end)):
            answer = passed[row - start] + factor[row + 1 : end, row] @ missed[row + 1 : end]
            nearest = np.clip(np.rint((wanted[row] + answer) / steps[row]), least[row], most[row])
            whole[row] = np.where(wanted[row] == 0, 0, nearest)
            missed[row] = wanted[row] - whole[row] * steps[row]
    result: Array = np.empty(weights.shape, np.int8)
    result[order] = whole
    return result
