"""The pages of costs: the browser, and all costs of one sub-graph."""

from __future__ import annotations

from dataclasses import asdict, replace
from datetime import UTC, datetime
from typing import Annotated, Any, get_args
from urllib.parse import urlencode

from fastapi import APIRouter, Path, Query, Request
from fastapi.responses import HTMLResponse

from collage.cost_db.costs.browse import COST_ORDERS, CostOrder
from collage.cost_db.costs.queries import CostFilter
from collage.cost_db.costs.row import CostRow, Outcome
from collage.partitioner.errors import BadInputError
from collage.service.http.problems import not_found
from collage.service.routes.pages.frame import Visitor, page
from collage.service.services import InjectedServices, Services

router = APIRouter(include_in_schema=False, default_response_class=HTMLResponse)

_PAGE = 50
_MOST_PAGES = 10_000


@router.get("/costs")
def costs_page(
    request: Request,
    services: InjectedServices,
    visitor: Visitor,
    target: str = "",
    backend: str = "",
    backend_version: str = "",
    op_types: str = "",
    host: str = "",
    model: str = "",
    since: str = "",
    until: str = "",
    outcome: str = "",
    sort: str = "",
    number: Annotated[int, Query(ge=1, le=_MOST_PAGES)] = 1,
) -> HTMLResponse:
    """The cost browser; an empty field filters nothing."""
    problem = None
    wanted = CostFilter()
    order: CostOrder = next((each for each in COST_ORDERS if each == sort), "newest")
    rows: tuple[CostRow, ...] = ()
    count = 0
    try:
        wanted = CostFilter(
            target=target or None,
            backend=backend or None,
            backend_version=backend_version or None,
            op_types=tuple(op_types.replace(",", " ").split()),
            host=host or None,
            model=model or None,
            since=_utc(since),
            until=_utc(until),
        )
        if outcome in get_args(Outcome):
            wanted = replace(wanted, outcome=outcome)  # type: ignore[arg-type]
        count = services.database.count(wanted)
        rows = services.database.browse(wanted, order, (number - 1) * _PAGE, _PAGE)
    except BadInputError as error:
        problem = str(error)
    return page(
        request,
        services,
        "costs.html",
        "/costs",
        filters=wanted,
        rows=rows,
        count=count,
        order=order,
        orders=COST_ORDERS,
        number=number,
        pages=max(1, -(-count // _PAGE)),
        export=urlencode(_export(wanted), doseq=True),
        problem=problem,
        stats=services.database.stats(),
        defaults=option_defaults(services),
    )


@router.get("/costs/sub-graphs/{sub_graph}")
def sub_graph_page(
    request: Request,
    services: InjectedServices,
    visitor: Visitor,
    sub_graph: Annotated[str, Path(max_length=200)],
) -> HTMLResponse:
    """The latency of one sub-graph on each target where it was measured."""
    rows = services.database.of_sub_graph(sub_graph)
    if not rows:
        raise not_found(f"cost of sub-graph {sub_graph}")
    return page(
        request,
        services,
        "sub_graph.html",
        "/costs",
        sub_graph=sub_graph,
        rows=rows,
        defaults=option_defaults(services),
    )


def option_defaults(services: Services) -> dict[str, Any]:
    """Per backend its options, so that pages can leave defaults out."""
    return {entry["name"]: entry["options"] for entry in services.catalog.get()["targets"]}


def _export(wanted: CostFilter) -> dict[str, Any]:
    given = {name: value for name, value in asdict(wanted).items() if value}
    return {
        name: value.isoformat() if isinstance(value, datetime) else value
        for name, value in given.items()
    }


def _utc(minute: str) -> datetime | None:
    """What a field of type `datetime-local` says, taken as UTC.

    Raises:
        BadInputError: it is no time.
    """
    try:
        return datetime.fromisoformat(minute).replace(tzinfo=UTC) if minute else None
    except ValueError:
        raise BadInputError(f"{minute!r} is no time; write it like 2026-01-31T12:00") from None
