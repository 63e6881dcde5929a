"""The part of a diagnosis on speed: what is compared with what, and reproducers that time."""

from __future__ import annotations

import json
import shutil
import threading
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from collage.backends.registry import backend_of, canonical
from collage.backends.sandbox.run import ChildFailed, ChildLimits
from collage.diagnosis.output import SLOW
from collage.diagnosis.reproducing.reproducer import run_script, types_of, write_values
from collage.diagnosis.reproducing.scripts import is_alone, timing_script
from collage.diagnosis.request import DiagnoseRequest
from collage.diagnosis.speed.sides import Side, SideTimer
from collage.diagnosis.speed.slow import SlowSearch, fastest_other
from collage.environments.environment import environment_of, this_environment
from collage.environments.work import Environment
from collage.events import Listener
from collage.model.reference import Reference
from collage.model.sub_models import RegionFiles
from collage.partitioner.errors import BadInputError
from collage.partitioner.graph.model import Model
from collage.partitioner.graph.sub_graph import SubGraph
from collage.partitioner.target import Target
from collage.runner import Runner

SCRIPT = "time_it.py"
_TIMEOUT_S = 300.0


@dataclass
class SpeedSearch:
    """Looks for regions in which a target is slow, once it is right.

    Args:
        request: what was asked.
        model: the model.
        regions: its sub-models.
        samples: inputs and reference values.
        threads: of one call.
        runner: where it runs.
        listener: is told about every step.
        cancel: stops it when set.
    """

    request: DiagnoseRequest
    model: Model
    regions: RegionFiles
    samples: Reference
    threads: int
    runner: Runner
    listener: Listener
    cancel: threading.Event | None = None
    _other: Environment | None = field(init=False, default=None)

    def check(self) -> None:
        """Check that the other target or environment can be used, before anything runs.

        Raises:
            BadInputError: the other target or environment cannot be used.
        """
        if self.request.against_python is not None:
            self._other = environment_of(self.request.against_python, self.cancel)
        elif self.request.against is not None:
            refused = self._refusal(self.request.against)
            if refused is not None:
                raise BadInputError(
                    f"{self.request.against} does not take the whole model ({refused}); give another --against"
                )

    def run(self) -> dict[str, Any]:
        """The part of the report on speed, after `check`; `note` says why there is nothing to compare.

        Raises:
            CancelledError: `cancel` was set.
        """
        index = self.model.index
        environments = [this_environment(self.runner, self.cancel)]
        if self._other is not None:
            environments.append(self._other)
        timer = SideTimer(
            self.regions,
            self.samples,
            environments,
            self.threads,
            self.runner,
            self.cancel,
            metric=self.request.options.metric,
        )
        own = Side(self.request.target, 0)
        notes: dict[str, str] = {}
        if self._other is not None:
            other: Side | None = Side(self.request.against or self.request.target, 1)
        elif self.request.against is not None:
            other = Side(self.request.against, 0)
        else:
            others, notes = self._others(environments[0])
            found, failed = fastest_other(timer, index, own, others)
            other, notes = found, notes | failed
        if other is None:
            return {"note": "no other installed target runs the whole model", "not_compared": notes}
        search = SlowSearch(index, timer, own, other, self.listener)
        report = search.run() | {"not_compared": notes}
        for number, (nodes, region) in enumerate(zip(search.costly, report["regions"], strict=True)):
            region["reproducer"] = self._reproducer(number, nodes, region, other)
        return report

    def _others(self, here: Environment) -> tuple[list[Side], dict[str, str]]:
        """Other installed runtimes that take every node, and why the rest does not."""
        able, notes = [], {}
        for name in sorted(set(here.versions) - {"collage", "python", self.request.target.backend}):
            refused = self._refusal(Target(name))
            if refused is None:
                able.append(Side(Target(name), 0))
            else:
                notes[name] = refused
        return able, notes

    def _refusal(self, target: Target) -> str | None:
        backend, index = backend_of(target), self.model.index
        reasons = (backend.supports(index, node, target) for node in range(len(index.nodes)))
        return next((reason for reason in reasons if reason is not None), None)

    def _reproducer(
        self, number: int, nodes: int, region: dict[str, Any], other: Side
    ) -> dict[str, Any]:
        """A folder with the region, its inputs, and a script that times it."""
        folder = self.request.output / f"{SLOW}{number}"
        folder.mkdir(parents=True, exist_ok=True)
        model = self.regions.get(nodes)
        for file in model.path.parent.glob(f"{model.path.name}*"):
            shutil.copyfile(file, folder / file.name)
        whole = SubGraph(self.model.index, nodes)
        given = self.samples.values(whole.inputs)[:1]
        write_values(folder, "inputs", model.inputs, given)
        targets = [canonical(self.request.target, self.threads)]
        if other.environment == 0:
            targets.append(canonical(other.target, self.threads))
        against = "another version" if other.environment else str(other.target)
        title = (
            f"{self.request.target} takes {region['alone']['ratio']:.2f} times as long as {against} "
            f"for {region['operators']}"
        )
        text = timing_script(
            title=title,
            targets=targets,
            threads=self.threads,
            inputs=types_of(model.inputs, given[0]),
        )
        (folder / SCRIPT).write_text(text, encoding="utf-8")
        (folder / "environment.json").write_text(
            json.dumps({"hardware": asdict(self.runner.hardware), "threads": self.threads}, indent=2)
            + "\n",
            encoding="utf-8",
        )
        (folder / "issue.md").write_text(self._issue(title, region, other), encoding="utf-8")
        return {
            "folder": str(folder),
            "ran": self._runs(folder),
            "imports_collage": not all(is_alone(target, self.threads) for target in targets),
        }

    def _runs(self, folder: Path) -> bool:
        limits = ChildLimits(timeout_s=_TIMEOUT_S)
        try:
            with self.runner.alone(self.cancel):
                status: int = self.runner.run(
                    run_script, (folder / SCRIPT).resolve(), limits=limits, cancel=self.cancel
                )
        except ChildFailed:
            return False
        return status == 0

    def _issue(self, title: str, region: dict[str, Any], other: Side) -> str:
        """A report for the runtime's authors, in Markdown."""
        how = (
            "Run it with the interpreters of both versions."
            if other.environment
            else "It times both in turn."
        )
        rows = [
            f"| {name} | {part['latency_us']:.1f} [{part['interval_us'][0]:.1f}, {part['interval_us'][1]:.1f}] "
            f"| {part['other_latency_us']:.1f} [{part['other_interval_us'][0]:.1f}, {part['other_interval_us'][1]:.1f}] "
            f"| {part['ratio']:.3f} [{part['ratio_interval'][0]:.3f}, {part['ratio_interval'][1]:.3f}] |"
            for name, part in (("alone", region["alone"]), ("in the model", region["in_place"]))
        ]
        lines = [
            f"# {title}",
            "",
            f"`python {SCRIPT}` in this folder times `model.onnx`. {how}",
            "",
            "| | microseconds | the other | ratio |",
            "|---|---|---|---|",
            *rows,
            "",
            "Intervals are of 95 % over builds in processes of their own, timed in turn.",
            "",
            f"Machine: {self.runner.hardware.describe()}; {self.threads} threads.",
            "",
        ]
        return "\n".join(lines)
