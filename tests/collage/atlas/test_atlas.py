"""The atlas as data and as a page."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from collage.atlas.atlas import read_atlas
from collage.atlas.page import atlas_page
from collage.cli.app import app
from collage.cost_db.atlas import AtlasStore, RegionFacts
from collage.cost_db.database import CostDatabase
from collage.costs.region_facts import facts_of
from tests.cost_db.builders import store_all
from tests.cost_db.test_atlas import row
from tests.partitioner.graphs import text_model


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'c.db'}"


@pytest.fixture
def database(url: str) -> Iterator[CostDatabase]:
    """Six regions of two classes."""
    database = CostDatabase(url)
    kinds = [("Conv", "4-D 3x3"), ("MatMul <b>", "2-D one row")]
    facts = [RegionFacts(f"region {i}", *kinds[i // 6], "float32") for i in range(12)]
    AtlasStore(database).describe(facts)
    rows = [
        row(i, t, us) for i in range(12) for t, us in (("mnn", 10.0), ("ncnn", 30.0 - 19 * (i > 5)))
    ]
    store_all(database, *rows)
    yield database
    database.close()


def test_rows_say_how_much_slower_and_how_sure(database: CostDatabase) -> None:
    found = read_atlas(database)
    first, second = found["rows"][:2]
    assert (first["target"], first["times_best"], first["fastest_in"]) == ("mnn", 1.0, 1.0)
    assert second["times_best"] == pytest.approx(3.0) and second["is_sure"]
    assert (second["regions"], second["models"], second["machine"]) == (6, 6, "EPYC, 2 cores")


def test_targets_far_apart_are_told(database: CostDatabase) -> None:
    (pair,) = read_atlas(database)["differences"]
    assert (pair["kind"], pair["fast"], pair["slow"]) == ("Conv", "mnn", "ncnn")
    assert pair["factor"] == pytest.approx(3.0)


@pytest.mark.slow
def test_all_words_of_a_search_must_be_there(database: CostDatabase) -> None:
    assert {r["kind"] for r in read_atlas(database, "conv 3x3")["rows"]} == {"Conv"}
    assert len(read_atlas(database, "CONV ncnn")["rows"]) == 1
    assert read_atlas(database, "conv row")["rows"] == []
    assert read_atlas(database, hardware="hardware-b")["rows"] == []


def test_a_search_for_one_target_keeps_its_differences(database: CostDatabase) -> None:
    for words in ("conv ncnn", "mnn 3x3", "mnn ncnn"):
        (pair,) = read_atlas(database, words)["differences"]
        assert (pair["fast"], pair["slow"]) == ("mnn", "ncnn") and pair["factor"] == pytest.approx(3.0)
    assert read_atlas(database, "conv openvino")["differences"] == []


def test_the_page_needs_nothing_from_outside(database: CostDatabase) -> None:
    page = atlas_page(read_atlas(database))
    assert not re.search(r"(src|href)=|https?:|@import|url\(", page)
    assert "MatMul &lt;b&gt;" in page and "<b>" not in page
    for tag in ("style", "script"):
        (text,) = re.findall(rf"<{tag}>(.*?)</{tag}>", page, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in page


def test_the_command_prints_and_writes_it(database: CostDatabase, url: str, tmp_path: Path) -> None:
    page = tmp_path / "atlas.html"
    done = CliRunner().invoke(app, ["atlas", "conv", "--database", url, "-o", str(page)])
    assert done.exit_code == 0, done.output
    assert "3.00" in done.stdout and "mnn" in done.stdout and page.is_file()
    done = CliRunner().invoke(app, ["atlas", "--database", url, "--json"])
    assert len(json.loads(done.stdout)["rows"]) == 4


@pytest.mark.parametrize(
    ("body", "kind", "shapes"),
    [
        ("y = Relu(x)", "Relu", "4-D, up to 16k"),
        ("c = Conv(x, w)  y = Relu(c)", "Conv Relu", "4-D 3x3, up to 16k"),
        ("y = Conv<group = 4>(x, g)", "Conv", "4-D 3x3 grouped, up to 16k"),
        ("y = MatMul(x, m)", "MatMul", "4-D rows, up to 16k"),
    ],
)
def test_regions_are_classed(body: str, kind: str, shapes: str) -> None:
    text = f"g (float[1,4,32,32] x, float[4,4,3,3] w, float[4,1,3,3] g, float[32,8] m) => (float[1,4,a,b] y) {{ {body} }}"
    index = text_model(text).index
    facts = facts_of(index, index.all_nodes)
    assert (facts.kind, facts.shape_class, facts.dtype) == (kind, shapes, "float32")
