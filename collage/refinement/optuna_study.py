"""Keeps the study of a local search in the cost database, for optuna-dashboard.

A search runs in memory, since Optuna would write each parameter in a transaction of its own between two
timings; what was timed, or failed, is written when the search has ended, to Optuna's own tables beside
ours (they have no name in common). Moves that could not be made are left out.

Invariant: a study is never part of a result: where it cannot be kept, that is told and nothing else
happens.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

import optuna
import sqlalchemy as sa
from optuna.exceptions import OptunaError
from optuna.trial import FrozenTrial
from sqlalchemy.exc import SQLAlchemyError

from collage.cost_db.connections import Connections
from collage.cost_db.errors import DatabaseError
from collage.events import Event, Listener

PLAN = "plan"
_WAIT_S = 30.0
_LAST_TABLE = "alembic_version"  # Optuna makes it when its others are there
_DIGITS = 12


def keep(connections: Connections, model_sha256: str, listener: Listener, study: optuna.Study) -> None:
    """Write a study's timed trials under the model's digest and the time.

    Args:
        connections: of the cost database.
        model_sha256: of the model that was tuned.
        listener: told when it could not be kept.
        study: what was found.
    """
    trials = [trial for trial in study.get_trials(deepcopy=False) if PLAN in trial.user_attrs]
    if not trials:
        return
    now = datetime.now(UTC).isoformat(sep=" ", timespec="microseconds")
    name = f"{model_sha256[:_DIGITS]} {now}"
    try:
        _write(connections, name, study, trials)
    except (OptunaError, SQLAlchemyError, DatabaseError) as error:
        said = (str(error).splitlines() or [type(error).__name__])[0]
        listener(Event("end_to_end", f"the study of local moves could not be kept: {said}"))


def _write(
    connections: Connections, name: str, study: optuna.Study, trials: Sequence[FrozenTrial]
) -> None:
    url = connections.engine.url.render_as_string(hide_password=False)
    wait = {"connect_args": {"timeout": _WAIT_S}} if connections.is_sqlite else {}
    there = connections.read(lambda connection: sa.inspect(connection).has_table(_LAST_TABLE))
    # To make and compare its tables takes Optuna longer than to write a study.
    storage = optuna.storages.RDBStorage(url, engine_kwargs=wait, skip_table_creation=there)
    try:
        kept = optuna.create_study(storage=storage, study_name=name, direction=study.direction)
        kept.add_trials(trials)
    finally:
        storage.remove_session()
        storage.engine.dispose()
