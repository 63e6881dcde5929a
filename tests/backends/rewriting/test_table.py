"""The table of passes: each says for whom, why, and what it gained."""

from __future__ import annotations

import pkgutil

import pytest

from collage.backends.registry import backends
from collage.backends.rewriting import passes
from collage.backends.rewriting.table import PASSES, REWRITE, WINOGRAD, Pass, passes_of
from collage.partitioner.target import Target


@pytest.mark.parametrize("found", PASSES, ids=lambda found: found.name)
def test_pass_has_runtimes_reason_and_gain(found: Pass) -> None:
    assert found.runtimes and set(found.runtimes) <= set(backends())
    assert found.sees and found.reason
    assert any(f"{runtime} " in found.gain for runtime in found.runtimes)


def test_every_file_of_passes_is_in_the_table() -> None:
    files = {module.name for module in pkgutil.iter_modules(passes.__path__)} - {"winograd_tiles"}
    listed = {p.apply.__module__.rpartition(".")[2] for p in PASSES if p.apply is not None}
    assert listed == files


def test_winograd_runs_where_it_is_asked_for_alone() -> None:
    names = {}
    for value in ("off", "on", "winograd"):
        target = Target("onnxruntime").with_options(**{REWRITE.name: value})
        names[value] = [p.name for p in passes_of(target)]
    assert names["off"] == []
    assert names["on"] == ["spreads", "shuffles", "two_d", "splits"]
    assert names["winograd"] == [*names["on"], WINOGRAD]
