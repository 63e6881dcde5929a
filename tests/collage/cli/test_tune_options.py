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
from collage.cli.tune_options import flags, masks, mebibytes, milliseconds, sizes
from collage.options import TuneOptions
from collage.partitioner.errors import BadInputError
from collage.service.app import create_app
from collage.service.settings import Settings

DOCS = Path(__file__).resolve().parents[3] / "docs"
# What scripts of users call.
FLAGS = {
    "--target", "--output", "--report", "--picture", "--inputs", "--tolerance", "--metric", "--pareto", "--dim",
    "--shapes", "--time-limit", "--threads", "--seed", "--strategy", "--pin", "--ban", "--max-partitions", "--max-devices",
    "--min-partition-nodes", "--plan", "--fresh", "--wait-for-worker", "--evaluate", "--at-least", "--at-most",
    "--max-drop", "--labels",
    "--server", "--token", "--scheduler", "--certificates", "--database", "--verbose", "--wait-for-quiet",
    "--objective", "--p99", "--max-latency", "--memory-limit", "--pad-mask",
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
    ("texts", "dims"),
    [
        (["batch=1", "length=1..512"], {"batch": 1, "length": "1..512"}),
        (["x:0=16:0.5,64:0.5", "batch=1", "batch=1"], {"x:0": "16:0.5,64:0.5", "batch": 1}),
    ],
)
def test_dimensions_are_read_as_they_are_written(texts: list[str], dims: dict[str, Any]) -> None:
    assert sizes(texts) == dims


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["batch"], "--dim 'batch' is not of the form name=value"),
        (["=1"], "--dim '=1' is not of the form name=value"),
        (["batch=x"], "dimension batch: 'x' is no size"),
        (["batch=9..1"], "dimension batch: the range 9..1 ends before it begins; say 1..9"),
        (["batch=1", "batch=1..4"], "dimension batch: both 1 and 1..4 are given; keep one --dim"),
    ],
)
def test_a_bad_dimension_is_told(texts: list[str], message: str) -> None:
    with pytest.raises(BadInputError) as raised:
        sizes(texts)
    assert message in str(raised.value)


def test_a_file_of_shapes_is_passed_on(
    command: click.Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    given: dict[str, Any] = {}

    def record(model: Path, targets: list[str], **options: Any) -> None:
        given.update(options)
        raise typer.Exit

    monkeypatch.setattr("collage.api.tune", record)
    log = tmp_path / "requests.jsonl"
    log.write_text('{"x": [1, 5]}\n{"x": [1, 9]}\n{"x": [1, 5]}\n', encoding="utf-8")
    command.main(["model.onnx", "--shapes", str(log)], standalone_mode=False)
    (five, nine) = TuneOptions.from_json({"shapes": given["shapes"]}).shapes
    assert (five.sizes, five.weight) == ({"x": (1, 5)}, 2.0) and nine.sizes == {"x": (1, 9)}


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


@pytest.mark.slow
def test_http_shows_every_description() -> None:
    schema = create_app(Settings()).openapi()["components"]["schemas"]["TuneOptions"]
    described = {name: entry["description"] for name, entry in schema["properties"].items()}
    assert described == {name: field.description for name, field in TuneOptions.model_fields.items()}


@pytest.mark.parametrize(
    ("text", "mib"), [("512", 512), ("512MiB", 512), ("1.5GiB", 1536), ("1 GB", 953.67), ("2048KiB", 2)]
)
def test_memory_is_read_with_its_unit(text: str, mib: float) -> None:
    assert mebibytes("--memory-limit", text) == pytest.approx(mib, abs=0.01)


@pytest.mark.parametrize("text", ["", "much", "-1", "5 PB", "1e3"])
def test_memory_of_another_form_is_refused(text: str) -> None:
    with pytest.raises(BadInputError, match=r"--memory-limit .* is no size of memory: write 512MiB"):
        mebibytes("--memory-limit", text)


def test_masks_are_read_and_checked() -> None:
    assert masks(["length=attention_mask"]) == {"length": "attention_mask"}
    with pytest.raises(BadInputError, match="--pad-mask 'length' is not of the form dimension=input"):
        masks(["length"])
