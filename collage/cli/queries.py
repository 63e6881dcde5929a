"""The data behind `collage targets`, `collage costs` and `collage db`, ready for JSON."""

from __future__ import annotations

from dataclasses import asdict
from datetime import datetime
from typing import Any

from collage.backends.contract import Available, Backend
from collage.backends.machine.hardware import hardware
from collage.backends.registry import backends, check_options, options_of
from collage.cost_db.connections import Connections, default_url
from collage.cost_db.costs.observations import ObservationStore
from collage.cost_db.costs.queries import CostFilter
from collage.cost_db.database import CostDatabase
from collage.cost_db.schema import upgrade
from collage.cost_db.tables import SCHEMA_REVISION
from collage.extras import how_to_install, learner_is_installed
from collage.learning.features import EDITION
from collage.learning.predictor import ENOUGH_MODELS, Predictor
from collage.partitioner.errors import BadInputError
from collage.partitioner.target import Target


def list_targets() -> list[dict[str, Any]]:
    """Every known backend: installed or not, its version, style and options."""
    return [_described(backend) for backend in backends().values()]


def find_target(name: str) -> dict[str, Any]:
    """One backend, as `list_targets` describes it.

    Raises:
        TargetError: there is none of this name; the known ones are listed.
    """
    return _described(check_options(Target(name)))


def _described(backend: Backend) -> dict[str, Any]:
    probed = backend.probe()
    state: dict[str, Any] = (
        {"available": True, "version": probed.version}
        if isinstance(probed, Available)
        else {"available": False, "reason": probed.reason, "how_to_install": probed.how_to_install}
    )
    options = [
        {"name": o.name, "default": o.default, "choices": list(o.choices), "help": o.help}
        for o in options_of(backend)
    ]
    return {
        "name": backend.name,
        "style": backend.style,
        "summary": backend.summary,
        **state,
        "options": options,
    }


def list_costs(url: str | None, target: str | None, limit: int) -> list[dict[str, Any]]:
    """Measured costs, newest first; a target without options means all of its backend."""
    database = CostDatabase(url or default_url())
    whole_backend = target is not None and not Target.parse(target).options
    wanted = CostFilter(backend=target) if whole_backend else CostFilter(target=target)
    try:
        page = database.query(wanted, None, limit)
    finally:
        database.close()
    rows = []
    for row in page.items:
        data = asdict(row)
        data["created_at"] = row.created_at.isoformat()
        rows.append(data)
    return rows


def cost_stats(url: str | None) -> dict[str, Any]:
    """How many costs are known, by kind."""
    database = CostDatabase(url or default_url())
    try:
        stats = asdict(database.stats())
    finally:
        database.close()
    return {k: v.isoformat() if isinstance(v, datetime) else v for k, v in stats.items()}


def learned(url: str | None) -> dict[str, Any]:
    """Of each target how far predictions of models that were held out are off, on this machine."""
    database = CostDatabase(url or default_url())
    try:
        rows = ObservationStore(database.connections).newest(hardware().digest, EDITION)
    finally:
        database.close()
    if rows and not learner_is_installed():
        raise BadInputError(f"nothing is predicted without scikit-learn: {how_to_install('sklearn')}")
    predictor = Predictor(rows)
    return {
        "observations": len(rows),
        "models": len({row.model for row in rows}),
        "enough_models": ENOUGH_MODELS,
        "targets": [asdict(error) for error in predictor.errors(predictor.targets)],
    }


def upgrade_database(url: str | None) -> str:
    """Bring a database to the newest schema; returns one line about it."""
    connections = Connections(url or default_url())
    changed = upgrade(connections)
    done = "upgraded to" if changed else "is already at"
    return f"{connections.url} {done} schema {SCHEMA_REVISION}"
