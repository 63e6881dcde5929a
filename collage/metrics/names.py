"""The built-in metrics by name: `top1`, `topk=5`, `map`, …, each with `@OUTPUT` where it is to read another output."""

from __future__ import annotations

from collections.abc import Mapping

from collage.metrics.boxes import MeanAveragePrecision
from collage.metrics.classification import Top1, TopK
from collage.metrics.continuous import Embedding, Perplexity, Snr
from collage.metrics.metric import Metric
from collage.metrics.text import Text
from collage.partitioner.errors import BadInputError

METRICS: Mapping[str, type[Metric]] = {
    kind.name: kind for kind in (Top1, TopK, MeanAveragePrecision, Text, Embedding, Perplexity, Snr)
}
_MOST_K = 1000
_DEFAULT_K = 5


def is_function(text: object) -> bool:
    """Whether a value names a function of the caller's own, as `module:function`."""
    if not isinstance(text, str):
        return False
    head = text.partition("@")[0].partition("=")[0]
    return head not in METRICS and ":" in text


def parse_metric(text: str) -> Metric:
    """The metric that a text names.

    Raises:
        BadInputError: there is no such metric.
    """
    head, _, output = text.partition("@")
    name, equals, number = head.partition("=")
    if name not in METRICS:
        raise BadInputError(
            f"evaluate: {text!r} is no built-in metric; known are {', '.join(METRICS)} (as topk=5, or "
            "top1@OUTPUT for another output than the first), and module:function for your own"
        )
    if name == TopK.name:
        if equals and not (number.isdigit() and 1 <= int(number) <= _MOST_K):
            raise BadInputError(
                f"evaluate: {head!r} needs a whole number from 1 to {_MOST_K}, as topk=5"
            )
        return TopK(output=output, k=int(number) if equals else _DEFAULT_K)
    if equals:
        raise BadInputError(f"evaluate: {name} takes no number, so write {name} for {head!r}")
    return METRICS[name](output=output)
