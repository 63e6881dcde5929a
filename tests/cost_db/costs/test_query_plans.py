"""200,000 costs: look-ups, pages and claims are answered from an index, on both engines."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
import sqlalchemy as sa

from collage.cost_db.costs.lookups import points_statement
from collage.cost_db.costs.queries import CostFilter, page_statement
from collage.cost_db.costs.row_mapping import select_rows
from collage.cost_db.database import CostDatabase
from collage.cost_db.tables import claims, cost_operators, costs
from tests.cost_db.builders import START
from tests.postgres import Postgres

ROWS = 200_000

# 40 targets of 4 backends, 20 versions, 10 hosts, 100 hardware, 500 models; 1 in 1,000 is infeasible.
_FILL = """
INSERT INTO costs (digest, sub_graph, target, backend, backend_version, hardware, protocol, outcome,
    latency_us, samples_us, node_times_us, host, op_types, node_count, model_sha256, versions,
    created_at, structure, work)
SELECT {digest}, 'sub-graph ' || n, 'backend' || (n % 4) || ' -threads=' || (n % 40),
    'backend' || (n % 4), 'version ' || (n % 20), 'hardware ' || (n % 100), '1',
    CASE WHEN n % 1000 = 0 THEN 'infeasible' ELSE 'measured' END,
    CASE WHEN n % 1000 = 0 THEN NULL ELSE 1.5 END, '[1.5]', '[]', 'host ' || (n % 10),
    CASE WHEN n % 10 = 7 THEN 'Op' || (n % 200) || ' Relu' ELSE 'Op' || (n % 200) END,
    2, 'model ' || (n % 500), '{{}}', {moment}, {digest}, n
FROM {numbers}
"""
_OPERATORS = """
INSERT INTO cost_operators (digest, op_type, created_at) SELECT digest, {op}, created_at FROM costs
"""
_RELU = " WHERE op_types LIKE '% Relu'"
_CLAIMS = "INSERT INTO claims (digest, fence, lease_until) SELECT digest, 1, 0 FROM costs"

FILTERS = {
    "none": CostFilter(),
    "target": CostFilter(target="backend3 -threads=7"),
    "backend": CostFilter(backend="backend3"),
    "backend and version": CostFilter(backend="backend3", backend_version="version 7"),
    "backend_version": CostFilter(backend_version="version 7"),
    "one operator": CostFilter(op_types=("Op7",)),
    "two operators": CostFilter(op_types=("Op7", "Relu")),
    "host": CostFilter(host="host 3"),
    "hardware": CostFilter(hardware="hardware 42"),
    "model": CostFilter(model="model 77"),
    "outcome": CostFilter(outcome="infeasible"),
    "time": CostFilter(
        since=START + timedelta(seconds=80_000), until=START + timedelta(seconds=100_000)
    ),
    "nothing found": CostFilter(target="no such target"),
}


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def many(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[CostDatabase]:
    if request.param == "sqlite":
        folder: Path = tmp_path_factory.mktemp("many")
        database = CostDatabase(f"sqlite:///{folder / 'costs.db'}")
        digest = "printf('%064x', n)"
        moment = f"datetime('{START:%Y-%m-%d %H:%M:%S}', n || ' seconds') || '.000000'"
        counting = f"SELECT 0 UNION ALL SELECT n + 1 FROM c LIMIT {ROWS}"
        numbers = f"(WITH RECURSIVE c(n) AS ({counting}) SELECT n FROM c)"
    else:
        server: Postgres = request.getfixturevalue("postgres")
        database = CostDatabase(server.new_database())
        digest = "lpad(to_hex(n), 64, '0')"
        moment = f"timestamptz '{START.isoformat()}' + n * interval '1 second'"
        numbers = f"(SELECT n FROM generate_series(0::bigint, {ROWS - 1}) AS n) AS numbers"
    first_word = "rtrim(replace(op_types, 'Relu', ''))"

    def fill(connection: sa.Connection) -> None:
        if not database.connections.is_sqlite:
            connection.execute(sa.text("SET LOCAL session_replication_role = replica"))
        # Indexes are made anew afterward: that takes a third of the time.
        indexes = [index for table in (costs, cost_operators, claims) for index in table.indexes]
        for index in indexes:
            index.drop(connection)
        for statement in (
            _FILL.format(digest=digest, moment=moment, numbers=numbers),
            _OPERATORS.format(op=first_word),
            _OPERATORS.format(op="'Relu'") + _RELU,
            _CLAIMS,
        ):
            connection.execute(_text(statement))
        for index in indexes:
            index.create(connection)
        connection.execute(sa.text("ANALYZE"))

    database.connections.write(fill)
    yield database
    database.close()


@pytest.mark.slow
@pytest.mark.parametrize("name", FILTERS)
def test_a_page_of_any_filter_comes_from_an_index(many: CostDatabase, name: str) -> None:
    first = many.query(FILTERS[name], limit=100)
    for after in (None, first.next):
        plan = _plan(many, page_statement(FILTERS[name], after, 100))
        _assert_indexed(plan)
    second = many.query(FILTERS[name], first.next, limit=100)
    assert len(first.items) == (0 if name == "nothing found" else 100)
    assert (
        not {row.digest for row in first.items} & {row.digest for row in second.items}
        or not first.items
    )


@pytest.mark.slow
def test_a_look_up_of_a_thousand_keys_uses_the_index(many: CostDatabase) -> None:
    page = many.query(CostFilter(hardware="hardware 3"), limit=1_000)
    digests = [row.digest for row in page.items]
    assert len(digests) == 1_000
    _assert_indexed(_plan(many, select_rows().where(costs.c.digest.in_(digests))))
    assert len(many.look_up(digests)) == 1_000


@pytest.mark.slow
def test_other_sizes_of_a_thousand_structures_use_the_index(many: CostDatabase) -> None:
    page = many.query(CostFilter(hardware="hardware 3", target="backend3 -threads=23"), limit=1_000)
    structures = [row.structure or "" for row in page.items]
    wanted = structures, ["backend3 -threads=23"], "hardware 3", "1"
    assert len(structures) == 1_000 and len(many.points_of(*wanted)) == 1_000
    _assert_indexed(_plan(many, points_statement(*wanted)))


@pytest.mark.slow
def test_claims_are_found_by_the_index(many: CostDatabase) -> None:
    _assert_indexed(_plan(many, sa.select(claims).where(claims.c.digest.in_(["a" * 64, "b" * 64]))))
    digests = [f"{number:064d}x"[1:] for number in range(1_000)]
    assert len(many.claim(digests, "a", 60.0).granted) == 1_000


@pytest.mark.slow
def test_a_few_of_many_are_forgotten_by_the_index(many: CostDatabase) -> None:
    wanted = replace(FILTERS["time"], model="model 99")
    _assert_indexed(_plan(many, page_statement(wanted, None, 100)))
    assert many.forget(wanted) == 40


def _plan(database: CostDatabase, statement: sa.Select[tuple[object, ...]]) -> str:
    dialect = database.connections.engine.dialect
    text = str(statement.compile(dialect=dialect, compile_kwargs={"literal_binds": True}))
    explain = "EXPLAIN QUERY PLAN " if database.connections.is_sqlite else "EXPLAIN "
    rows = database.connections.read(lambda connection: connection.execute(_text(explain + text)).all())
    return "\n".join(" ".join(map(str, row)) for row in rows)


def _assert_indexed(plan: str) -> None:
    """No whole table is read, and nothing is sorted after an unbounded read."""
    lines = [line for line in plan.splitlines() if " hardware" not in line.lower()]
    text = "\n".join(lines)
    assert "Index" in text or "INDEX" in text, plan
    assert "Seq Scan on cost" not in text and "Seq Scan on claims" not in text, plan
    assert not any("SCAN" in line and "USING" not in line for line in lines), plan
    assert "USE TEMP B-TREE" not in text, plan


def _text(statement: str) -> sa.TextClause:
    return sa.text(statement.replace(":", r"\:"))
