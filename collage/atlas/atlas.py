"""The atlas as data: per class of regions how each target compares with the best on this hardware."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from collage.cost_db.atlas import AtlasStore, Cell
from collage.cost_db.database import CostDatabase

# Two targets that differ by more than this are told apart in `differences`.
FAR_APART = 2.0
# Cells of fewer regions, or wider intervals, are not sure.
_SURE_REGIONS, _SURE_WIDTH = 5, 1.25


def read_atlas(
    database: CostDatabase,
    search: str = "",
    hardware: str | None = None,
    *,
    fresh: bool = False,
    wait: bool = True,
) -> dict[str, Any]:
    """The atlas of a database.

    Args:
        database: with the costs.
        search: words, each of which must be part of a row's operators, shapes, data type, target or machine;
            for `differences`, either target counts.
        hardware: only this fingerprint, or the beginning of one.
        fresh: count all costs anew.
        wait: until all costs are counted; else what is counted so far is told.

    Returns:
        `known_until`, the time of the newest cost in it; `is_whole`, whether all costs are counted; `rows`, one for each class and target, the largest classes first; and `differences`, where two targets
        differ by more than a factor of two (docs/atlas.md).
    """
    store = AtlasStore(database)
    if fresh:
        store.forget()
    if wait:
        store.count_all()
    found = store.summary()
    cells = [c for c in found.cells if hardware is None or c.hardware.startswith(hardware)]
    machines = {key: _machine(about) for key, about in store.machines().items()}
    rows = [_row(cell, machines.get(cell.hardware, cell.hardware[:12])) for cell in cells]
    words = search.lower().split()
    # Before rows are left out: a difference has two targets, and a word may name one of them.
    differences = [pair for pair in _differences(rows) if _has(pair, ("fast", "slow"), words)]
    rows = [row for row in rows if _has(row, ("target",), words)]
    rows.sort(key=lambda r: (r["hardware"], r["kind"], r["shape_class"], r["dtype"], r["times_best"]))
    return {
        "known_until": None if found.known_until is None else found.known_until.isoformat(),
        "is_whole": found.is_whole,
        "search": search,
        "rows": rows,
        "differences": differences,
    }


def _row(cell: Cell, machine: str) -> dict[str, Any]:
    interval = cell.interval
    sure = (
        interval is not None
        and cell.regions >= _SURE_REGIONS
        and interval[1] <= _SURE_WIDTH * interval[0]
    )
    return {
        "hardware": cell.hardware,
        "machine": machine,
        "kind": cell.kind,
        "shape_class": cell.shape_class,
        "dtype": cell.dtype,
        "target": cell.target,
        "times_best": cell.ratio,
        "interval": None if interval is None else list(interval),
        "fastest_in": cell.fastest / cell.regions,
        "regions": cell.regions,
        "models": cell.models,
        "is_sure": sure,
    }


def _differences(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Pairs of targets of one class that are far apart, the furthest first."""
    classes: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    for row in rows:
        key = tuple(row[name] for name in ("hardware", "kind", "shape_class", "dtype"))
        classes.setdefault(key, []).append(row)
    found = []
    for own in classes.values():
        best = min(own, key=lambda row: row["times_best"])
        for row in own:
            factor = row["times_best"] / best["times_best"]
            if factor > FAR_APART:
                shared = {n: row[n] for n in ("machine", "kind", "shape_class", "dtype", "regions")}
                found.append(
                    {
                        **shared,
                        "fast": best["target"],
                        "slow": row["target"],
                        "factor": factor,
                        "is_sure": row["is_sure"] and best["is_sure"],
                    }
                )
    return sorted(found, key=lambda pair: -pair["factor"])


def _machine(about: Any) -> str:
    """One line about a machine."""
    cpu, cores = about.get("cpu") or about.get("architecture", ""), about.get("cores", "?")
    gpus = [gpu.get("name", "") for gpu in about.get("gpus", ())]
    return ", ".join([str(cpu), f"{cores} cores", *gpus])


def _has(entry: Mapping[str, Any], targets: Sequence[str], words: Sequence[str]) -> bool:
    """Whether all words are part of what an entry says of its class, its machine and its targets."""
    names = ("kind", "shape_class", "dtype", *targets, "machine")
    text = " ".join(str(entry[name]) for name in names).lower()
    return all(word in text for word in words)
