"""Shapes seen in production, as an option takes them: some with weights, or the requests of a log in their order."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import pydantic
from pydantic import BeforeValidator, Field

from collage.shapes.dim_text import MOST_SIZE
from collage.shapes.seen import MOST_SEEN, SeenEntry, counted, seen_entry

MOST_REQUESTS = 100_000
STRICT = pydantic.ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

Name = Annotated[str, Field(min_length=1, max_length=1000)]
Size = Annotated[int, Field(ge=0, le=MOST_SIZE)]
_Sizes = Annotated[
    Mapping[Name, Size | Annotated[tuple[Size, ...], Field(max_length=64)]],
    Field(min_length=1, max_length=1000),
]


class SeenShape(pydantic.BaseModel):
    """A shape seen in production."""

    model_config = STRICT

    sizes: _Sizes = Field(description="Shapes of inputs, or sizes of dimensions, by name.")
    weight: float = Field(default=1.0, gt=0, description="How often it was seen.")
    repeated: float | None = Field(
        default=None, ge=0, le=1, description="Share of requests whose shape had come lately."
    )


def _entry(entry: Any) -> SeenEntry:
    if isinstance(entry, SeenShape):
        return SeenEntry(dict(entry.sizes), entry.weight, entry.repeated)
    return seen_entry(entry)


def _given(entry: SeenEntry) -> dict[str, Any]:
    return {key: value for key, value in entry._asdict().items() if value is not None}


def _seen(entry: Any) -> Any:
    return entry if isinstance(entry, SeenShape) else _given(seen_entry(entry))


Seen = Annotated[SeenShape, BeforeValidator(_seen, SeenShape | _Sizes)]


def counted_requests(entries: Any) -> Any:
    """The different shapes of a list, as a file of them is read.

    A list that is short stays as it is where an entry is faulty, so that the fault is told with its place.

    Raises:
        ValueError: there are too many entries, or one of many is faulty.
    """
    if not isinstance(entries, list | tuple):
        return entries
    if len(entries) > MOST_REQUESTS:
        raise ValueError(
            f"{len(entries)} requests are more than {MOST_REQUESTS}; count equal ones, as "
            '{"sizes": {"length": 16}, "weight": 250}'
        )
    read = []
    for position, entry in enumerate(entries):
        try:
            read.append(_entry(entry))
        except ValueError as error:
            if len(entries) <= MOST_SEEN:
                return tuple(entries)
            raise ValueError(f"entry {position + 1}: {error}") from None
    return tuple(map(_given, counted(read)))
