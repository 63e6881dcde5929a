"""Threads and instances: never more threads than cores, whatever is asked."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collage.artifact.division import divided
from collage.partitioner.candidate import Instances
from collage.partitioner.errors import BadInputError

COUNTS = st.integers(1, 200)
PLANNED = st.builds(Instances, count=COUNTS, threads=COUNTS, cores=COUNTS)


@pytest.mark.slow
@given(
    instances=COUNTS | st.just("auto"),
    threads=COUNTS | st.none(),
    planned=PLANNED | st.none(),
    cores=COUNTS,
)
def test_instances_never_take_more_threads_than_cores(
    instances: int | str, threads: int | None, planned: Instances | None, cores: int
) -> None:
    try:
        count, each = divided(instances=instances, threads=threads, planned=planned, cores=cores)  # type: ignore[arg-type]
    except BadInputError:
        assert isinstance(instances, int) and instances * (threads or 1) > cores
        return
    assert count >= 1 and each >= 1
    assert count == 1 or count * each <= cores


@pytest.mark.parametrize(
    ("instances", "threads", "planned", "cores", "expected"),
    [
        ("auto", None, None, 4, (1, 4)),
        ("auto", 2, None, 4, (1, 2)),
        (1, 8, None, 4, (1, 8)),  # as ever: one call may have as many threads as the caller says
        (2, None, None, 4, (2, 2)),
        (3, None, None, 4, (3, 1)),
        (2, 1, None, 4, (2, 1)),
        ("auto", None, Instances(2, 1, 2), 2, (2, 1)),
        ("auto", None, Instances(2, 1, 2), 8, (8, 1)),
        ("auto", None, Instances(2, 4, 8), 4, (1, 4)),
        ("auto", None, Instances(4, 2, 8), 3, (1, 2)),
        (1, None, Instances(4, 2, 8), 8, (1, 8)),
    ],
)
def test_cores_are_divided(
    instances: int | str,
    threads: int | None,
    planned: Instances | None,
    cores: int,
    expected: tuple[int, int],
) -> None:
    assert divided(instances=instances, threads=threads, planned=planned, cores=cores) == expected  # type: ignore[arg-type]


@pytest.mark.parametrize("wrong", [0, -1, True, 2.0, "many", None])
def test_a_wrong_number_of_instances_is_refused(wrong: object) -> None:
    with pytest.raises(BadInputError, match="number from 1, or 'auto'"):
        divided(instances=wrong, threads=None, planned=None, cores=4)  # type: ignore[arg-type]


@pytest.mark.parametrize("wrong", [0, -1, True, 2.0, "2"])
def test_a_wrong_number_of_threads_is_refused(wrong: object) -> None:
    for instances in (1, 2, "auto"):
        with pytest.raises(BadInputError, match="number from 1, or None"):
            divided(instances=instances, threads=wrong, planned=None, cores=4)  # type: ignore[arg-type]


def test_too_many_instances_are_refused_with_what_fits() -> None:
    with pytest.raises(BadInputError, match="at most 2 instances"):
        divided(instances=3, threads=2, planned=None, cores=4)
