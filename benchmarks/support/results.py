"""Files of results: one machine's rows, the samples that they are of, and tables in the documentation."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.support.models import seeded_inputs
from collage.backends.machine.hardware import hardware
from collage.backends.machine.process_policy import default_threads
from collage.partitioner.graph.model import Model
from collage.partitioner.ingest.normalize import normalize

Row = Mapping[str, Any]


def here() -> str:
    """The machine, as tables name it: rows of two machines do not belong into one."""
    return f"{default_threads()} threads, {hardware().describe()}"


def measured_before(output: Path, settings: Mapping[str, Any]) -> Any:
    """The rows of a file of results; empty where there is none.

    Raises:
        SystemExit: it was measured otherwise, and is left as it is.
    """
    if not output.is_file():
        return {}
    found = json.loads(output.read_text(encoding="utf-8"))
    for name, value in settings.items():
        if found.get(name) != value:
            raise SystemExit(
                f"{output} has results of {name} {found.get(name)!r}, this would be {value!r}: give another --output"
            )
    return found["rows"]


def read_rows(path: Path, settings: Mapping[str, Any]) -> list[Row]:
    """The rows of a file; none where there is no file.

    Raises:
        SystemExit: some were measured otherwise; the file is left as it is.
    """
    if not path.is_file():
        return []
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line]
    for row in rows:
        for name, value in settings.items():
            if row[name] != value:
                raise SystemExit(
                    f"{path} has results of {name} {row[name]!r}, this would be {value!r}: give another --output"
                )
    return rows


def append_row(path: Path, row: Row) -> None:
    """Add a row to a file, which is made if need be."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(row) + "\n")


def write_inputs(name: str, path: Path, dims: dict[str, int], work: Path, count: int = 4) -> Path:
    """Samples that suit the model: half to tune on, half held out."""
    info = normalize(path, work / "normalized", dims)
    model = Model.open(info.path)
    destination = work / "inputs.npz"
    samples = [seeded_inputs(name, model, seed) for seed in range(count)]
    stacked = {input_name: np.stack([s[input_name] for s in samples]) for input_name in samples[0]}
    plain = {name: a.astype(str) if a.dtype.hasobject else a for name, a in stacked.items()}
    np.savez(destination, allow_pickle=False, **plain)
    return destination


def write_table(path: Path, mark: str, table: str) -> None:
    """Replace what stands between the marks `<!-- mark -->` and `<!-- /mark -->`."""
    begin, end = f"<!-- {mark} -->\n", f"<!-- /{mark} -->"
    head, rest = path.read_text(encoding="utf-8").split(begin, 1)
    path.write_text(head + begin + table + end + rest.split(end, 1)[1], encoding="utf-8")


def geomean(ratios: list[float]) -> float:
    return float(np.exp(np.mean(np.log(ratios))))
