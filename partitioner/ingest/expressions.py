"""Sums in the names of dimensions: `past + 1`, `past + sequence`, `2*frames - 1`."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

_TOKEN = re.compile(r"\s*(?:(\d{1,10})|([^\W\d][\w.]*)|([-+*()]))")
_LONGEST = 200


@dataclass(frozen=True)
class Linear:
    """A sum of dimensions with whole factors, and a constant.

    Args:
        terms: name and factor of each, by name.
        constant: what is added.
    """

    terms: tuple[tuple[str, int], ...]
    constant: int = 0

    @property
    def names(self) -> tuple[str, ...]:
        """The dimensions in it."""
        return tuple(name for name, _ in self.terms)

    @property
    def text(self) -> str:
        """The sum as `parse_sum` reads it."""
        parts = [name if factor == 1 else f"{factor}*{name}" for name, factor in self.terms]
        if self.constant or not parts:
            parts.append(str(self.constant))
        return " + ".join(parts).replace("+ -", "- ")

    def value(self, sizes: Mapping[str, int]) -> int:
        """The sum for sizes of all its dimensions."""
        return self.constant + sum(factor * sizes[name] for name, factor in self.terms)

    def solve(self, value: int) -> int | None:
        """The size of its only dimension that gives a value; None where there is no such size."""
        ((_, factor),) = self.terms
        size, rest = divmod(value - self.constant, factor)
        return size if rest == 0 and size >= 0 else None


@functools.lru_cache(maxsize=4096)
def parse_sum(text: str) -> Linear | None:
    """The sum that a dimension's name is; None where it is a plain name or something else."""
    if len(text) > _LONGEST or text.isidentifier():
        return None
    try:
        tokens = list(_tokens(text))
        terms, constant = _sum(tokens)
    except (ValueError, IndexError):
        return None
    left = tuple(sorted((name, factor) for name, factor in terms.items() if factor))
    return None if tokens or not left else Linear(left, constant)


def size_of(name: str, sizes: Mapping[str, int]) -> int | None:
    """The size of a dimension by its name, which may be a sum; None where it does not follow."""
    found = bound(name, sizes)
    return found if isinstance(found, int) else None


def bound(name: str, sizes: Mapping[str, int]) -> int | str:
    """The size of a dimension where it follows from sizes, else its name with these in it."""
    if name in sizes:
        return sizes[name]
    found = parse_sum(name)
    if found is None or not any(part in sizes for part in found.names):
        return name
    left = tuple((part, factor) for part, factor in found.terms if part not in sizes)
    constant = found.value({**dict.fromkeys(found.names, 0), **sizes})
    return Linear(left, constant).text if left else constant


def _tokens(text: str) -> Iterator[str]:
    position, text = 0, text.rstrip()
    while position < len(text):
        found = _TOKEN.match(text, position)
        if found is None:
            raise ValueError(text)
        position = found.end()
        yield found.group().strip()


# Each reads from the front of the tokens and returns factors by name, and the constant.
_Sum = tuple[dict[str, int], int]


def _sum(tokens: list[str]) -> _Sum:
    terms, constant = ({}, 0) if tokens[0] == "-" else _product(tokens)
    while tokens and tokens[0] in "+-":
        sign = 1 if tokens.pop(0) == "+" else -1
        more, number = _product(tokens)
        constant += sign * number
        for name, factor in more.items():
            terms[name] = terms.get(name, 0) + sign * factor
    return terms, constant


def _product(tokens: list[str]) -> _Sum:
    terms, constant = _atom(tokens)
    while tokens and tokens[0] == "*":
        tokens.pop(0)
        more, number = _atom(tokens)
        if terms and more:
            raise ValueError("a product of dimensions is no sum")
        terms = {name: factor * number for name, factor in terms.items()} | {
            name: factor * constant for name, factor in more.items()
        }
        constant *= number
    return terms, constant


def _atom(tokens: list[str]) -> _Sum:
    token = tokens.pop(0)
    if token == "(":
        inner = _sum(tokens)
        if tokens.pop(0) != ")":
            raise ValueError("a bracket is not closed")
        return inner
    if token.isdecimal():
        return {}, int(token)
    if token in "+-*)":
        raise ValueError(f"{token} stands where a dimension must")
    return {token: 1}, 0
