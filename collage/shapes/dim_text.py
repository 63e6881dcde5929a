"""What is said of one free dimension, read from its text."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from collage.partitioner.errors import BadInputError

MOST_SIZE = 2**31 - 1
# Sizes chosen in a range.
_CHOSEN = 5
_MOST_SIZES = 1000
LONGEST_TEXT = 10_000
_FORMS = "a size (16), sizes (16,64,512), sizes with weights (16:0.7,512:0.3) or a range (1..512)"


@dataclass(frozen=True)
class DimSizes:
    """The sizes of one free dimension.

    Args:
        low: the smallest size that is served.
        high: the largest one.
        sizes: those that matter, ascending.
        weights: how much each of them matters; they sum to 1.
        step: from `low` on, only sizes in steps of this are served.
        is_range: whether the sizes between those that matter come too.
    """

    low: int
    high: int
    sizes: tuple[int, ...]
    weights: tuple[float, ...]
    step: int = 1
    is_range: bool = False

    def __contains__(self, size: int) -> bool:
        return self.low <= size <= self.high and (size - self.low) % self.step == 0

    @property
    def is_fixed(self) -> bool:
        """Whether there is one size only."""
        return self.low == self.high

    @property
    def count(self) -> int:
        """How many different sizes come."""
        return (self.high - self.low) // self.step + 1 if self.is_range else len(self.sizes)

    @property
    def text(self) -> str:
        """The range in words that `parse_dim` reads; of sizes that matter only the ends."""
        if self.is_fixed:
            return str(self.low)
        return f"{self.low}..{self.high}" + (f"/{self.step}" if self.step > 1 else "")

    def as_json(self) -> dict[str, Any]:
        """The sizes as `from_json` takes them."""
        return {
            "low": self.low,
            "high": self.high,
            "sizes": list(self.sizes),
            "weights": list(self.weights),
            "step": self.step,
            "is_range": self.is_range,
        }

    @classmethod
    def from_json(cls, name: str, data: Any) -> DimSizes:
        """Read what `as_json` made.

        Raises:
            BadInputError: the ends, the sizes or the weights contradict each other.
            KeyError, TypeError, ValueError: it is of another form.
        """
        sizes, weights = tuple(data["sizes"]), tuple(map(float, data["weights"]))
        low, high, step = data["low"], data["high"], data.get("step", 1)
        for size in (low, high, step, *sizes):
            _whole(size)
        read = cls(low, high, sizes, weights, step, data.get("is_range", False) is True)
        ascending = all(a < b for a, b in itertools.pairwise(sizes))
        if not (sizes and step and low <= high and ascending and all(size in read for size in sizes)):
            raise BadInputError(f"dimension {name}: sizes {list(sizes)} are not those of {read.text}")
        if len(weights) != len(sizes) or not all(0 < weight <= 1 for weight in weights):
            raise BadInputError(f"dimension {name}: each size needs a weight above 0 and at most 1")
        if not math.isclose(math.fsum(weights), 1.0, rel_tol=1e-6):
            raise BadInputError(f"dimension {name}: the weights do not sum to 1")
        return read


def parse_dim(name: str, said: int | str) -> DimSizes:
    """The sizes that a number or a text says of a dimension.

    Args:
        name: of the dimension, for errors.

    Raises:
        BadInputError: it is of no known form, or contradicts itself.
    """
    try:
        return read_dim(said)
    except ValueError as error:
        raise BadInputError(f"dimension {name}: {error}") from None


def read_dim(said: int | str) -> DimSizes:
    """The same, for a dimension without a name.

    Raises:
        ValueError: as `parse_dim` tells.
    """
    if not isinstance(said, str):
        return _listed([(_whole(said), None)])
    if len(said) > LONGEST_TEXT:
        raise ValueError(f"a text of {len(said)} characters is too long")
    text = said.strip()
    if ".." in text:
        return _ranged(text)
    return _listed([_size_with_weight(part) for part in text.split(",")])


def _ranged(text: str) -> DimSizes:
    ends, slash, step_text = text.partition("/")
    low_text, _, high_text = ends.partition("..")
    if "," in text or ":" in text:
        raise ValueError(
            f"{text!r} mixes a range with sizes; give either {low_text}..HIGH or sizes with commas"
        )
    low, high = _size(low_text), _size(high_text)
    step = _size(step_text) if slash else 1
    if low > high:
        raise ValueError(f"the range {text} ends before it begins; say {high}..{low}")
    if step < 1:
        raise ValueError(f"the steps of {text} must be at least 1")
    if (high - low) % step:
        last = high - (high - low) % step
        raise ValueError(
            f"{text} does not end on a step; say {low}..{last}/{step} or {low}..{last + step}/{step}"
        )
    sizes = tuple(dict.fromkeys(_geometric(low, high, step)))
    weights = tuple(1 / len(sizes) for _ in sizes)
    return DimSizes(low, high, sizes, weights, step, is_range=low < high)


def _geometric(low: int, high: int, step: int) -> Iterator[int]:
    """Sizes with about the same ratio between neighbors, the ends among them."""
    if low == 0 < high:
        yield 0
    first = low or step
    for position in range(_CHOSEN if low else _CHOSEN - 1):
        share = position / (_CHOSEN - 1 - (not low))
        steps = round((first * (high / first) ** share - low) / step) if high else 0
        yield min(high, max(low, low + steps * step))


def _listed(parts: list[tuple[int, float | None]]) -> DimSizes:
    if len(parts) > _MOST_SIZES:
        raise ValueError(f"{len(parts)} sizes are more than {_MOST_SIZES}; give a range")
    sizes = [size for size, _ in parts]
    for size in sizes:
        if sizes.count(size) > 1:
            raise ValueError(f"size {size} is given twice")
    given = [weight for _, weight in parts if weight is not None]
    if given and len(given) < len(parts):
        missing = next(size for size, weight in parts if weight is None)
        raise ValueError(f"give each size a weight or none; {missing} has none, say {missing}:0.5")
    if given and len(parts) == 1:
        (size,), (weight,) = sizes, given
        looks_like_range = weight.is_integer() and size < weight <= MOST_SIZE
        instead = f", or {size}..{weight:.0f} for a range" if looks_like_range else ""
        raise ValueError(
            f"{size}:{weight:g} is one size with a weight; say {size} for that size alone{instead}"
        )
    total = math.fsum(given)
    weighted = sorted((size, (weight or 1.0) / (total or len(parts))) for size, weight in parts)
    ordered = tuple(size for size, _ in weighted)
    return DimSizes(ordered[0], ordered[-1], ordered, tuple(weight for _, weight in weighted))


def _size_with_weight(text: str) -> tuple[int, float | None]:
    size, colon, weight_text = text.partition(":")
    if not colon:
        return _size(size), None
    try:
        weight = float(weight_text)
    except ValueError:
        weight = math.nan
    if not (math.isfinite(weight) and weight > 0):
        raise ValueError(f"the weight {weight_text!r} of size {size.strip()} must be a number above 0")
    return _size(size), weight


def _size(text: str) -> int:
    stripped = text.strip()
    if not (stripped.isascii() and stripped.isdigit()):
        raise ValueError(f"{stripped!r} is no size; give {_FORMS}")
    return _whole(int(stripped[:20]))


def _whole(size: Any) -> int:
    if isinstance(size, bool) or not isinstance(size, int):
        raise ValueError(f"{size!r} is no size; give {_FORMS}")
    if not 0 <= size <= MOST_SIZE:
        raise ValueError(f"size {size} must be from 0 to {MOST_SIZE}")
    return size
