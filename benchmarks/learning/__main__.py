"""Leave one model out: how long a tuning takes with a database that has seen the others.

    python -m benchmarks.learning --models light_squeezenet light_shufflenet …

Each model is tuned from an empty database (cold), which is kept. Then each is tuned with a database that has
seen all the other models (warm), and both plans are timed in turn in fresh processes. Printed are the seconds
of both tunings, and whether the warm plan is within 1 % of the cold one.

What the results file has is not measured again. A file of other targets, another limit or another machine is
refused.
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path
from typing import Any

from benchmarks.learning.one import beside, merged, tuned
from benchmarks.support.models import default_cache, name_or_file
from benchmarks.support.results import geomean, here, measured_before, write_table

MODELS = (
    *("light_squeezenet", "light_shufflenet", "light_inception_v1", "light_inception_v2"),
    *("light_resnet50", "light_densenet121", "mobilenet_v2", "dcgan"),
    *("ppocr_cls", "ppocr_rec", "ppocr_det", "vit_small"),
)
# A warm plan at least so many times as fast as the cold one is as good.
_AS_GOOD = 0.99
_HEAD = (
    "| model | cold s | warm s | warm / cold | plan found at, cold and warm | cold / warm plan "
    "| targets left out | ended early |\n|---|--:|--:|--:|---|---|---|---|\n"
)


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--models", nargs="+", type=name_or_file, default=list(MODELS))
    parser.add_argument(
        "--only", nargs="+", default=None, help="tune only these with what the others left"
    )
    parser.add_argument("--targets", nargs="+", default=["onnxruntime", "openvino", "mnn", "ncnn"])
    parser.add_argument("--time-limit", type=float, default=None)
    parser.add_argument("--folder", type=Path, default=default_cache() / "learning")
    parser.add_argument("--output", type=Path, default=Path("benchmarks/results/learning.json"))
    parser.add_argument("--show", type=Path, default=None, help="write the table between its marks")
    chosen = parser.parse_args()
    settings = {"targets": chosen.targets, "time_limit_s": chosen.time_limit, "hardware": here()}
    rows: dict[str, dict[str, Any]] = dict(measured_before(chosen.output, settings))
    chosen.folder.mkdir(parents=True, exist_ok=True)

    def keep(name: str, kind: str, found: dict[str, Any]) -> None:
        rows.setdefault(name, {})[kind] = found
        chosen.output.parent.mkdir(parents=True, exist_ok=True)
        chosen.output.write_text(
            json.dumps(settings | {"rows": rows}, indent=2) + "\n", encoding="utf-8"
        )
        print(name, kind, json.dumps(found), flush=True)

    def file(name: str, kind: str) -> Path:
        folder: Path = chosen.folder
        return folder / f"{Path(name.split(':')[0]).stem}.{kind}"

    models = list(dict.fromkeys(chosen.models))
    for name in models:
        if "cold" not in rows.get(name, {}) or not file(name, "cold.db").exists():
            file(name, "cold.db").unlink(missing_ok=True)
            found = tuned(
                name, chosen.targets, file(name, "cold.db"), file(name, "cold.onnx"), chosen.time_limit
            )
            keep(name, "cold", found)
    for name in chosen.only or models:
        if "warm" in rows.get(name, {}):
            continue
        merged([file(other, "cold.db") for other in models if other != name], file(name, "warm.db"))
        found = tuned(
            name, chosen.targets, file(name, "warm.db"), file(name, "warm.onnx"), chosen.time_limit
        )
        keep(name, "warm", found | beside(file(name, "warm.onnx"), file(name, "cold.onnx")))
    table = _table(rows)
    print(table)
    if chosen.show is not None:
        write_table(chosen.show, "learning", table)


def _table(rows: dict[str, dict[str, Any]]) -> str:
    done = {name: row for name, row in rows.items() if "warm" in row}
    lines = [_line(name, row["cold"], row["warm"]) for name, row in done.items()]
    shares = [_share(row) for row in done.values()]
    if shares:
        good = sum(_is_as_good(row["warm"]) for row in done.values())
        lines.append(
            f"| **{len(shares)} models** | | | **{statistics.median(shares):.0%} median, "
            f"{geomean(shares):.0%} geomean** | | {good} within 1 % | | |\n"
        )
    return _HEAD + "".join(lines)


def _share(row: dict[str, Any]) -> float:
    """Warm seconds over cold ones; all of the cold ones where the plan is not as good."""
    share = float(row["warm"]["seconds"] / row["cold"]["seconds"])
    return share if _is_as_good(row["warm"]) else max(1.0, share)


def _is_as_good(warm: dict[str, Any]) -> bool:
    return bool(warm["same_plan"] or (warm["ratio"] or 0.0) >= _AS_GOOD)


def _line(name: str, cold: dict[str, Any], warm: dict[str, Any]) -> str:
    share = warm["seconds"] / cold["seconds"]
    found = " and ".join("–" if s is None else f"{s:.0f} s" for s in (cold["found_s"], warm["found_s"]))
    low, high = warm["interval"] or (1.0, 1.0)
    ratio = "the same" if warm["same_plan"] else f"{warm['ratio']:.3f} [{low:.3f}, {high:.3f}]"
    left_out = ", ".join(warm["left_out"]) or "–"
    return (
        f"| {name} | {cold['seconds']:.0f} | {warm['seconds']:.0f} | {share:.0%} | {found} | {ratio} "
        f"| {left_out} | {'yes' if warm['ended_early'] else 'no'} |\n"
    )


if __name__ == "__main__":
    main()
