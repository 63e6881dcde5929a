"""Programs: the relaxation by column generation is that of all columns at once."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest

from collage.partitioner.search.milp import Program, relax, solve


def covering(seed: int, sets: int = 60, members: int = 12) -> Program:
    """Cover every member once by sets of made-up costs; one more column, which is no set, pays for members."""
    chance = random.Random(seed)
    program = Program()
    program.add_columns(np.array([chance.uniform(1, 9) for _ in range(sets)]), integer=True)
    spare = program.add_columns(np.array([40.0]), upper=3.0)
    first = program.add_rows(1.0, 1.0, members)
    for column in range(sets):
        held = np.array(sorted(chance.sample(range(members), chance.randint(1, 4))))
        program.add_entries(first + held, np.full(len(held), column), 1.0)
    for member in range(0, members, 3):
        program.add_entries(np.array([first + member]), np.array([spare]), 1.0)
    program.offset = 5.0
    return program


@pytest.mark.parametrize("seed", range(8))
def test_relaxation_is_independent_of_its_first_columns(seed: int) -> None:
    program = covering(seed)
    count = len(program.costs[0])
    everything = relax(program, np.arange(count))
    assert everything.optimal and everything.values is not None and everything.duals is not None
    # Only a column at its upper bound is worth more than it costs.
    assert everything.duals[everything.values < 1 - 1e-6].min() > -1e-6
    assert everything.bound <= solve(program).bound + 1e-6
    chance = random.Random(seed)
    for few in (0, 1, 5, 20):
        some = relax(program, np.array(sorted(chance.sample(range(count), few)), np.int64))
        assert some.optimal and some.values is not None and some.duals is not None
        assert some.bound == pytest.approx(everything.bound)
        assert len(some.values) == program.columns
        assert some.duals[some.values < 1 - 1e-6].min() > -1e-6
        costs = np.concatenate(program.costs)
        assert float(costs @ some.values) + program.offset == pytest.approx(some.bound)


def test_problem_without_solution_has_none_from_any_columns() -> None:
    program = covering(0)
    program.add_row(np.arange(60), 1.0, -np.inf, 0.5)
    for first in (np.zeros(0, np.int64), np.arange(60)):
        found = relax(program, first)
        assert found.values is None and found.optimal and found.bound == math.inf


def test_without_time_nothing_is_proven() -> None:
    found = relax(covering(1), np.arange(3), time_limit_s=0.0)
    assert found.values is None and not found.optimal and found.bound == -math.inf
