"""Numbers, times and targets as the pages write them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from markupsafe import Markup

from collage.service.pages.target_colors import color_class

_NONE = "–"
_KILO = 1024


def significant(value: float, digits: int = 3) -> str:
    """A positive number with so many significant digits, without an exponent."""
    if value == 0:
        return "0"
    rounded = float(f"{value:.{digits - 1}e}")
    return f"{rounded:.{max(0, digits - 1 - _exponent(rounded))}f}"


def latency(latency_us: float | None) -> str:
    """A latency in the unit that fits it."""
    if latency_us is None:
        return _NONE
    if latency_us >= 1e6:
        return f"{significant(latency_us / 1e6)} s"
    return (
        f"{significant(latency_us / 1000)} ms" if latency_us >= 100 else f"{significant(latency_us)} µs"
    )


def beside(value_us: float | None, latency_us: float) -> str:
    """A spread or a bound in the unit of the latency that it stands beside, without the unit."""
    if value_us is None:
        return _NONE
    unit_us = 1e6 if latency_us >= 1e6 else 1000.0 if latency_us >= 100 else 1.0
    places = max(0, 2 - _exponent(latency_us / unit_us)) if latency_us else 0
    return f"{value_us / unit_us:.{places}f}"


def ratio(value: float | None) -> str:
    """A ratio such as a speedup."""
    return _NONE if value is None else f"{value:.2f} ×"


def size(size_bytes: float | None) -> str:
    """A number of bytes in a unit that fits it."""
    if size_bytes is None:
        return _NONE
    for unit in ("B", "kB", "MB", "GB"):
        if size_bytes < _KILO or unit == "GB":
            return f"{significant(size_bytes)} {unit}" if unit != "B" else f"{size_bytes:.0f} B"
        size_bytes /= _KILO
    raise AssertionError("the loop returns")


def seconds(spent_s: float | None) -> str:
    """A duration: 4.2 s, 3 min 20 s, 2 h 5 min."""
    if spent_s is None:
        return _NONE
    if 0 < spent_s < 0.1:
        return f"{significant(1000 * spent_s, 2)} ms"
    if spent_s < 60:
        return f"{significant(max(spent_s, 0.0), 2) if spent_s < 10 else f'{spent_s:.0f}'} s"
    minutes, rest = divmod(round(spent_s), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s" if rest else f"{minutes} min"
    return f"{minutes // 60} h {minutes % 60} min"


def duration(begin: datetime | None, end: datetime | None) -> str:
    """The time between two moments."""
    return _NONE if begin is None or end is None else seconds((end - begin).total_seconds())


def sentence(text: str) -> str:
    """A text as a sentence: a capital first, all other letters as they are, a period."""
    return f"{text[:1].upper()}{text[1:]}."


def moment(at: datetime | str | None) -> Markup:
    """A moment as an element; page.js shows it in the reader's own time, with UTC on hover."""
    if isinstance(at, str):
        try:
            at = datetime.fromisoformat(at)
        except ValueError:
            return Markup("{}").format(at)
    if at is None:
        return Markup(_NONE)
    shown = at.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S")
    return Markup('<time datetime="{}" title="{} UTC">{} UTC</time>').format(
        at.isoformat(), shown, shown
    )


def minute(at: datetime | None) -> str:
    """The value of a field of type `datetime-local`, in UTC."""
    return "" if at is None else at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M")


def words(text: str) -> Markup:
    """A target in pieces that lines break between."""
    return Markup(" ").join(
        Markup('<span class="word">{}</span>').format(word) for word in text.split()
    )


def chip(target: str, shown: str | None = None) -> Markup:
    """A target with its color.

    Args:
        target: its full text.
        shown: what to write instead; the full text is then shown on hover.
    """
    swatch = Markup('<span class="swatch {}" aria-hidden="true"></span>').format(color_class(target))
    title = Markup(' title="{}"').format(target) if shown not in (None, target) else ""
    return Markup('<span class="target"{}>{}{}</span>').format(title, swatch, words(shown or target))


def without_defaults(target: str, options: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    """A target without options that are the default of its backend.

    Args:
        target: its full text.
        options: per backend what the catalog says of its options.
    """
    backend, *given = target.split()
    defaults = {f"-{each['name']}={each['default']}" for each in options.get(backend, ())}
    return " ".join([backend, *(word for word in given if word not in defaults)])


def _exponent(value: float) -> int:
    return int(f"{value:e}".partition("e")[2])
