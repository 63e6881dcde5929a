"""What a tuning is for, as text: `latency`, `throughput`, `memory`, or weights of them as `latency=0.7,memory=0.3`.

Source: the weighted objectives of Triton Model Analyzer (`objectives: {perf_throughput: 10, perf_latency_p99: 5}`).
"""

from __future__ import annotations

import math

GOALS = ("latency", "throughput", "memory")


def weights_of(text: str) -> dict[str, float]:
    """The weight of each goal that counts; they sum to 1.

    Raises:
        ValueError: the text is not of the form; the message says which there is.
    """
    if text in GOALS:
        return {text: 1.0}
    given: dict[str, float] = {}
    for entry in text.split(","):
        name, equals, number = (word.strip() for word in entry.partition("="))
        try:
            weight = float(number)
        except ValueError:
            weight = math.nan
        if name not in GOALS or not equals or name in given or not 0 < weight < math.inf:
            raise ValueError(
                f"{text!r} is no objective: write 'latency', 'throughput' or 'memory', or weights of several above 0, as "
                "latency=0.5,throughput=0.3,memory=0.2"
            )
        given[name] = weight
    total = sum(given.values())
    return {name: given[name] / total for name in GOALS if name in given}


def canonical(text: str) -> str:
    """The same for all texts that say the same.

    Raises:
        ValueError: as `weights_of`.
    """
    weights = weights_of(text)
    if len(weights) == 1:
        return next(iter(weights))
    return ",".join(f"{name}={weight:.4g}" for name, weight in weights.items())


def gain(text: str, *, median_us: float, throughput_per_s: float, peak_rss_bytes: float) -> float:
    """How good a setting is: the weighted geometric mean of what is to be large. Only ratios of it mean something."""
    each = {
        "latency": 1.0 / max(median_us, 1e-9),
        "throughput": max(throughput_per_s, 1e-9),
        "memory": 1.0 / max(1.0, peak_rss_bytes),
    }
    return math.exp(sum(weight * math.log(each[name]) for name, weight in weights_of(text).items()))
