"""No circle of modules."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LINKED = ("backends", "cost_db", "partitioner", "service")


def test_no_circle_of_modules() -> None:
    """Imports inside functions are left out; those for type checkers count."""
    circles = list(_circles(_graph(_modules())))
    assert not circles, "; ".join(" -> ".join(circle) for circle in circles)


def test_a_circle_is_found() -> None:
    graph = {"a": {"b"}, "b": {"c"}, "c": {"b", "d"}, "d": set()}
    assert list(_circles(graph)) == [["b", "c", "b"]]


def _modules() -> dict[str, Path]:
    """Every module of the package by its name; the linked folders are walked by their own paths."""
    found = {}
    for folder in ("collage", *LINKED):
        for path in (ROOT / folder).rglob("*.py"):
            relative = path.relative_to(ROOT)
            if folder == "collage" and relative.parts[1] in LINKED:
                continue
            name = ".".join(relative.with_suffix("").parts).removesuffix(".__init__")
            found[name if folder == "collage" else f"collage.{name}"] = path
    return found


def _graph(modules: Mapping[str, Path]) -> dict[str, set[str]]:
    """Per module the modules that it imports when it is loaded."""
    return {
        name: {
            other
            for other in _imported(ast.parse(path.read_text(encoding="utf-8")))
            if other in modules
        }
        - {name}
        for name, path in modules.items()
    }


def _imported(node: ast.AST) -> Iterator[str]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            yield from (alias.name for alias in child.names)
        elif isinstance(child, ast.ImportFrom) and child.module is not None:
            yield child.module
            yield from (f"{child.module}.{alias.name}" for alias in child.names)
        elif not isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            yield from _imported(child)


def _circles(graph: Mapping[str, set[str]]) -> Iterator[list[str]]:
    """A circle through each module that depth first search comes back to."""
    done: set[str] = set()
    for start in sorted(graph):
        way, waiting = [start], [iter(sorted(graph[start]))]
        while way:
            following = next((m for m in waiting[-1] if m not in done), None)
            if following is None:
                done.add(way.pop())
                waiting.pop()
            elif following in way:
                yield [*way[way.index(following) :], following]
            else:
                way.append(following)
                waiting.append(iter(sorted(graph[following])))
