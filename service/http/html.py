"""HTML from templates: everything is escaped, and numbers are formatted the same on every page."""

from __future__ import annotations

from dataclasses import asdict
from importlib.metadata import version
from typing import Any
from urllib.parse import urlencode

from fastapi import Request
from jinja2 import Environment, PackageLoader, StrictUndefined

from collage.cost_db.costs.queries import CostFilter
from collage.service.pages import formats
from collage.service.pages.target_colors import color_class
from collage.service.pages.wording import rules, worded

COOKIE = "collage_token"
"""A browser's token."""


def _query(wanted: CostFilter, **more: str) -> str:
    given = {name: value for name, value in asdict(wanted).items() if value}
    if "op_types" in given:
        given["op_types"] = " ".join(given["op_types"])
    given.update({name: formats.minute(given[name]) for name in ("since", "until") if name in given})
    return urlencode({**given, **more})


_environment = Environment(
    loader=PackageLoader("collage.service"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_environment.filters.update(
    latency=formats.latency,
    beside=formats.beside,
    moment=formats.moment,
    minute=formats.minute,
    ratio=formats.ratio,
    size=formats.size,
    seconds=formats.seconds,
    sentence=formats.sentence,
    significant=formats.significant,
    words=formats.words,
    chip=formats.chip,
    shorten=formats.without_defaults,
    color=color_class,
    query=_query,
    worded=worded,
)
_environment.globals.update(duration=formats.duration, urlencode=urlencode, wording=rules)


def frame_facts(request: Request, needs_tokens: bool) -> dict[str, Any]:
    """What the frame of every page shows."""
    signed_in = needs_tokens and COOKIE in request.cookies
    return {"version": version("collage-tuner"), "signed_in": signed_in}


def render(template: str, **facts: Any) -> str:
    """A template of `service/templates` with these facts."""
    return _environment.get_template(template).render(**facts)
