"""Files of shapes: lists and request logs, counted, and what is wrong in them told with its line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from collage.options import TuneOptions
from collage.partitioner.errors import BadInputError
from collage.shapes.seen import MOST_SEEN, SeenEntry, read_shapes, seen_entry
from collage.shapes.traffic import MOST_KEPT


def _file(folder: Path, text: str) -> Path:
    path = folder / "shapes.txt"
    path.write_text(text, encoding="utf-8")
    return path


def _lines(*entries: Any) -> str:
    return "\n".join(map(json.dumps, entries))


def test_requests_of_a_log_are_counted(tmp_path: Path) -> None:
    wide, narrow = {"x": [1, 3, 48, 320]}, {"x": [1, 3, 48, 96]}
    path = _file(tmp_path, _lines(wide, narrow, wide) + "\n\n")
    assert read_shapes(path) == [
        {"sizes": wide, "weight": 2.0, "repeated": 1.0},
        {"sizes": narrow, "weight": 1.0, "repeated": 1.0},
    ]


@pytest.mark.parametrize("space", ["", "\n  "])
def test_a_list_with_weights_is_read_as_the_option_takes_it(tmp_path: Path, space: str) -> None:
    entries = [{"length": 16}, {"sizes": {"length": 64}, "weight": 2.5}, {"length": 16}]
    read = read_shapes(_file(tmp_path, space + json.dumps(entries, indent=1)))
    assert [(e["sizes"]["length"], e["weight"]) for e in read] == [(16, 2.0), (64, 2.5)]
    options = TuneOptions.from_json({"shapes": read})
    assert [dict(seen.sizes) for seen in options.shapes] == [{"length": 16}, {"length": 64}]
    assert TuneOptions.from_json(options.as_json()) == options


def test_a_name_sizes_may_be_an_input() -> None:
    assert seen_entry({"sizes": [2, 3]}) == SeenEntry({"sizes": (2, 3)})


@pytest.mark.parametrize(
    ("sizes", "repeated"),
    [
        (list(range(200)), 0.0),
        # Each size comes ten times in a row.
        ([size for size in range(200) for _ in range(10)], 0.9),
        # All sizes in turn: each is forgotten before it comes again.
        (list(range(MOST_KEPT + 1)) * 9, 0.0),
        (list(range(MOST_KEPT)) * 9, 1.0),
    ],
)
def test_a_log_tells_how_many_requests_repeat(
    tmp_path: Path, sizes: list[int], repeated: float
) -> None:
    read = read_shapes(_file(tmp_path, _lines(*({"length": size} for size in sizes))))
    assert [entry["repeated"] for entry in read] == pytest.approx([repeated] * len(read))
    options = TuneOptions.from_json({"shapes": read})
    assert [seen.repeated for seen in options.shapes] == pytest.approx([repeated] * len(read))


def test_a_list_with_weights_is_in_no_order(tmp_path: Path) -> None:
    entries = [{"sizes": {"length": size}, "weight": 3} for size in range(200)]
    assert all("repeated" not in entry for entry in read_shapes(_file(tmp_path, _lines(*entries))))
    told = [{**entry, "repeated": 0.25 + 0.5 * (i % 2)} for i, entry in enumerate(entries)]
    read = read_shapes(_file(tmp_path, _lines(*told)))
    assert [entry["repeated"] for entry in read] == pytest.approx([0.5] * 200)


def test_a_long_log_keeps_its_ends_and_all_its_weight(tmp_path: Path) -> None:
    entries = [{"x": [1, size], "n": size % 13} for size in range(5, 4000)]
    read = read_shapes(_file(tmp_path, _lines(*entries)))
    sizes = [entry["sizes"]["x"][1] for entry in read]
    assert len(read) == MOST_SEEN and min(sizes) == 5 and max(sizes) == 3999
    assert sum(entry["weight"] for entry in read) == pytest.approx(len(entries))
    TuneOptions.from_json({"shapes": read})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "holds no shape"),
        ("[]", "holds no shape"),
        ('{"x": [1]}\n{"x": [', "line 2: this is no JSON"),
        ('{"x": [1]}\n\n{"x": [-1]}', "line 3: x: -1 is no size"),
        ('{"x": "wide"}', "line 1: x: 'wide' is no size"),
        ('{"x": [true]}', "x: True is no size"),
        ('{"x": [[1]]}', "x: [1] is no size"),
        ("17", "line 1: a shape must be an object with names"),
        ("[{}]", "entry 1: a shape without sizes says nothing"),
        ('[{"sizes": {"x": 1}, "weight": 0}]', "entry 1: the weight 0 must be a number above 0"),
        ('[{"sizes": {"x": 1}, "repeated": 1.5}]', "entry 1: repeated 1.5 must be a share from 0 to 1"),
        ('[{"sizes": {"x": 1}, "repeated": true}]', "repeated True must be a share"),
        (
            '[{"sizes": {"x": 1}, "count": 2}]',
            "count beside sizes, weight and repeated is not known",
        ),
        ("[" * 100_000, "this is no JSON"),
    ],
)
def test_what_is_no_shape_is_told_with_its_place(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(BadInputError) as raised:
        read_shapes(_file(tmp_path, text))
    assert message in str(raised.value) and "shapes.txt" in str(raised.value)


def test_a_long_log_of_mixed_forms_is_refused(tmp_path: Path) -> None:
    entries = [{"x": [size]} for size in range(1000)] + [{"y": [1]}]
    with pytest.raises(BadInputError, match=r"shapes\.txt.*: the shapes name different inputs"):
        read_shapes(_file(tmp_path, _lines(*entries)))


@pytest.mark.parametrize("content", [None, b"\xff\xfe{}"])
def test_a_file_that_cannot_be_read_is_told(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "shapes"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(BadInputError, match="cannot be read"):
        read_shapes(path)
