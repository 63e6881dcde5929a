"""Results of a watch for other tools: JUnit XML and Markdown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from xml.etree import ElementTree

from collage.watch.verdicts import REGRESSIONS


def junit(results: Sequence[Mapping[str, Any]]) -> str:
    """One test case for each artifact and environment; a regression is a failure."""
    failures = [r for r in results if r["verdict"] in REGRESSIONS]
    suite = ElementTree.Element(
        "testsuite", name="collage watch", tests=str(len(results)), failures=str(len(failures))
    )
    for result in results:
        case = ElementTree.SubElement(
            suite, "testcase", name=_plain(result["name"]), classname=_plain(result["environment"])
        )
        if result["verdict"] in REGRESSIONS:
            failure = ElementTree.SubElement(
                case, "failure", type=result["verdict"], message=_plain(_said(result))
            )
            failure.text = _plain("\n".join(_block_said(block) for block in result["blocks"]))
        else:
            ElementTree.SubElement(case, "system-out").text = _plain(_said(result))
    ElementTree.indent(suite)
    return (
        f'<?xml version="1.0" encoding="utf-8"?>\n{ElementTree.tostring(suite, encoding="unicode")}\n'
    )


def markdown(results: Sequence[Mapping[str, Any]]) -> str:
    """A table of all results, and the blocks that changed."""
    lines = [
        "| artifact | environment | verdict | ratio | why |",
        "|---|---|---|---|---|",
        *(
            f"| {_cell(r['name'])} | {_cell(r['environment'])} | {r['verdict']} | {ratio_text(r)} | {_cell(r['reason'])} |"
            for r in results
        ),
    ]
    for result in results:
        if result["blocks"]:
            lines += ["", f"{result['name']}:", ""]
            lines += [f"- {_block_said(block)}" for block in result["blocks"]]
    return "\n".join([*lines, ""])


def ratio_text(result: Mapping[str, Any]) -> str:
    """`1.104 [1.080, 1.129]`; empty where it was not timed."""
    if result["ratio"] is None:
        return ""
    low, high = result["interval"]
    return f"{result['ratio']:.3f} [{low:.3f}, {high:.3f}]"


def _said(result: Mapping[str, Any]) -> str:
    return " ".join(filter(None, [f"{result['verdict']}:", ratio_text(result), result["reason"]]))


def _block_said(block: Mapping[str, Any]) -> str:
    low, high = block["interval"]
    names = block["nodes"]
    where = names[0] if len(names) == 1 else f"{names[0]} … {names[-1]}"
    return (
        f"{block['operators']} ({where}) on {block['target']}: {block['ratio']:.3f} [{low:.3f}, {high:.3f}] "
        "times as long"
    )


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def _plain(text: str) -> str:
    """Text that XML can hold."""
    return "".join(c if c in "\t\n" or ord(c) >= 32 else "?" for c in text)
