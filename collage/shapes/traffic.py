"""Which shapes come one after another, and how often one comes that did not come lately."""

from __future__ import annotations

import math
import random
from collections import OrderedDict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

from collage.shapes.clusters import Point
from collage.shapes.dim_text import DimSizes

# A shape repeats where it comes again before so many others have come.
MOST_KEPT = 32
_DRAWN = 4000


class Recency:
    """Tells whether the shape of a request is among those that came last.

    Attributes:
        is_full: whether more different shapes came than are kept.
    """

    def __init__(self) -> None:
        self._last: OrderedDict[Hashable, None] = OrderedDict()
        self.is_full = False

    def add(self, shape: Hashable) -> bool:
        """Note a request; whether its shape is kept from before."""
        is_kept = shape in self._last
        self._last[shape] = None
        self._last.move_to_end(shape)
        if len(self._last) > MOST_KEPT:
            self._last.popitem(last=False)
            self.is_full = True
        return is_kept


@dataclass(frozen=True)
class Traffic:
    """The shapes of requests.

    Args:
        dims: the free dimensions.
        seen: sizes of some or all of them that came together, with weights.
        logged: the share of requests that repeat a shape, where a log in order tells it.
    """

    dims: Mapping[str, DimSizes]
    seen: Sequence[Point] = ()
    logged: float | None = None

    @property
    def new_share(self) -> float:
        """The share of requests whose shape is not among those that came last."""
        if self._most_shapes <= MOST_KEPT:
            return 0.0
        if self.logged is not None and all(dim.is_fixed for dim in self._others.values()):
            return 1.0 - self.logged
        recency = Recency()
        is_kept = [recency.add(tuple(sizes.values())) for sizes in self.draw(_DRAWN)]
        # The first ones find nothing kept.
        later = is_kept[_DRAWN // 2 :]
        return 1.0 - sum(later) / len(later)

    def draw(self, count: int) -> list[dict[str, int]]:
        """Shapes of requests in a random order, the same each time; in a range by the logarithm of the size."""
        random_ = random.Random(0)
        weights = [weight for _, weight in self.seen]
        drawn = []
        for _ in range(count):
            sizes = {name: _drawn(dim, random_) for name, dim in self._others.items()}
            if self.seen:
                ((together, _),) = random_.choices(self.seen, weights)
                sizes |= {name: size for name, size in together.items() if name in self.dims}
            drawn.append({name: sizes[name] for name in self.dims})
        return drawn

    @property
    def _others(self) -> dict[str, DimSizes]:
        """The dimensions that the shapes that were seen do not tell."""
        told = self.seen[0][0] if self.seen else {}
        return {name: dim for name, dim in self.dims.items() if name not in told}

    @property
    def _most_shapes(self) -> int:
        """How many different shapes may come."""
        together = {tuple(sizes.get(name) for name in self.dims) for sizes, _ in self.seen}
        return max(1, len(together)) * math.prod(dim.count for dim in self._others.values())


def _drawn(dim: DimSizes, random_: random.Random) -> int:
    if not dim.is_range:
        return random_.choices(dim.sizes, dim.weights)[0]
    first = max(dim.low, 1)
    size = float(first * (dim.high / first) ** random_.random())
    return min(dim.high, dim.low + round((size - dim.low) / dim.step) * dim.step)
