"""Patterns written as text, a line per node.

A line is `outputs = Operator(inputs) {attribute: value}`. `_` is any value, a last `...` any further
inputs (without it there are none), and attributes not mentioned may have any value. Values that are
made and not read again are the pattern's outputs::

    c = Conv(x, w, ...) {group: 1}
    y = com.example::Clip6(c)
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from collage.partitioner.graph.graph_index import GraphIndex
from collage.partitioner.rules.node_condition import NodeCondition, attribute_texts
from collage.partitioner.rules.pattern import Pattern

_LINE = re.compile(
    r"\s*(?P<outputs>\w+(?:\s*,\s*\w+)*)\s*=\s*(?:(?P<domain>[\w.]+)::)?(?P<op>\w+)"
    r"\s*\((?P<inputs>[^()]*)\)\s*(?P<attributes>\{.*\})?\s*\Z"
)
_NAME = re.compile(r"\w+\Z")


class LineError(ValueError):
    """The line `number` (from 0) of a pattern is misspelled."""

    def __init__(self, number: int, reason: str) -> None:
        super().__init__(reason)
        self.number = number


@dataclass(frozen=True)
class NodeLine:
    """One node of a written pattern; `more_inputs` stands for the last `...`."""

    domain: str
    op_type: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    more_inputs: bool
    condition: NodeCondition

    @property
    def op(self) -> str:
        """`Conv`, or `com.example::Gelu` outside ai.onnx."""
        return f"{self.domain}::{self.op_type}" if self.domain else self.op_type


@dataclass(frozen=True)
class WrittenPattern:
    """A pattern function (see `Pattern.build`) with conditions."""

    nodes: tuple[NodeLine, ...]  # its lines
    where: NodeCondition  # what every node must be like

    def pattern(self, name: str) -> Pattern:
        """As a named pattern."""
        conditions = tuple(node.condition for node in self.nodes)
        return Pattern(name, self, ConditionCheck(conditions, self.where))

    @property
    def variables(self) -> tuple[str, ...]:
        """Values that are read and not made."""
        made = {name for node in self.nodes for name in node.outputs}
        read = (name for node in self.nodes for name in node.inputs)
        return tuple(dict.fromkeys(name for name in read if name not in made))

    @property
    def __signature__(self) -> inspect.Signature:
        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        return inspect.Signature([inspect.Parameter(n, kind) for n in ("op", *self.variables)])

    def __call__(self, op: Any, *given: Any) -> Any:
        values = dict(zip(self.variables, given, strict=True))
        for node in self.nodes:
            made = getattr(op, node.op_type)(
                *(values[name] for name in node.inputs),
                _domain=node.domain,
                _outputs=list(node.outputs),
                _allow_other_inputs=node.more_inputs,
            )
            several = len(node.outputs) > 1
            values |= dict(zip(node.outputs, made if several else (made,), strict=True))
        read = {name for node in self.nodes for name in node.inputs}
        results = [values[n] for node in self.nodes for n in node.outputs if n not in read]
        return results[0] if len(results) == 1 else results


@dataclass(frozen=True)
class ConditionCheck:
    """The check of a written pattern: a condition per node in order, and one for all."""

    conditions: tuple[NodeCondition, ...]
    where: NodeCondition

    def __call__(self, index: GraphIndex, members: tuple[int, ...]) -> str | None:
        for condition, i in zip(self.conditions, members, strict=True):
            reason = condition(index, i) or self.where(index, i)
            if reason is not None:
                return f"{index.nodes[i].name}: {reason}"
        return None


def parse_pattern(lines: Sequence[str], where: NodeCondition | None = None) -> WrittenPattern:
    """Read a pattern.

    Raises:
        LineError: a line is not of the form above, or makes a value that was made or read before.
    """
    nodes: list[NodeLine] = []
    named: set[str] = set()
    for number, text in enumerate(lines):
        node = _line(number, text)
        for name in node.outputs:
            if name in named or name in node.inputs or name == "_":
                raise LineError(number, f"{name!r} is made twice, or read before it is made")
            named.add(name)
        named |= set(node.inputs)
        nodes.append(node)
    return WrittenPattern(tuple(nodes), where or NodeCondition())


def _line(number: int, text: str) -> NodeLine:
    match = _LINE.match(text)
    if match is None:
        raise LineError(
            number, f"{text!r} is not of the form 'y = Operator(x, ...) {{attribute: value}}'"
        )
    inputs = [word.strip() for word in match["inputs"].split(",")] if match["inputs"].strip() else []
    more = inputs[-1:] == ["..."]
    inputs = inputs[:-1] if more else inputs
    for word in inputs:
        if not _NAME.match(word):
            raise LineError(number, f"{word!r} is not a name, '_', or a last '...'")
    domain = match["domain"] or ""
    return NodeLine(
        domain="" if domain == "ai.onnx" else domain,
        op_type=match["op"],
        inputs=tuple(f"_{number}_{i}" if word == "_" else word for i, word in enumerate(inputs)),
        outputs=tuple(word.strip() for word in match["outputs"].split(",")),
        more_inputs=more,
        condition=NodeCondition(_attributes(number, match["attributes"] or "{}")),
    )


def _attributes(number: int, text: str) -> tuple[tuple[str, str], ...]:
    try:
        return attribute_texts(yaml.safe_load(text))
    except (yaml.YAMLError, TypeError):
        raise LineError(number, f"{text} does not list attributes as {{name: value, …}}") from None
