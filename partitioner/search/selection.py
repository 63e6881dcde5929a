"""The nodes and the targets of a pin or a ban.

Text forms of nodes: an operator type (`Conv`, `com.microsoft::Gelu`), a node's name or a glob over
names (`/encoder/*`), or a region `value_a..value_b`: every node on a path from the one value to the
other. Either value may be left out.

Text forms of targets: a backend's name or glob, and options, each a name with a glob for its value:
`openvino -precision=bf16`, `* -device=cuda:*`.
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from fnmatch import fnmatchcase

from collage.partitioner.errors import BadInputError
from collage.partitioner.graph.graph_index import GraphIndex
from collage.partitioner.target import Target

_GLOB = re.compile(r"[*?\[]")
_BACKEND = re.compile(r"[a-z*?\[][a-z0-9_*?!\[\]-]*\Z")
_FORM = "write NODES=TARGET, for example 'Conv=openvino', '/encoder/*=mnn' or 'value_a..value_b=mnn'"


class ConstraintError(BadInputError):
    """A constraint is misspelled, fits nothing, or contradicts another one or what targets can take."""


@dataclass(frozen=True)
class TargetGlob:
    """Some targets: a glob for the backend and globs for options that must be there."""

    backend: str
    options: tuple[tuple[str, str], ...] = ()

    @classmethod
    def parse(cls, text: str) -> TargetGlob:
        """Read the text form.

        Raises:
            ConstraintError: it is empty or an option is misspelled.
        """
        words = text.split()
        if not words or not _BACKEND.match(words[0]):
            raise ConstraintError(f"target {text!r} does not start with a backend's name or glob")
        options = []
        for word in words[1:]:
            name, found, value = word.removeprefix("-").partition("=")
            if not word.startswith("-") or not found or not name or not value:
                raise ConstraintError(
                    f"target {text!r}: option {word!r} is not of the form -name=value"
                )
            options.append((name, value))
        return cls(words[0], tuple(options))

    def __contains__(self, target: object) -> bool:
        if not isinstance(target, Target) or not fnmatchcase(target.backend, self.backend):
            return False
        given = dict(target.options)
        return all(name in given and fnmatchcase(given[name], value) for name, value in self.options)

    def __str__(self) -> str:
        return " ".join([self.backend, *(f"-{name}={value}" for name, value in self.options)])


@dataclass(frozen=True)
class Selection:
    """Nodes by one of the text forms of the module's docstring."""

    text: str

    def resolve(self, index: GraphIndex) -> int:
        """The nodes (bitset).

        Raises:
            ConstraintError: there are none, or a value is not known; the nearest names are given.
        """
        by_name = {node.name: node.index for node in index.nodes}
        if self.text in by_name:
            return 1 << by_name[self.text]
        found = sum(1 << n.index for n in index.nodes if self.text in (n.op, n.op_type))
        if not found and ".." in self.text:
            return self._region(index)
        if not found and _GLOB.search(self.text):
            found = sum(1 << n.index for n in index.nodes if fnmatchcase(n.name, self.text))
        if not found:
            known = [*by_name, *{node.op for node in index.nodes}]
            raise ConstraintError(
                f"{self.text!r} is no operator type, node name, glob or region of this model{_near(self.text, known)}"
            )
        return found

    def _region(self, index: GraphIndex) -> int:
        start, _, end = self.text.partition("..")
        nodes = index.all_nodes
        for name in filter(None, (start, end)):
            if name not in index.values or name in index.constants:
                near = _near(name, [v for v in index.values if v not in index.constants])
                raise ConstraintError(f"region {self.text!r}: the model has no value {name!r}{near}")
        if start:
            readers = index.consumers.get(start, 0)
            nodes &= readers | index.descendants_of(readers)
        if end:
            made_by = index.producer.get(end)
            nodes &= 0 if made_by is None else index.ancestors[made_by] | 1 << made_by
        if not nodes or not (start or end):
            raise ConstraintError(
                f"region {self.text!r} is empty: no way leads from the one value to the other"
            )
        return nodes


@dataclass(frozen=True)
class Placement:
    """Some nodes and some targets: a pin (only there) or a ban (not there)."""

    selection: Selection
    target: TargetGlob

    @classmethod
    def parse(cls, text: str) -> Placement:
        """Read `NODES=TARGET`; the nodes end at the first `=` that a target follows, so their names may have more.

        Raises:
            ConstraintError: the text is misspelled.
        """
        faults = []
        for found in re.finditer("=", text):
            nodes, target = text[: found.start()].strip(), text[found.end() :].strip()
            if not nodes or not target:
                continue
            try:
                return cls(Selection(nodes), TargetGlob.parse(target))
            except ConstraintError as fault:
                faults.append(fault)
        raise faults[0] if faults else ConstraintError(f"{text!r} is not a pin or ban; {_FORM}")

    def __str__(self) -> str:
        return f"{self.selection.text}={self.target}"


def _near(name: str, known: list[str]) -> str:
    close = difflib.get_close_matches(name, known, n=3)
    return f"; did you mean {' or '.join(map(repr, close))}?" if close else ""
