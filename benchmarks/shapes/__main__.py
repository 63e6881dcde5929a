"""Requests of many sizes in random order: one artifact beside every single runtime in its best way.

    python -m benchmarks.shapes [MODEL ...] [--requests 500] [--time-limit 60] [--output FILE]

Each contender runs in a process of its own: ours; ONNX Runtime, OpenVINO and MNN compiled once for any size; OpenVINO
compiled for each size on first use, and kept. All get the same requests in blocks, in turn, and the first one changes
with the block. Times of compiling a size are part of the requests, those of starting are not. Our artifact was loaded
before on the machine. Goal: the fastest
contender's total over ours is 1.15 in the geometric mean and never below 0.98, and our peak memory at most 1.3 times
that of the leanest runtime that our plan uses, compiled once for any size.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import collage
from benchmarks.shapes.cases import CASES, check_names
from benchmarks.support.results import geomean, here
from collage.backends.contract import Available
from collage.backends.registry import resolve
from collage.model.reference import RUNTIME
from collage.partitioner.ingest.normalize import normalize
from collage.partitioner.target import Target

_TARGETS = ("onnxruntime", "openvino", "mnn")
_CONTENDERS = ("onnxruntime/dynamic", "openvino/dynamic", "openvino/exact", "mnn/dynamic")
_BLOCK = 25


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("models", nargs="*", metavar="MODEL", help=f"of {', '.join(CASES)} [all]")
    parser.add_argument("--requests", type=int, default=500)
    parser.add_argument("--time-limit", type=float, default=60.0)
    parser.add_argument("--output", type=Path, help="where the rows go as JSON")
    given = parser.parse_args()
    check_names(parser, given.models)
    rows = {}
    for name in given.models or CASES:
        rows[name] = measure(name, given.requests, given.time_limit)
        print(name, json.dumps(rows[name]), flush=True)
    print(table(rows))
    if given.output is not None:
        found = {"machine": here(), "requests": given.requests, "rows": rows}
        given.output.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def measure(name: str, requests: int, time_limit_s: float) -> dict[str, Any]:
    """The totals of a case by contender, in seconds, with peak memory in MiB."""
    case = CASES[name]
    with tempfile.TemporaryDirectory(prefix="benchmark-shapes-") as work:
        folder = Path(work)
        source = case.make(folder)
        artifact = collage.tune(
            source,
            _TARGETS,
            output=folder / "ours.onnx",
            database=f"sqlite:///{folder / 'costs.db'}",
            inputs=case.samples(folder),
            dims={**case.fixed, case.free: case.range},
            pad_masks={case.free: case.mask} if case.mask else {},
            time_limit_s=time_limit_s,
        )
        free = normalize(source, folder / "free", case.fixed, 0, RUNTIME, [case.free]).path
        _ask(first := _start(name, "ours", artifact.path), [])  # it fills the cache
        _end(first)
        contenders = {"ours": _start(name, "ours", artifact.path)}
        for kind in _CONTENDERS:
            target = Target.parse(kind.partition("/")[0])
            if isinstance(resolve(target).probe(), Available):
                contenders[kind] = _start(name, kind, free)
        found = _run(contenders, case.sizes(requests))
        return {
            **found,
            "tuned_s": artifact.report["seconds"]["total"],
            "classes": artifact.report["shapes"]["classes"],
        }


def _start(case: str, kind: str, path: Path) -> subprocess.Popen[str]:
    words = [sys.executable, "-m", "benchmarks.shapes.worker", case, kind, str(path), str(path.parent)]
    return subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def _run(contenders: dict[str, subprocess.Popen[str]], sizes: list[int]) -> dict[str, Any]:
    total_s = dict.fromkeys(contenders, 0.0)
    peak_mib: dict[str, float] = {}
    failed: dict[str, str] = {}
    names = list(contenders)
    for name in names:
        _ask(contenders[name], [])  # it has started
    for number, begin in enumerate(range(0, len(sizes), _BLOCK)):
        turn = number % len(names)
        for name in names[turn:] + names[:turn]:
            if name in failed:
                continue
            answer = _ask(contenders[name], sizes[begin : begin + _BLOCK])
            if answer is None:
                failed[name] = f"ended after {begin} requests"
                continue
            total_s[name] += sum(answer["us"]) / 1e6
            peak_mib[name] = answer["peak_kib"] / 1024
    for process in contenders.values():
        _end(process)
    return {
        "total_s": {name: round(s, 4) for name, s in total_s.items() if name not in failed},
        "peak_mib": {name: round(mib, 1) for name, mib in peak_mib.items()},
        "failed": failed,
    }


def _end(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.close()
    process.wait()


def _ask(process: subprocess.Popen[str], sizes: list[int]) -> Any:
    """The answer of a worker; None where it has ended."""
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        process.stdin.write(json.dumps(sizes) + "\n")
        process.stdin.flush()
    except BrokenPipeError:
        return None
    line = process.stdout.readline()
    return json.loads(line) if line else None


def table(rows: dict[str, Any]) -> str:
    """The rows for people."""
    lines = [
        "| model | ours, s | "
        + " | ".join(_CONTENDERS)
        + " | best single over ours | memory over leanest used |"
    ]
    lines.append("|---" * (len(_CONTENDERS) + 4) + "|")
    gains = []
    for name, row in rows.items():
        total, peak = row["total_s"], row["peak_mib"]
        singles = [total[kind] for kind in _CONTENDERS if kind in total]
        gains.append(min(singles) / total["ours"])
        held = peak["ours"] / min(peak[kind] for kind in _used(row) if kind in total)
        cells = [f"{total[kind]:.2f}" if kind in total else "–" for kind in _CONTENDERS]
        lines.append(
            f"| {name} | {total['ours']:.2f} | {' | '.join(cells)} | {gains[-1]:.3f} | {held:.2f} |"
        )
    return "\n".join([*lines, f"geometric mean: {geomean(gains):.3f}"])


def _used(row: dict[str, Any]) -> list[str]:
    """The contenders that are one dynamic session of a runtime that our plan uses."""
    targets = [Target.parse(text) for one in row["classes"] for text in one["targets"]]
    return [f"{target.backend}/dynamic" for target in targets]


if __name__ == "__main__":
    main()
