"""Texts that name flags of the command line, in the words of the form of a new job.

Warnings, reasons and next steps are written once, for a person at a terminal. A page shows them with the label of the
field that does the same.

Terms: a *rule* is a regular expression, what stands in its place (`$1` for its first group), and the option that it is
about. Browsers apply the same rules (`static/page.js`), so they use only what both languages understand.
"""

from __future__ import annotations

import re
from functools import cache
from typing import NamedTuple

from collage.cli.tune_options import flags
from collage.service.pages.option_fields import label_of

_BEGIN, _END = r"(?<![-\w])", r"(?![-\w])"
# Files of the form that are no options.
_FILES = {"--inputs": "Sample inputs (.npz)"}
_SIZES = "“Sizes of $1”: $2"


class Rule(NamedTuple):
    """What replaces a flag."""

    pattern: str
    shown: str
    option: str  # whose field it is; empty for none


@cache
def rules() -> tuple[Rule, ...]:
    """The rules, in the order in which they are applied."""
    found = [
        # As a shell takes it; each dimension has a field of its own.
        Rule(rf"{_BEGIN}--dim '([^'=]+)=([^']*)'", _SIZES, "dims"),
        Rule(rf"{_BEGIN}--dim ([^\s=',;]+)=([^\s;)]*[^\s;),.])", _SIZES, "dims"),
        Rule(r"(“Sizes of [^”]+”: \S+) (?=“Sizes of)", "$1, ", "dims"),
        Rule(rf"{_BEGIN}--dim{_END}", "“Sizes of …”", "dims"),
    ]
    for option, flag in flags().items():
        if option != "dims":
            found.append(Rule(rf"{_BEGIN}{flag}(?: SECONDS)?{_END}", f"“{label_of(option)}”", option))
    return (*found, *(Rule(rf"{_BEGIN}{flag}{_END}", f"“{text}”", "") for flag, text in _FILES.items()))


def worded(text: str | None) -> str:
    """A text for people at a terminal, in the words of the form."""
    said = text or ""
    if "--" not in said:
        return said
    for rule in rules():
        said = re.sub(rule.pattern, re.sub(r"\$(\d)", r"\\g<\1>", rule.shown), said)
    return said
