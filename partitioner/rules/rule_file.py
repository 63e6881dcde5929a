"""Rules as data: the rules of `collage.partitioner.rules.rules` in YAML or JSON, for a target's `-rules=FILE`.

A rule is a mapping with one key, which says which rule it is (docs/rules.md shows them all)::

    version: 1
    rule:
      union:
        - pattern: {name: conv_relu, nodes: ["c = Conv(x, ...)", "y = Relu(c)"]}
        - ops: {names: [Conv, MaxPool], where: {dtypes: [float32]}}

Invariant: a target with a rule file is offered only what the file proposes, without nodes that it
refuses.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

import jsonschema

from collage.partitioner.errors import BadInputError
from collage.partitioner.graph.op_kind import OpKind, is_listed, operators
from collage.partitioner.graph.sub_graph import Limits
from collage.partitioner.rules.combiners import (
    ByKind,
    Combiner,
    ConstantInputs,
    JoinAnything,
    MultiOutputs,
    VariadicInputs,
)
from collage.partitioner.rules.node_condition import NodeCondition
from collage.partitioner.rules.pattern import Pattern
from collage.partitioner.rules.pattern_text import LineError, parse_pattern
from collage.partitioner.rules.proposal import Rule
from collage.partitioner.rules.regions import RegionRule
from collage.partitioner.rules.rules import (
    FUSE_OPS,
    CombineRule,
    CompositeRule,
    HostRule,
    OnlyValidRule,
    OpKindRule,
    OpPredicateRule,
    PatternRule,
    PrimitiveRule,
    UnionRule,
)
from collage.partitioner.rules.yaml_lines import Key, Located, read_located

_COMBINERS: Mapping[str, tuple[Combiner, ...]] = {
    "anything": (JoinAnything(),),
    "variadic_inputs": (VariadicInputs(),),
    "multi_outputs": (MultiOutputs(),),
    "constant_inputs": (ConstantInputs(),),
    "fuse_ops": FUSE_OPS,
}


def load_rule(path: Path) -> Rule:
    """Read a rule file.

    Raises:
        BadInputError: the file cannot be read.
        FileError: it does not fit the schema, or a pattern is misspelled; it names file, line and key.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadInputError(f"rule file {path} cannot be read: {error}") from error
    return parse_rule(text, path.name)


def parse_rule(text: str, file: str = "rules") -> Rule:
    """Read rules from text; `file` names it in messages. Raises as `load_rule` does."""
    located = read_located(file, text)
    errors = jsonschema.Draft202012Validator(_schema()).iter_errors(located.data)
    error = jsonschema.exceptions.best_match(errors)
    if error is not None:
        located.fail(error.absolute_path, error.message)
    data: Any = located.data
    return _rule(located, ("rule",), data["rule"])


def _rule(at: Located, key: Key, data: Any) -> Rule:
    ((which, value),) = data.items()
    key = (*key, which)
    match which:
        case "pattern":
            return PatternRule(_pattern(at, key, value), each_supported=True)
        case "ops":
            for i, name in enumerate(value["names"]):
                _check_operator(at, (*key, "names", i), name)
            return OpPredicateRule(tuple(value["names"]), _where(value), value.get("name", ""))
        case "kinds":
            return OpKindRule(OpKind[value["max"].upper()], value.get("name", ""))
        case "host":
            return HostRule(**value)
        case "regions":
            return RegionRule(**value)
        case "composite":
            return CompositeRule(value["name"], _inner(at, key, value))
        case "primitive":
            return PrimitiveRule(value["name"], _inner(at, key, value))
        case "union":
            return UnionRule(tuple(_rule(at, (*key, i), rule) for i, rule in enumerate(value)))
        case "combine":
            combiners = tuple(combiner for name in value["with"] for combiner in _combiners(name))
            options = {k: v for k, v in value.items() if k not in ("rule", "with")}
            return CombineRule(_inner(at, key, value), combiners, **options)
        case "only_valid":
            limits = {k: v for k, v in value.items() if k not in ("rule", "name")}
            return OnlyValidRule(Limits(**limits), _inner(at, key, value), value.get("name", ""))
        case _:  # the schema lets no other through
            at.fail(key, f"there is no rule {which!r}")


def _inner(at: Located, key: Key, value: Any) -> Rule:
    return _rule(at, (*key, "rule"), value["rule"])


def _combiners(name: str) -> tuple[Combiner, ...]:
    if name in _COMBINERS:
        return _COMBINERS[name]
    upstream, downstream = name.split("->")
    return (ByKind(OpKind[upstream.upper()], OpKind[downstream.upper()]),)


def _pattern(at: Located, key: Key, value: Any) -> Pattern:
    try:
        written = parse_pattern(value["nodes"], _where(value))
    except LineError as error:
        at.fail((*key, "nodes", error.number), str(error))
    for i, node in enumerate(written.nodes):
        _check_operator(at, (*key, "nodes", i), node.op)
    return written.pattern(value["name"])


def _where(value: Any) -> NodeCondition:
    return NodeCondition.of(value.get("where", {}))


def _check_operator(at: Located, key: Key, name: str) -> None:
    """Operators of ai.onnx must exist; other domains are open, and globs may match nothing."""
    if "::" in name or "*" in name or "?" in name or is_listed("", name):
        return
    close = difflib.get_close_matches(name, operators(""), n=1)
    hint = f"; did you mean {close[0]}?" if close else ""
    at.fail(key, f"ai.onnx has no operator {name!r}{hint} (others are written domain::Name)")


@cache
def _schema() -> Mapping[str, Any]:
    text = (
        resources.files("collage.partitioner.rules")
        .joinpath("rule_file.schema.json")
        .read_text(encoding="utf-8")
    )
    schema: Mapping[str, Any] = json.loads(text)
    return schema
