"""The tests of ONNX's suite that do not pass over the executor, each with its reason.

    python -m tests.collage.runtime.onnx_suite_list --folder /tmp/outcomes [--way 'mnn first']

runs the whole suite (eight minutes on two cores) and writes the list; outcomes are kept in the folder, so
that a call goes on where the last one ended, and `--way` runs one way alone. It refuses to write a list
with a test that no reason fits. `test_onnx_suite` runs a third of the suite and compares it with the list,
both ways: what is not listed passes, and what is listed fails.

A test that fails where a runtime fails alone, too, is that runtime's. Those that every runtime concerned
passes alone are ours, and there are few reasons for them.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Mapping
from dataclasses import astuple
from importlib.metadata import version
from pathlib import Path
from typing import Any

from tests.collage.runtime.onnx_suite import ALONE, FIRST, Outcome, collect, outcomes

PATH = Path(__file__).with_name("onnx_suite.json")
PAGE = Path(__file__).parents[3] / "docs" / "onnx-suite.md"
_PACKAGES = ("onnx", "onnxruntime", "openvino", "MNN")
_MARKS = ("<!-- counts -->", "<!-- end of counts -->")

# Text of a message → reason. The first that fits counts.
_REASONS: tuple[tuple[str, str], ...] = (
    (
        r"is not a tensor|inhomogeneous shape|test_sequence_map.*free input dimensions",
        "sequences, maps and optionals cross no border: each node is a partition of its own here",
    ),
    (
        r"hand over to nobody",
        "no runtime hands over numbers of 2 or 4 bits, so ingest refuses them at a model's border",
    ),
    (r"cannot be converted from opset", "onnx's version converter cannot lower it to opset 26"),
    (
        r"Creation of OrtValues|Unsupported data type",
        "numbers of 2, 4 or 8 bits cannot be bound as buffers: the runtime's Python interface has no such type",
    ),
    (
        r"shape.compatible",
        "OpenVINO makes an output of another shape than ONNX says, which cannot be bound",
    ),
)

# Tests that were looked into one by one.
_ROUNDED = "float16 values are rounded at borders; a whole model keeps them in float32"
_SEEN: dict[str, str] = {
    "test_attention_4d_causal_fp16_expanded": _ROUNDED,
    "test_mish_expanded": (
        "OpenVINO's Softplus is 1 % off where it is nearly zero; as a part of its fused Mish it is not"
    ),
}


def listed() -> dict[str, Any]:
    """The list as it stands in the repository."""
    found: dict[str, Any] = json.loads(PATH.read_text(encoding="utf-8"))
    return found


def failing(way: str) -> set[str]:
    """The tests that are listed for a way."""
    return {t for group in listed()["groups"] for t, ways in group["tests"].items() if way in ways}


def reason(found: Outcome, alone: Mapping[str, Outcome]) -> str | None:
    """Why a test fails over the executor; None when nothing explains it.

    Args:
        found: over the executor.
        alone: by runtime, of the same test.
    """
    names = {target.split()[0] for target in found.targets}
    broken = sorted(name for name in names if alone[name].reason)
    if broken:
        return f"a node went to {' and '.join(broken)}, which does not pass it alone either"
    if all(outcome.reason for outcome in alone.values()):
        return "no runtime passes it alone"
    text = f"{found.test}: {found.reason}"
    for pattern, said in _REASONS:
        if re.search(pattern, text):
            return said
    return _SEEN.get(found.test)


def write(results: Mapping[str, Mapping[str, Outcome]]) -> list[str]:
    """Write the list and its table; returns what no reason fits, and writes nothing if there is any."""
    groups: dict[str, dict[str, list[str]]] = {}
    unexplained = []
    for way in FIRST:
        for test, found in sorted(results[way].items()):
            if not found.reason:
                continue
            said = reason(found, {name: results[name][test] for name in ALONE})
            if said is None:
                unexplained.append(f"{test} ({way}; {', '.join(found.targets)}): {found.reason}")
            groups.setdefault(said or "", {}).setdefault(test, []).append(way)
    if unexplained:
        return unexplained
    ordered = sorted(groups.items(), key=lambda group: (-len(group[1]), group[0]))
    content = {
        "versions": {name: version(name) for name in _PACKAGES},
        "tests": len(results[FIRST[0]]),
        "passed": {way: sum(not v.reason for v in results[way].values()) for way in (*FIRST, *ALONE)},
        "groups": [{"reason": said, "tests": tests} for said, tests in ordered],
    }
    PATH.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    text = PAGE.read_text(encoding="utf-8")
    begin, end = (text.index(mark) for mark in _MARKS)
    PAGE.write_text(
        text[: begin + len(_MARKS[0])] + "\n" + table(content) + text[end:], encoding="utf-8"
    )
    return []


def table(content: Mapping[str, Any]) -> str:
    """The counts as Markdown tables."""
    lines = ["| way | passed |", "|---|---|"]
    lines += [f"| {way} | {count} of {content['tests']} |" for way, count in content["passed"].items()]
    lines += ["", "| why a test does not pass | tests |", "|---|---|"]
    lines += [f"| {group['reason']} | {len(group['tests'])} |" for group in content["groups"]]
    return "\n".join([*lines, ""])


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True, help="where outcomes are kept")
    parser.add_argument("--way", choices=(*FIRST, *ALONE), help="run this way only, and write no list")
    chosen = parser.parse_args()
    chosen.folder.mkdir(parents=True, exist_ok=True)
    cases = list(collect().values())
    results = {}
    for way in [chosen.way] if chosen.way else (*FIRST, *ALONE):
        kept = chosen.folder / f"{way.replace(' ', '-')}.json"
        if not kept.exists():
            found = outcomes(way, cases)
            kept.write_text(
                json.dumps([astuple(outcome) for outcome in found.values()]), encoding="utf-8"
            )
        rows = [
            Outcome(test, said, tuple(targets), crashed)
            for test, said, targets, crashed in json.loads(kept.read_text(encoding="utf-8"))
        ]
        results[way] = {row.test: row for row in rows}
        print(f"{way}: {sum(not row.reason for row in rows)} of {len(rows)} pass", flush=True)
        for row in rows:
            if row.crashed:
                print(f"  {row.test}: {row.crashed}", flush=True)
    if chosen.way is None:
        unexplained = write(results)
        if unexplained:
            raise SystemExit("no reason fits:\n" + "\n".join(unexplained))


if __name__ == "__main__":
    main()
