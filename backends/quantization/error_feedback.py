"""Weights rounded one after another, each making up for what those before it missed.

Rounding to nearest errs least in each weight, and not in the sums that a product makes of them: inputs go together, so
what one weight lacks another can give. With the inputs' second moments (the *Gram matrix* of what the product reads) the
squared error of a sum is `e G e`, for `e` the errors of its weights. Written with the Cholesky factor of G as the length of a
triangular combination of `e`, it is kept small by rounding from the last weight to the first, each to what the rest of its
row asks for. Weights of the largest inputs come first, while all others may still answer. A weight of zero stays zero: an
input that counts for nothing may be of any size on other samples.

Source: Frantar et al. 2022, "GPTQ: Accurate Post-Training Quantization for Generative Pre-trained Transformers"; that
it is the nearest-plane algorithm of Babai 1986 saves the inverse: Chen et al. 2025, "The Geometry of LLM Quantization".
"""

from __future__ import annotations

import numpy as np

Array = np.ndarray

LARGEST = 127
# Share of the mean second moment that is added to each: what few samples do not show is not free to change. With 0.01
# and a third as many rows as inputs, sums over unseen inputs err as without feedback; with many rows both err alike.
_DAMPING = 0.1
# Rows that are rounded before what they missed is passed on in one product.
_ROWS = 32


def fed_back(weights: Array, steps: Array, gram: Array) -> Array:
    """Weights in steps, so that sums over inputs err little.

    Args:
        weights: (inputs, channels) float32.
        steps: (channels,) what one is worth.
        gram: (inputs, inputs) float32, the inputs' mean products with each other.

    Returns:
        int8 of the same shape.
    """
    moments = np.diagonal(gram)
    if not moments.any():
        return _whole(weights / steps).astype(np.int8)
    order = np.argsort(moments, kind="stable")
    damped = gram[np.ix_(order, order)]
    damped[np.diag_indices_from(damped)] += _DAMPING * moments.mean()
    factor = np.linalg.cholesky(damped)
    factor /= np.diagonal(factor)
    wanted = weights[order] / steps
    whole, missed = np.empty_like(wanted), np.empty_like(wanted)
    for start in reversed(range(0, len(order), _ROWS)):
        end = min(start + _ROWS, len(order))
        passed = factor[end:, start:end].T @ missed[end:]
        for row in reversed(range(start, end)):
            answer = passed[row - start] + factor[row + 1 : end, row] @ missed[row + 1 : end]
            whole[row] = np.where(wanted[row] == 0, 0, _whole(wanted[row] + answer))
            missed[row] = wanted[row] - whole[row]
    result: Array = np.empty(weights.shape, np.int8)
    result[order] = whole
    return result


def _whole(steps: Array) -> Array:
    whole: Array = np.clip(np.rint(steps), -LARGEST, LARGEST)
    return whole
