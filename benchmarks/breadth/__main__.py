"""What tuning does with every model that a list of packages carries, and with many operators.

    python -m benchmarks.breadth --report docs/results/breadth.md

The packages are downloaded into the cache of benchmarks once. Each model is tuned in a process of its own, from an
empty database. A row says `tuned`, `refused` with the reason, or `failed`, and what plain ONNX Runtime does with the
same file. `failed` is a fault of ours: another error, a crash, or no end within `--most-seconds`.

Rows that the output file has are kept, unless they failed.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.breadth.operators import contrib_models, zoo_models
from benchmarks.breadth.packages import Entry, package_models
from benchmarks.support.models import default_cache
from benchmarks.support.results import here, measured_before, write_table
from collage.backends.registry import installed

_KINDS = ("packages", "contrib", "zoo")
# The limit of a tuning bounds its search: reading the model and writing the artifact come on top.
_ALLOWED = (1.25, 10.0)


def main() -> None:
    """Tune what is missing, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--kinds", nargs="+", choices=_KINDS, default=list(_KINDS))
    parser.add_argument(
        "--only", nargs="+", default=None, metavar="NAME", help="models whose name has one of these"
    )
    parser.add_argument("--zoo", type=int, default=60, help="how many of ONNX's node tests; 0 for all")
    parser.add_argument("--targets", nargs="+", default=None)
    parser.add_argument("--time-limit", type=float, default=20.0, help="of one tuning")
    parser.add_argument("--most-seconds", type=float, default=900.0, help="a tuning is killed then")
    parser.add_argument("--output", type=Path, default=Path("benchmarks/results/breadth.json"))
    parser.add_argument("--report", type=Path, default=None, help="write the table between its marks")
    chosen = parser.parse_args()
    targets = chosen.targets or installed()
    settings = {"targets": targets, "time_limit_s": chosen.time_limit, "hardware": here()}
    rows: dict[str, Any] = dict(measured_before(chosen.output, settings))
    for entry in _entries(chosen.kinds, chosen.zoo):
        known = rows.get(_key(entry), {}).get("outcome")
        if known in ("tuned", "refused") or not _is_wanted(entry, chosen.only):
            continue
        rows[_key(entry)] = _row(entry, targets, chosen.time_limit, chosen.most_seconds)
        print(_line(_key(entry), rows[_key(entry)]), flush=True)
        chosen.output.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps({**settings, "rows": rows}, indent=1)
        chosen.output.write_text(text + "\n", encoding="utf-8")
    table = table_of(rows, settings)
    print(table)
    if chosen.report is not None:
        write_table(chosen.report, "breadth", table)


def _entries(kinds: Sequence[str], zoo: int) -> Iterator[Entry]:
    cache = default_cache()
    if "packages" in kinds:
        yield from package_models(cache / "packages")
    if "contrib" in kinds:
        yield from contrib_models(cache / "contrib")
    if "zoo" in kinds:
        yield from zoo_models(cache / "zoo", zoo)


def _key(entry: Entry) -> str:
    return f"{entry.source}: {entry.name}"


def _is_wanted(entry: Entry, only: Sequence[str] | None) -> bool:
    return only is None or any(word in _key(entry) for word in only)


def _row(entry: Entry, targets: Sequence[str], time_limit_s: float, most_s: float) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="collage-breadth-") as folder:
        inputs = None
        if entry.inputs:
            inputs = str(Path(folder) / "inputs.npz")
            np.savez(inputs, allow_pickle=False, **entry.inputs)
        request = {
            "path": str(entry.path),
            "dims": dict(entry.dims),
            "inputs": inputs,
            "targets": list(targets),
            "time_limit_s": time_limit_s,
        }
        file = Path(folder) / "request.json"
        file.write_text(json.dumps(request), encoding="utf-8")
        command = [sys.executable, "-W", "ignore", "-m", "benchmarks.breadth.one", str(file)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=most_s, check=False)
        except subprocess.TimeoutExpired:
            return {"outcome": "failed", "reason": f"no end after {most_s:.0f} s", "seconds": most_s}
        lines = done.stdout.strip().splitlines()
        if done.returncode or not lines:
            said = (done.stderr.strip().splitlines() or [""])[-1]
            return {
                "outcome": "failed",
                "reason": f"exit code {done.returncode}: {said}"[:500],
                "seconds": 0.0,
            }
        found: dict[str, Any] = json.loads(lines[-1])
        return {**found, "dims": dict(entry.dims)}


def _line(key: str, row: Mapping[str, Any]) -> str:
    return f"{key}: {row['outcome']}, {row['seconds']:.0f} s: {row['reason'] or _plan(row)}"


def _plan(row: Mapping[str, Any]) -> str:
    parts = row.get("partitions", [])
    more = f" and {len(parts) - 3} more" if len(parts) > 3 else ""
    return ", ".join(f"{target} ({count})" for target, count in parts[:3]) + more


def table_of(rows: Mapping[str, Mapping[str, Any]], settings: Mapping[str, Any]) -> str:
    """The table of all rows, and their counts."""
    lines = [
        f"{settings['hardware']}; `{'`, `'.join(settings['targets'])}`; limit {settings['time_limit_s']:g} s.",
        "",
        "| model | sizes | outcome | seconds | plan, or the reason | plain ONNX Runtime |",
        "|---|---|---|---|---|---|",
    ]
    for key, row in rows.items():
        dims = ", ".join(f"{name}={size}" for name, size in row.get("dims", {}).items())
        said = (row["reason"] or _plan(row)).replace("|", "\\|")
        plain = str(row.get("onnxruntime", "")).replace("|", "\\|")[:160]
        lines.append(
            f"| {key} | {dims} | {row['outcome']} | {row['seconds']:.0f} | {said[:300]} | {plain} |"
        )
    count = {
        kind: sum(row["outcome"] == kind for row in rows.values())
        for kind in ("tuned", "refused", "failed")
    }
    alone = [
        k
        for k, r in rows.items()
        if r["outcome"] == "refused" and not str(r["onnxruntime"]).startswith("refuses")
    ]
    factor, more = _ALLOWED
    most = factor * settings["time_limit_s"] + more
    long = [f"{k} ({r['seconds']:.0f} s)" for k, r in rows.items() if r["seconds"] > most]
    lines += [
        "",
        f"{len(rows)} models: {count['tuned']} tuned, {count['refused']} refused, {count['failed']} failed. "
        f"Refused though ONNX Runtime runs them: {'; '.join(alone) or 'none'}. "
        f"Longer than {most:.0f} s: {'; '.join(long) or 'none'}.",
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
