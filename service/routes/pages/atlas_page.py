"""The page of the atlas: who is fast at what, by the cost database."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any
from urllib.parse import urlencode

from fastapi import APIRouter, Query, Request
from fastapi.responses import HTMLResponse

from collage.atlas.atlas import read_atlas
from collage.service.routes.pages.cost_pages import option_defaults
from collage.service.routes.pages.frame import Visitor, page
from collage.service.services import InjectedServices

router = APIRouter(include_in_schema=False, default_response_class=HTMLResponse)

_PAGE = 100
_MOST_PAGES = 10_000
_DIFFERENCES_SHOWN = 10
# Bars of targets that take longer end there, so that the others can be told apart.
_LONGEST_BAR = 5.0
_ORDERS: Mapping[str, tuple[str, Callable[[Mapping[str, Any]], Any] | None]] = {
    "class": ("By operators", None),
    "slowest": ("Slowest first", lambda row: -row["times_best"]),
    "fastest": ("Fastest first", lambda row: (row["times_best"], -row["fastest_in"])),
    "regions": ("Most regions first", lambda row: -row["regions"]),
    "models": ("Most models first", lambda row: -row["models"]),
}


@router.get("/atlas")
def atlas_page(
    request: Request,
    services: InjectedServices,
    visitor: Visitor,
    search: Annotated[str, Query(max_length=500)] = "",
    machine: Annotated[str, Query(max_length=500)] = "",
    dtype: Annotated[str, Query(max_length=100)] = "",
    backend: Annotated[str, Query(max_length=100)] = "",
    sure: bool = False,
    sort: str = "",
    number: Annotated[int, Query(ge=1, le=_MOST_PAGES)] = 1,
) -> HTMLResponse:
    """Rows of the atlas: searched, filtered, sorted, in pages; an empty field filters nothing."""
    found = read_atlas(services.database, search, wait=False)
    choices = {name: sorted({str(row[name]) for row in found["rows"]}) for name in ("machine", "dtype")}
    choices["backend"] = sorted({str(row["target"]).split()[0] for row in found["rows"]})

    def is_wanted(row: Mapping[str, Any], *targets: str) -> bool:
        return (
            (not machine or row["machine"] == machine)
            and (not dtype or row["dtype"] == dtype)
            and (not backend or any(target.split()[0] == backend for target in targets))
            and (not sure or row["is_sure"])
        )

    rows = [row for row in found["rows"] if is_wanted(row, row["target"])]
    apart = [pair for pair in found["differences"] if is_wanted(pair, pair["fast"], pair["slow"])]
    order = sort if sort in _ORDERS else "class"
    if (key := _ORDERS[order][1]) is not None:
        rows = sorted(rows, key=key)
    shown = rows[(number - 1) * _PAGE : number * _PAGE]
    given = {"search": search, "machine": machine, "dtype": dtype, "backend": backend}
    query = {name: value for name, value in given.items() if value}
    query |= {"sure": "true"} if sure else {}
    query |= {"sort": order} if order != "class" else {}
    return page(
        request,
        services,
        "atlas.html",
        "/atlas",
        rows=shown,
        count=len(rows),
        total=len(found["rows"]),
        apart=apart,
        apart_shown=_DIFFERENCES_SHOWN,
        longest=min(_LONGEST_BAR, max((row["times_best"] for row in shown), default=1.0)),
        is_whole=found["is_whole"],
        known_until=found["known_until"],
        choices=choices,
        given=given,
        sure=sure,
        order=order,
        orders={name: title for name, (title, _) in _ORDERS.items()},
        number=number,
        pages=max(1, -(-len(rows) // _PAGE)),
        query=query,
        export=urlencode({"search": search}) if search else "",
        defaults=option_defaults(services),
    )
