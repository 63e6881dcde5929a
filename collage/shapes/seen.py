"""Shapes seen in production: a list of them, or a log with one request a line, counted."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from collage.partitioner.errors import BadInputError
from collage.shapes.clusters import MOST_COMPARED, Point, thinned
from collage.shapes.dim_text import MOST_SIZE
from collage.shapes.traffic import Recency

# Of one input or dimension: the shape of an input, or the size of a dimension.
Size = int | tuple[int, ...]
_Key = tuple[tuple[str, Size], ...]

MOST_SEEN = MOST_COMPARED
_LONGEST_LINE = 1 << 20
_FORM = 'give {"input": [1, 3, 48, 320]} or {"length": 16}'


class SeenEntry(NamedTuple):
    """What one entry says.

    Args:
        sizes: by input or dimension.
        weight: how often it was seen.
        repeated: the share of these requests before which the shape had come lately; None where nothing says it.
    """

    sizes: dict[str, Size]
    weight: float = 1.0
    repeated: float | None = None


def seen_entry(entry: Any) -> SeenEntry:
    """Read one entry.

    Args:
        entry: the sizes themselves, or `{"sizes": …, "weight": …, "repeated": …}`.

    Raises:
        ValueError: it is of another form.
    """
    if not isinstance(entry, Mapping):
        raise ValueError(f"a shape must be an object with names; {_FORM}")
    weight: Any = 1.0
    repeated: Any = None
    if isinstance(entry.get("sizes"), Mapping):
        if unknown := sorted(map(str, entry.keys() - {"sizes", "weight", "repeated"})):
            raise ValueError(f"{', '.join(unknown)} beside sizes, weight and repeated is not known")
        weight, repeated = entry.get("weight", 1.0), entry.get("repeated")
        entry = entry["sizes"]
    if not (_is_number(weight) and 0 < weight < 1e12):
        raise ValueError(f"the weight {weight!r} must be a number above 0")
    if repeated is not None and not (_is_number(repeated) and 0 <= repeated <= 1):
        raise ValueError(f"repeated {repeated!r} must be a share from 0 to 1")
    if not entry:
        raise ValueError(f"a shape without sizes says nothing; {_FORM}")
    sizes = {str(name): _size(name, said) for name, said in entry.items()}
    return SeenEntry(sizes, float(weight), None if repeated is None else float(repeated))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _size(name: object, said: Any) -> Size:
    sizes = tuple(said) if isinstance(said, list | tuple) else (said,)
    for size in sizes:
        if isinstance(size, bool) or not isinstance(size, int) or not 0 <= size <= MOST_SIZE:
            raise ValueError(f"{name}: {size!r} is no size; {_FORM}")
    return sizes if isinstance(said, list | tuple) else sizes[0]


def counted(entries: Iterable[SeenEntry]) -> list[SeenEntry]:
    """The different shapes with how often each was seen; those of a list that was counted stay as they are.

    Args:
        entries: where none has a weight, they are requests in order, and each shape gets the share of all requests
            that repeat one.

    Returns:
        At most `MOST_SEEN`. Of more, those that are seen often stand for the others, and the smallest and largest
        sizes stay.

    Raises:
        ValueError: of so many some name other inputs, or inputs of other ranks.
    """
    weights: defaultdict[_Key, float] = defaultdict(float)
    recency, repeated, is_told = Recency(), 0.0, True
    said: set[float | None] = set()
    for entry in entries:
        key = tuple(sorted(entry.sizes.items()))
        weights[key] += entry.weight
        came_lately = recency.add(key)
        repeated += entry.weight * (came_lately if entry.repeated is None else entry.repeated)
        is_told = is_told and (entry.repeated is not None or entry.weight == 1.0)
        said.add(entry.repeated)
    if not weights:
        return []
    share: float | None = None
    if is_told and len(said) == 1 and None not in said:
        (share,) = said
    elif is_told:
        share = repeated / sum(weights.values()) if recency.is_full else 1.0
    return [SeenEntry(dict(key), weight, share) for key, weight in _few(dict(weights)).items()]


def read_shapes(path: Path) -> list[dict[str, Any]]:
    """The different shapes of a file with how often each was seen, as the option `shapes` takes them.

    Args:
        path: a JSON list, or one JSON object a line; they are `counted`.

    Raises:
        BadInputError: the file cannot be read or holds something else; the message names the line.
    """
    where = f"shapes file {str(path)!r}"
    try:
        found = counted(_read_entries(path))
    except (OSError, UnicodeDecodeError) as error:
        raise BadInputError(f"{where} cannot be read: {error}") from None
    except ValueError as error:
        raise BadInputError(f"{where}: {error}") from None
    if not found:
        raise BadInputError(f"{where} holds no shape; {_FORM}, one a line")
    return [
        {
            "sizes": {n: list(s) if isinstance(s, tuple) else s for n, s in entry.sizes.items()},
            "weight": entry.weight,
            **({} if entry.repeated is None else {"repeated": entry.repeated}),
        }
        for entry in found
    ]


def _read_entries(path: Path) -> Iterator[SeenEntry]:
    for where, entry in _entries(path):
        try:
            yield seen_entry(entry)
        except ValueError as error:
            raise BadInputError(f"{where}: {error}") from None


def _entries(path: Path) -> Iterator[tuple[str, Any]]:
    """Each entry with where it stands."""
    with path.open(encoding="utf-8") as file:
        first = file.read(1)
        while first and first.isspace():
            first = file.read(1)
        file.seek(0)
        if first == "[":
            entries = _read(f"shapes file {str(path)!r}", file.read())
            for position, entry in enumerate(entries):
                yield f"shapes file {str(path)!r}, entry {position + 1}", entry
            return
        for number, line in enumerate(iter(lambda: file.readline(_LONGEST_LINE), ""), 1):
            if line.strip():
                where = f"shapes file {str(path)!r}, line {number}"
                yield where, _read(where, line)


def _read(where: str, text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadInputError(f"{where}: this is no JSON ({error}); {_FORM}, one a line") from None


def _few(weights: dict[_Key, float]) -> dict[_Key, float]:
    """At most `MOST_SEEN` of them, for each form on its own."""
    if len(weights) <= MOST_SEEN:
        return weights
    forms: dict[tuple[object, ...], list[tuple[_Key, Point]]] = {}
    for key, weight in weights.items():
        form = tuple((name, len(size) if isinstance(size, tuple) else None) for name, size in key)
        forms.setdefault(form, []).append((key, (_flat(key), weight)))
    if len(forms) > 1:
        raise ValueError(
            "the shapes name different inputs, or inputs of different ranks; name the same ones in each"
        )
    (pairs,) = forms.values()
    by_place = {tuple(point[0].values()): key for key, point in pairs}
    points = [point for _, point in pairs]
    ends = [
        choose(points, key=lambda point, name=name: point[0][name])  # type: ignore[misc]
        for name in points[0][0]
        for choose in (min, max)
    ]
    return {by_place[tuple(sizes.values())]: weight for sizes, weight in thinned(points, ends)}


def _flat(key: _Key) -> dict[str, int]:
    return {
        f"{name}:{axis}": size
        for name, said in key
        for axis, size in enumerate(said if isinstance(said, tuple) else (said,))
    }
