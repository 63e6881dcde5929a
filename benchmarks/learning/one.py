"""One tuning, with when its plan was found; and databases that have seen other models."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import collage
from benchmarks.support.models import benchmark_model
from collage.backends.machine.hardware import hardware
from collage.cost_db.costs.observations import ObservationStore
from collage.cost_db.costs.queries import CostFilter
from collage.cost_db.database import CostDatabase
from collage.events import Event
from collage.learning.features import EDITION
from collage.report.bench import bench


def tuned(
    name: str, targets: Sequence[str], database: Path, artifact: Path, time_limit_s: float | None
) -> dict[str, Any]:
    """Tune a model and say how long that took, and when its plan was timed first.

    Args:
        name: of a benchmark model.
        targets: texts.
        database: a SQLite file; made where it is missing.
        artifact: where the plan goes.
        time_limit_s: None for the usual limit.
    """
    model = benchmark_model(name)
    first_s: dict[str, float] = {}
    ended: list[str] = []
    begin_s = time.monotonic()

    def tell(event: Event) -> None:
        plan = (event.data or {}).get("plan")
        if plan is not None:
            first_s.setdefault(plan, time.monotonic() - begin_s)
        if event.stage == "done":
            ended.append(event.message.removesuffix(" wins"))

    report = collage.tune(
        model.path,
        targets,
        output=artifact,
        database=f"sqlite:///{database}",
        dims=dict(model.dims),
        tolerance=1e-3,
        time_limit_s=time_limit_s,
        fresh=True,
        on_event=tell,
    ).report
    return {
        "seconds": time.monotonic() - begin_s,
        "found_s": first_s.get(ended[-1]) if ended else None,
        "plan": [[part["target"], len(part["nodes"])] for part in report["partitions"]],
        "speedup": report["speedup_over_best_single"],
        "measured": report["candidates"]["measured"],
        "compared": len(report["plans"]),
        "learned": report["learned"],
        "left_out": sorted(
            b["target"] for b in report["baselines"] if b.get("infeasible", "").startswith("left out")
        ),
        "ended_early": any(text.startswith("ended early") for text in report["warnings"]),
    }


def merged(sources: Sequence[Path], into: Path) -> None:
    """Make a database that has seen what others have."""
    into.unlink(missing_ok=True)
    database = CostDatabase(f"sqlite:///{into}")
    store = ObservationStore(database.connections)
    for path in sources:
        source = CostDatabase(f"sqlite:///{path}")
        lines = "".join(source.export_lines(CostFilter())).splitlines()
        database.import_lines(lines)
        seen = ObservationStore(source.connections)
        store.keep(seen.newest(hardware().digest, EDITION))
        for gain in seen.every_gain(hardware().digest):
            store.keep_gain(gain)
        source.close()
    database.close()


def beside(warm: Path, cold: Path) -> dict[str, Any]:
    """The cold plan's time over the warm plan's, both timed in turn in fresh processes."""
    found: dict[str, Any] = bench(warm, against=cold)["against"]
    return {name: found.get(name) for name in ("same_plan", "ratio", "interval")}
