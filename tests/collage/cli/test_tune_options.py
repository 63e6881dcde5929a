"""The options of `collage tune` are the fields of `TuneOptions`, in the help, over HTTP and in the docs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
import pytest
import typer

from collage.cli.app import app
from collage.cli.tune_options import flags, milliseconds
from collage.options import TuneOptions
from collage.partitioner.errors import BadInputError
from collage.service.app import create_app
from collage.service.settings import Settings

DOCS = Path(__file__).resolve().parents[3] / "docs"
# What scripts of users call.
FLAGS = {
    "--target", "--output", "--report", "--picture", "--inputs", "--tolerance", "--metric", "--pareto", "--dim",
    "--time-limit", "--threads", "--seed", "--strategy", "--pin", "--ban", "--max-partitions", "--max-devices",
    "--min-partition-nodes", "--plan", "--fresh", "--wait-for-worker", "--evaluate", "--at-least", "--at-most",
    "--server", "--token", "--scheduler", "--certificates", "--database", "--verbose", "--wait-for-quiet",
    "--objective", "--p99", "--max-latency",
}  # fmt: skip


@pytest.fixture(scope="module")
def command() -> click.Command:
    group: Any = typer.main.get_command(app)
    return group.commands["tune"]  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def options(command: click.Command) -> dict[str, click.Option]:
    return {p.opts[-1]: p for p in command.params if hasattr(p, "help") and p.opts[-1].startswith("-")}  # type: ignore[misc]


def test_flags_are_those_of_before(options: Mapping[str, click.Option]) -> None:
    assert options.keys() == FLAGS
    assert options["--target"].opts == ["-t", "--target"]
    assert options["--output"].opts == ["-o", "--output"]


@pytest.mark.parametrize("name", flags())
def test_field_gives_help_and_default(name: str, options: Mapping[str, click.Option]) -> None:
    field, option = TuneOptions.model_fields[name], options[flags()[name]]
    assert option.help == field.description
    assert option.default == (field.default or None) or option.default == field.default
    assert not option.secondary_opts


def test_every_field_has_a_description_and_all_but_one_a_flag() -> None:
    assert all(field.description for field in TuneOptions.model_fields.values())
    assert TuneOptions.model_fields.keys() - flags().keys() == {"plans"}


def test_only_what_is_given_is_passed(command: click.Command, monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, Any] = {}

    def record(model: Path, targets: list[str], **options: Any) -> None:
        given.update(options)
        raise typer.Exit

    monkeypatch.setattr("collage.api.tune", record)
    words = [
        "model.onnx",
        "-t",
        "mnn",
        "--dim",
        "x:0=2",
        "--pin",
        "Conv=mnn",
        "--time-limit",
        "7",
        "--pareto",
    ]
    command.main(words, standalone_mode=False)
    fields = {name: value for name, value in given.items() if name in TuneOptions.model_fields}
    assert fields == {"dims": {"x:0": 2}, "pins": ("Conv=mnn",), "time_limit_s": 7.0, "pareto": True}
    assert TuneOptions.from_json(fields).tolerance == 1e-3


@pytest.mark.parametrize(
    ("text", "ms"), [("20ms", 20.0), ("0.5s", 500.0), ("7", 7.0), ("1.5", 1.5), (" 3 ".strip(), 3.0)]
)
def test_a_time_is_given_with_its_unit_or_in_milliseconds(text: str, ms: float) -> None:
    assert milliseconds("--p99", text) == ms


@pytest.mark.parametrize("text", ["", "fast", "-3ms", "20 minutes", "nan", "1e3ms"])
def test_what_is_no_time_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(BadInputError, match="write 20ms"):
        milliseconds("--p99", text)


def test_docs_table_has_every_flag_and_no_other(options: Mapping[str, click.Option]) -> None:
    text = (DOCS / "tune.md").read_text(encoding="utf-8")
    first_cells = [line.split("|")[1] for line in text.splitlines() if re.match(r"\| ?`-", line)]
    told = re.findall(r"`(--?[a-z][a-z0-9-]*)", " ".join(first_cells))
    known = {word for option in options.values() for word in option.opts}
    assert set(told) <= known
    assert set(flags().values()) <= set(told)


def test_http_shows_every_description() -> None:
    schema = create_app(Settings()).openapi()["components"]["schemas"]["TuneOptions"]
    described = {name: entry["description"] for name, entry in schema["properties"].items()}
    assert described == {name: field.description for name, field in TuneOptions.model_fields.items()}
