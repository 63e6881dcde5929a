"""Costs as JSON lines, out and in: one object a line with the fields of `CostRow`.

Invariant: only a line that an export could have written is imported; one from before a field was there
lacks it. A bad line is refused with its number and the reason, and the others are imported all the same.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime, timedelta
from typing import Any

from collage.cost_db.costs.row import CostRow, now
from collage.cost_db.plain_text import read_json
from collage.partitioner.errors import BadInputError

LINE_LIMIT = 1_000_000
_FUTURE = timedelta(days=1)  # clocks differ, but not by more

_TEXT = (str,)
_NUMBER = (float, int)
_TYPES: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(
        ("digest", "sub_graph", "target", "backend_version", "hardware", "protocol"), _TEXT
    ),
    **dict.fromkeys(("outcome", "host", "op_types", "created_at"), _TEXT),
    **dict.fromkeys(("reason", "model_sha256", "structure"), (str, type(None))),
    **dict.fromkeys(
        ("latency_us", "spread_us", "error", "compile_s", "yardstick_us", "work"),
        (*_NUMBER, type(None)),
    ),
    "samples_us": (list,),
    "node_times_us": (list,),
    "peak_memory_bytes": (int, type(None)),
    "node_count": (int,),
    "hardware_description": (dict,),
    "versions": (dict,),
}
# Lines lack these where the row has none, so that older programs read them.
_OPTIONAL = {"structure", "work"}


@dataclass(frozen=True)
class ImportResult:
    """What an import did."""

    accepted: int  # lines whose cost is new here
    refused: tuple[tuple[int, str], ...]  # number (from 1) of each refused line, and why
    known: int = 0  # good lines whose key had a cost already, which stays


def write_line(row: CostRow) -> str:
    """A row as one line, without the line's end."""
    fields_of_row = {
        name: value for name, value in asdict(row).items() if value is not None or name not in _OPTIONAL
    }
    fields_of_row["created_at"] = row.created_at.isoformat()
    return json.dumps(fields_of_row, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def read_line(line: str | bytes) -> CostRow:
    """The row in a line; bytes are UTF-8.

    Raises:
        BadInputError: why the line is refused.
    """
    if isinstance(line, bytes):
        try:
            line = line.decode()
        except UnicodeDecodeError as error:
            raise BadInputError(f"not UTF-8 at byte {error.start + 1}; export it again") from None
    if len(line) > LINE_LIMIT:
        raise BadInputError(f"longer than {LINE_LIMIT} characters")
    values = read_json("the line", line, 4 * LINE_LIMIT)
    if not isinstance(values, dict):
        raise BadInputError("not a JSON object")
    for name in _OPTIONAL:
        values.setdefault(name, None)
    if odd := sorted(values.keys() ^ _TYPES.keys()):
        raise BadInputError(f"fields missing or unknown: {', '.join(odd)[:200]}")
    for name, types in _TYPES.items():
        if not _is_one_of(values[name], types):
            raise BadInputError(f"{name} has the wrong type")
    for name in ("samples_us", "node_times_us"):
        if not all(_is_one_of(time, _NUMBER) for time in values[name]):
            raise BadInputError(f"{name} has something that is not a number")
        values[name] = tuple(values[name])
    if not all(isinstance(version, str) for version in values["versions"].values()):
        raise BadInputError("versions has something that is not text")
    row = CostRow(**{**values, "created_at": _moment(values)})
    row.check()
    if row.created_at > now() + _FUTURE:
        raise BadInputError("created_at is in the future")
    return row


def read_lines(lines: Iterable[str | bytes]) -> Iterable[tuple[int, CostRow | str]]:
    """Each line that is not blank, with its number, as a row or as the reason of its refusal."""
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            yield number, read_line(line)
        except BadInputError as error:
            yield number, str(error)


def _moment(values: dict[str, Any]) -> datetime:
    try:
        moment = datetime.fromisoformat(values["created_at"])
        moment.astimezone(UTC)
        return moment
    except (ValueError, OverflowError):
        raise BadInputError("created_at is not a time as in 2026-01-31T12:00:00+00:00") from None


def _is_one_of(value: object, types: tuple[type, ...]) -> bool:
    # type(), not isinstance(): true is no number.
    return type(value) in types and (not isinstance(value, int) or -(2**63) <= value < 2**63)


assert _TYPES.keys() == {field.name for field in fields(CostRow)}
