"""Command lines in the README and in docs/: each is read by the real parser, and the usual ones are run."""

from __future__ import annotations

import argparse
import importlib
import re
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import typer

from collage.cli.app import app

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
_COLLAGE = re.compile(r"^(?:    )?(collage [a-z].*)$", re.MULTILINE)
_MENTIONED = re.compile(r"`(collage [a-z][^`]*)`")
_MODULE = re.compile(r"^    (python -m .*)$", re.MULTILINE)


def _lines(pattern: re.Pattern[str], page: Path) -> list[list[str]]:
    text = re.sub(r"\\\n\s*", "", page.read_text(encoding="utf-8"))
    return [shlex.split(line.replace("\n", " "), comments=True) for line in pattern.findall(text)]


def _examples(pattern: re.Pattern[str]) -> list[Any]:
    return [
        pytest.param(words[1:], id=f"{page.stem}: {' '.join(words)}")
        for page in PAGES
        for words in _lines(pattern, page)
    ]


def _parse(words: list[str]) -> str:
    """Read a command line as the program does, and name the command; nothing is run."""
    command: Any = typer.main.get_command(app)
    context = command.make_context("collage", words)
    while hasattr(command, "resolve_command"):
        rest = [*context._protected_args, *context.args]
        if not rest:
            break
        name, command, rest = command.resolve_command(context, rest)
        context = command.make_context(name, rest, parent=context)
    return str(context.info_name)


@pytest.mark.parametrize("words", _examples(_COLLAGE))
def test_the_program_takes_every_command_line(words: list[str]) -> None:
    assert _parse(words) in words


@pytest.mark.parametrize("words", _examples(_MENTIONED))
def test_commands_and_options_that_are_mentioned_exist(words: list[str]) -> None:
    command: Any = typer.main.get_command(app)
    for word in words:
        if word.startswith("-"):
            assert any(word.split("=")[0] in option.opts for option in command.params), word
        elif hasattr(command, "commands"):
            command = command.commands[word]


def test_a_command_line_that_the_program_does_not_take_is_found() -> None:
    with pytest.raises(Exception, match="No such option"):
        _parse(["tune", "model.onnx", "--nonsense"])
    with pytest.raises(Exception, match="No such command"):
        _parse(["tunes", "model.onnx"])


class _ParsedError(Exception):
    """Raised in place of what a script does once it has its arguments."""


@pytest.mark.parametrize("words", _examples(_MODULE))
def test_every_script_takes_its_command_line(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    _, name, *arguments = words
    module = importlib.import_module(name)
    if hasattr(module, "__path__"):
        module = importlib.import_module(f"{name}.__main__")
    real = argparse.ArgumentParser.parse_args

    def parse(parser: argparse.ArgumentParser, given: Any = None, space: Any = None) -> Any:
        real(parser, given, space)
        raise _ParsedError

    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", parse)
    monkeypatch.setattr("sys.argv", [name, *arguments])
    with pytest.raises(_ParsedError):
        module.main()


def _blocks(page: str, *commands: str) -> list[list[str]]:
    """The examples of a page that begin with one of some commands."""
    return [words for words in _lines(_COLLAGE, ROOT / page) if words[1] in commands and words[2:]]


@pytest.mark.slow
def test_the_usual_ones_run_one_after_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """README, then running, exporting and applying a plan, in the order of the pages."""
    text = """<ir_version: 10, opset_import: ["" : 21]>
        g (float[batch, 64] x) => (float[batch, 64] y) { a = Relu(x)  b = Tanh(a)  y = Abs(b) }"""
    onnx.save(onnx.parser.parse_model(text), tmp_path / "model.onnx")
    np.savez(tmp_path / "x.npz", x=np.ones((1, 64), np.float32))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLLAGE_DATABASE_URL", f"sqlite:///{tmp_path / 'costs.db'}")
    readme = [["collage", "targets"], *_blocks("README.md", "tune", "run", "bench", "explain")]
    told = [
        w for w in _blocks("docs/run.md", "run", "explain", "export", "tune") if w[2] != "again.onnx"
    ]
    assert len(readme) >= 5 and len(told) >= 6
    for words in [*readme, *told]:
        # The plan names the dimensions' sizes, and the model has them free.
        sizes = ["--dim", "batch=1"] if words[1] == "tune" and "--dim" not in words else []
        limit = ["--time-limit", "3"] if words[1] == "tune" else []
        app([*words[1:], *sizes, *limit], standalone_mode=False)
    for made in ("plan.svg", "y.npz", "plan.json", "again.onnx", "outlined.onnx", "layers.onnx"):
        assert (tmp_path / made).stat().st_size > 0
