"""What is stored of one structure at its sizes."""

from __future__ import annotations

from dataclasses import replace

from collage.cost_db.costs.row import CostRow
from collage.cost_db.database import CostDatabase
from tests.cost_db.builders import infeasible, key, measured, store_all

STRUCTURE, OTHER = "ab" * 32, "cd" * 32


def _at(number: int, structure: str | None = STRUCTURE, **of_key: str) -> CostRow:
    own = replace(key(number), **of_key)
    work = None if structure is None else 10.0 * number
    return measured(number, key=own, structure=structure, work=work, latency_us=1.0 + number)


def test_points_of_structures_are_found_in_one_call(database: CostDatabase) -> None:
    failed = infeasible(9, structure=STRUCTURE, work=90.0)
    rows = [_at(1), _at(2), _at(3, OTHER), _at(4, None), failed]
    store_all(database, *rows)
    assert database.look_up([row.digest for row in rows]) == {row.digest: row for row in rows}
    one = key()
    found = database.points_of([STRUCTURE, OTHER, "ef" * 32], [one.target], one.hardware, one.protocol)
    assert {of: sorted(points) for of, points in found.items()} == {
        (STRUCTURE, one.target, one.backend_version): [(10.0, 2.0), (20.0, 3.0)],
        (OTHER, one.target, one.backend_version): [(30.0, 4.0)],
    }


def test_points_of_other_targets_versions_machines_or_protocols_are_apart(
    database: CostDatabase,
) -> None:
    changes = {"target": "mnn", "backend_version": "2", "hardware": "b", "protocol": "p"}
    rows = [_at(n, **{name: text}) for n, (name, text) in enumerate(changes.items(), 1)]
    store_all(database, _at(5), *rows)
    one = key()
    found = database.points_of([STRUCTURE], [one.target], one.hardware, one.protocol)
    assert found == {
        (STRUCTURE, one.target, one.backend_version): [(50.0, 6.0)],
        (STRUCTURE, one.target, "2"): [(20.0, 3.0)],
    }


def test_nothing_asked_finds_nothing(database: CostDatabase) -> None:
    store_all(database, _at(1))
    one = key()
    assert database.points_of([], [one.target], one.hardware, one.protocol) == {}
