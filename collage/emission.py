"""The artifact of a plan: its partitions as they will run, proven once more and written with the evidence."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from collage.artifact import Artifact, write_artifact
from collage.evidence import verify_plan, versions_of
from collage.preparing import prepared_plan
from collage.region_files import RegionFiles
from collage.sampling import Sampling
from collage.site import Site
from partitioner.candidate import Plan
from partitioner.model import Model
from partitioner.plan_text import encode


@dataclass(frozen=True)
class Emission:
    """Writes artifacts of one model.

    Args:
        model: the normalised model.
        regions: sub-models of its partitions.
        samples: the run's inputs; the seeded ones prove the plan.
        tolerance: allowed for every value.
        site: where the plan is compiled.
        work_dir: takes the artifact and what is made on the way.
        cancel: stops it when set.
    """

    model: Model
    regions: RegionFiles
    samples: Sampling
    tolerance: float
    site: Site
    work_dir: Path
    cancel: threading.Event | None

    def write(self, plan: Plan, report: Mapping[str, Any], name: str) -> Artifact:
        """Compile a plan afresh, compare it with the reference, and write it.

        Args:
            plan: of the model.
            report: about it.
            name: of the artifact's file; large weights beside it are named after it.

        Raises:
            NoPlanError: it cannot be compiled once more.
            CancelledError: `cancel` was set.
        """
        threads = self.samples.threads
        final = prepared_plan(
            plan,
            self.regions,
            self.work_dir / "emit",
            threads,
            self.site,
            self.samples.cache_dir,
            self.cancel,
        )
        verification = verify_plan(
            final,
            self.samples.seeded,
            self.samples.seeds,
            self.tolerance,
            threads,
            self.site,
            self.cancel,
        )
        times = [part["latency_us"] for part in report["partitions"]]
        versions = versions_of(plan, self.site)
        destination = self.work_dir / "artifact" / name
        # Rewritten partitions have other nodes: the plan alone speaks of the model that was given.
        text = encode(self.model, plan, times, versions)
        known = (final.model, final.plan, times, report, verification, versions, destination)
        return write_artifact(*known, final.notes, text)
