"""The tables and the migrations agree, old databases come up, and wrong ones are refused."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory

from collage.cost_db import migrations, schema
from collage.cost_db.connections import Connections
from collage.cost_db.costs.observations import ObservationStore
from collage.cost_db.costs.queries import CostFilter
from collage.cost_db.database import CostDatabase
from collage.cost_db.errors import SchemaError
from collage.cost_db.jobs.jobs import JobStore
from collage.cost_db.stored_models import ModelStore
from collage.cost_db.tables import SCHEMA_REVISION, VERSION_TABLE, metadata
from collage.cost_db.tokens import TokenStore
from collage.cost_db.tunings import TuningStore
from tests.cost_db.builders import measured, store_all
from tests.postgres import Postgres
from tests.upgrade_assets import make

ASSETS = Path(make.__file__).parent
REVISIONS = sorted(revision for revision in schema.known_revisions() if revision)


def test_the_newest_migration_is_the_one_the_program_asks_for() -> None:
    scripts = ScriptDirectory(str(Path(migrations.__file__).parent))
    assert scripts.get_heads() == [SCHEMA_REVISION]


def test_migrations_lead_to_the_declared_schema(database: CostDatabase) -> None:
    """Tables, indexes and constraints."""
    _check_tables(database)


def _check_tables(database: CostDatabase) -> None:
    """Tables, indexes and constraints are those that the program declares, and no others."""

    def differences(connection: sa.Connection) -> list[object]:
        options = {"compare_type": True, "version_table": VERSION_TABLE}
        return list(compare_metadata(MigrationContext.configure(connection, opts=options), metadata))

    assert database.connections.write(differences) == []
    inspector = sa.inspect(database.connections.engine)
    for table in metadata.tables.values():
        declared = {index.name for index in table.indexes}
        assert {index["name"] for index in inspector.get_indexes(table.name)} >= declared
        named = {c.name for c in table.constraints if isinstance(c, sa.CheckConstraint) and c.name}
        assert {check["name"] for check in inspector.get_check_constraints(table.name)} == named


def test_every_revision_has_its_frozen_databases() -> None:
    for revision in REVISIONS:
        assert (ASSETS / f"{revision}.sqlite").exists()
        assert (ASSETS / f"{revision}.postgresql.sql").exists()


@pytest.mark.slow
@pytest.mark.parametrize("revision", REVISIONS)
def test_a_frozen_sqlite_file_comes_up_whole(revision: str, tmp_path: Path) -> None:
    shutil.copy(ASSETS / f"{revision}.sqlite", tmp_path / "old.db")
    _check_upgraded(CostDatabase(f"sqlite:///{tmp_path / 'old.db'}"), revision)


@pytest.mark.slow
@pytest.mark.parametrize("revision", REVISIONS)
def test_a_frozen_postgresql_dump_comes_up_whole(revision: str, postgres: Postgres) -> None:
    url = postgres.new_database(upgraded=False)
    postgres.run_sql(url, (ASSETS / f"{revision}.postgresql.sql").read_text(encoding="utf-8"))
    connections = Connections(url)
    schema.upgrade(connections)
    connections.close()
    _check_upgraded(CostDatabase(url), revision)


@pytest.mark.slow
def test_an_empty_postgresql_is_refused_until_it_is_upgraded(postgres: Postgres) -> None:
    url = postgres.new_database(upgraded=False)
    with pytest.raises(SchemaError, match=r"no tables yet.*collage db upgrade"):
        CostDatabase(url)
    connections = Connections(url)
    assert schema.upgrade(connections) is True
    assert schema.upgrade(connections) is False
    connections.close()
    CostDatabase(url).close()


def test_a_newer_database_is_refused_and_left_as_it_is(database: CostDatabase) -> None:
    store_all(database, measured())
    change = sa.text(f"UPDATE {VERSION_TABLE} SET version_num = '9999'")
    database.connections.write(lambda connection: connection.execute(change))
    url = database.connections.engine.url.render_as_string(hide_password=False)
    with pytest.raises(SchemaError, match=r"9999.*upgrade collage-tuner"):
        CostDatabase(url)
    with pytest.raises(SchemaError, match=r"9999.*upgrade collage-tuner"):
        schema.upgrade(database.connections)
    assert database.look_up([measured().digest]) == {measured().digest: measured()}


@pytest.mark.slow
def test_optuna_may_keep_its_studies_in_the_same_database(database: CostDatabase) -> None:
    optuna = pytest.importorskip("optuna")
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    url = database.connections.engine.url.render_as_string(hide_password=False)
    storage = optuna.storages.RDBStorage(url)
    study = optuna.create_study(storage=storage, study_name="local moves")
    study.enqueue_trial({"x": 1.0})
    study.optimize(lambda trial: trial.suggest_float("x", 0.0, 2.0), n_trials=1)
    storage.remove_session()
    storage.engine.dispose()
    again = CostDatabase(url)
    store_all(again, measured())
    assert again.stats().costs == 1
    again.close()


def _check_upgraded(database: CostDatabase, revision: str) -> None:
    """Every row that `tests.upgrade_assets.make` wrote is there, and new ones can be written."""
    assert database.connections.read(schema.current_revision) == SCHEMA_REVISION
    rows = make.SIZED if revision >= "0007" else make.COSTS
    assert database.query(CostFilter()).items == rows
    assert database.query(CostFilter(op_types=("Conv",))).items == rows[1:]
    assert database.claim([make.CLAIMED], "new owner", 60.0).granted == {make.CLAIMED.digest: 2}
    known = make.TUNING if revision >= "0002" else None
    assert TuningStore(database).find(make.TUNING.digest) == known
    seen = ObservationStore(database.connections)
    is_later = revision >= "0006"
    assert seen.newest("hardware-a", edition=1) == ((make.OBSERVATION,) if is_later else ())
    assert seen.gains("hardware-a", "mnn, openvino") == ((make.GAIN,) if is_later else ())
    jobs = JobStore(database)
    done, queued = sorted(jobs.list().items, key=lambda job: job.state)
    assert (done.state, done.result.artifact, done.spec) == (
        "done",
        make.BLOB,
        {"targets": ["openvino"]},
    )
    assert [event.kind for event in jobs.events(done.id)] == ["state", "state", "progress", "state"]
    assert queued.state == "queued"
    found = jobs.next_queued("worker", 60.0)
    assert found is not None and found.id == queued.id
    (token,) = TokenStore(database).list()
    assert (token.name, token.scopes, token.quotas.active_jobs) == ("team", {"read", "tune"}, 3)
    (model,) = ModelStore(database).list().items
    assert (model.sha256, model.owner, model.name) == (make.BLOB, token.id, "resnet50")
    store_all(database, measured(77))
    _check_tables(database)
    database.close()
