"""Export and import, on both engines."""

from __future__ import annotations

import io
import json
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collage.cost_db.costs.queries import CostFilter
from collage.cost_db.costs.row import now
from collage.cost_db.costs.transfer import read_line, write_line
from collage.cost_db.database import CostDatabase
from collage.partitioner.errors import BadInputError
from tests.cost_db.builders import infeasible, measured, store_all


def test_an_export_imported_elsewhere_is_the_same_rows(database: CostDatabase, tmp_path: Any) -> None:
    rows = [measured(number) for number in range(5)] + [infeasible(6, op_types="")]
    store_all(database, *rows)
    file = io.StringIO()
    file.writelines(database.export_lines(CostFilter()))
    assert len(file.getvalue().splitlines()) == 6
    other = CostDatabase(f"sqlite:///{tmp_path / 'other.db'}")
    file.seek(0)
    result = other.import_lines(file)
    assert (result.accepted, result.refused, result.known) == (6, (), 0)
    assert other.query(CostFilter()) == database.query(CostFilter())
    assert other.query(CostFilter(op_types=("Conv",))) == database.query(CostFilter(op_types=("Conv",)))
    other.close()


def test_lines_tell_structure_and_work_only_where_they_are_known() -> None:
    """Lines from before these fields are accepted, and older programs accept lines without them."""
    sized = measured(1, structure="ab" * 32, work=0.1 + 0.2)
    assert read_line(write_line(sized)) == sized
    written = json.loads(write_line(measured(1)))
    assert not written.keys() & {"structure", "work"}
    assert read_line(json.dumps(written)) == measured(1)
    assert read_line(_changed(structure=None, work=None)) == measured()


def test_an_export_obeys_its_filter(database: CostDatabase) -> None:
    store_all(database, measured(1), infeasible(2))
    (text,) = database.export_lines(CostFilter(outcome="infeasible"))
    assert read_line(text) == infeasible(2)


def test_a_known_cost_stays_as_it_is(database: CostDatabase) -> None:
    store_all(database, measured(1))
    lines = [write_line(measured(1, latency_us=5.0)), write_line(measured(2)), write_line(measured(2))]
    result = database.import_lines(lines)
    assert (result.accepted, result.refused, result.known) == (1, (), 2)
    assert database.look_up([measured(1).digest]) == {measured(1).digest: measured(1)}


def test_bad_lines_are_refused_by_number_and_the_good_ones_go_in(database: CostDatabase) -> None:
    lines = [write_line(measured(1)), "", "{", _changed(digest="00" * 32), write_line(measured(2))]
    result = database.import_lines(line + "\n" for line in lines)
    assert result.accepted == 2
    assert [number for number, _ in result.refused] == [3, 4]
    assert "not JSON" in result.refused[0][1]
    assert result.refused[1][1] == "digest is not that of its key"


@pytest.mark.slow
def test_more_lines_than_one_batch(database: CostDatabase) -> None:
    lines = [write_line(measured(number)) for number in range(1_201)]
    assert database.import_lines(lines).accepted == 1_201
    exported = "".join(database.export_lines(CostFilter())).splitlines()
    assert len(exported) == len(set(exported)) == 1_201


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("", "not JSON"),
        ("[]", "not a JSON object"),
        ("{}", "fields missing or unknown: backend_version"),
        ("[" * 100_000, "nested deeper than 32"),
        ("9" * 2_000_000, "longer than"),
        (write_line(measured()).replace("100.5", "NaN"), "NaN, which is no number"),
        (write_line(measured()).replace("100.5", "1e999"), "yardstick_us is inf"),
    ],
)
def test_odd_lines_are_refused_with_the_reason(line: str, problem: str) -> None:
    with pytest.raises(BadInputError, match=problem):
        read_line(line)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"extra": 1}, "unknown: extra"),
        ({"latency_us": "1"}, "latency_us has the wrong type"),
        ({"latency_us": True}, "latency_us has the wrong type"),
        ({"latency_us": -1.0}, "latency_us is negative"),
        ({"node_count": 2.0}, "node_count has the wrong type"),
        ({"node_count": 10**30}, "node_count has the wrong type"),
        ({"node_count": 2**40, "node_times_us": []}, "node_count"),
        ({"peak_memory_bytes": 2**63}, "peak_memory_bytes has the wrong type"),
        ({"samples_us": [1.0, None]}, "samples_us has something that is not a number"),
        ({"samples_us": [1.0, -1.0]}, "samples_us has a value"),
        ({"versions": {"a": 1}}, "versions has something that is not text"),
        ({"hardware_description": []}, "hardware_description has the wrong type"),
        ({"created_at": "yesterday"}, "created_at is not a time"),
        ({"created_at": "2026-01-01T00:00:00"}, "created_at has no time zone"),
        ({"created_at": (now() + timedelta(days=3)).isoformat()}, "created_at is in the future"),
        ({"target": "onnxruntime"}, "digest is not that of its key"),
        ({"host": "a\0"}, "host has a character"),
        ({"structure": "ab"}, "structure is no SHA-256"),
        ({"work": "1"}, "work has the wrong type"),
    ],
)
def test_changed_fields_are_refused_with_the_reason(changes: dict[str, Any], problem: str) -> None:
    with pytest.raises(BadInputError, match=problem):
        read_line(_changed(**changes))


@given(st.text(max_size=200) | st.binary(max_size=100).map(lambda raw: raw.decode("latin-1")))
def test_any_text_is_refused_and_nothing_else_happens(text: str) -> None:
    with pytest.raises(BadInputError):
        read_line(text)


@pytest.mark.slow
@given(
    st.sampled_from([*sorted(json.loads(write_line(measured()))), "structure", "work"]),
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
        max_leaves=5,
    ),
)
def test_any_value_in_any_field_is_taken_whole_or_refused(field: str, value: Any) -> None:
    try:
        row = read_line(_changed(**{field: value}))
    except BadInputError:
        return
    assert read_line(write_line(row)) == row


def _changed(**changes: Any) -> str:
    return json.dumps({**json.loads(write_line(measured())), **changes})
