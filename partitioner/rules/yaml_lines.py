"""YAML or JSON as plain data that remembers its lines.

Anchors, aliases, tags and repeated keys are errors: a small file could expand to a huge one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

import yaml

from collage.partitioner.errors import BadInputError

Key = tuple[str | int, ...]

_MAX_CHARACTERS = 1_000_000
_MAX_DEPTH = 100


class FileError(BadInputError):
    """A configuration file is wrong: file, line and key say where.

    Args:
        file: its name.
        line: counted from 1.
        key: the way to the wrong value, e.g. `rule.union[1].pattern`.
        reason: what is wrong and what would be right.
    """

    def __init__(self, file: str, line: int, key: str, reason: str) -> None:
        at = f", {key}" if key else ""
        super().__init__(f"{file}, line {line}{at}: {reason}")
        self.file, self.line, self.key, self.reason = file, line, key, reason


@dataclass(frozen=True)
class Located:
    """Plain data, and the line of each value in it."""

    file: str
    data: object
    lines: Mapping[Key, int]

    def fail(self, key: Iterable[str | int], reason: str) -> NoReturn:
        """Raise a `FileError` for the value at a key."""
        key = tuple(key)
        line = next((self.lines[key[:n]] for n in range(len(key), -1, -1) if key[:n] in self.lines), 1)
        text = "".join(f"[{k}]" if isinstance(k, int) else f".{k}" for k in key).lstrip(".")
        raise FileError(self.file, line, text, reason)


def read_located(file: str, text: str) -> Located:
    """Read YAML or JSON.

    Raises:
        FileError: it cannot be read, uses anchors or tags, or has a key twice.
    """
    if len(text) > _MAX_CHARACTERS:
        raise FileError(file, 1, "", f"the file has more than {_MAX_CHARACTERS} characters")
    lines: dict[Key, int] = {}
    try:
        depth = 0
        for event in yaml.parse(text, yaml.SafeLoader):
            depth += isinstance(event, yaml.CollectionStartEvent)
            depth -= isinstance(event, yaml.CollectionEndEvent)
            if depth > _MAX_DEPTH:
                raise FileError(file, _line(event.start_mark), "", "it is nested too deeply")
            if isinstance(event, yaml.AliasEvent):
                raise FileError(
                    file,
                    _line(event.start_mark),
                    "",
                    f"alias *{event.anchor}: write the value out instead",
                )
        root = yaml.compose(text, yaml.SafeLoader)
        if root is None:
            raise FileError(file, 1, "", "the file is empty")
        return Located(file, _plain(file, root, (), lines), lines)
    except yaml.MarkedYAMLError as error:
        raise FileError(
            file, _line(error.problem_mark), "", f"not YAML or JSON: {error.problem}"
        ) from error
    except yaml.YAMLError as error:
        raise FileError(file, 1, "", f"not YAML or JSON: {error}") from error


def _plain(file: str, node: yaml.Node, key: Key, lines: dict[Key, int]) -> object:
    lines[key] = _line(node.start_mark)
    if isinstance(node, yaml.SequenceNode):
        return [_plain(file, item, (*key, i), lines) for i, item in enumerate(node.value)]
    if isinstance(node, yaml.MappingNode):
        found: dict[str, object] = {}
        for name_node, value in node.value:
            name, line = str(name_node.value), _line(name_node.start_mark)
            if name in found:
                raise FileError(file, line, name, "the key stands twice")
            found[name] = _plain(file, value, (*key, name), lines)
            # A block under a key begins on the line after it: the key's own line is clearer.
            lines[*key, name] = line
        return found
    if not node.tag.startswith("tag:yaml.org,2002:"):
        raise FileError(file, lines[key], "", f"tag {node.tag} is not taken")
    scalar: object = yaml.constructor.SafeConstructor().construct_object(node)
    return scalar


def _line(mark: Any) -> int:
    return mark.line + 1 if mark else 1
