"""Mixed-integer programs as numpy arrays, and their solution by HiGHS.

Invariant: `MilpResult.bound` is a proven lower bound on the optimum, whatever stopped the solver;
`values` are None or satisfy the program.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field

import highspy
import numpy as np
import numpy.typing as npt

_WORTH = 1e-7  # a column is worth something when it makes the program so much cheaper
_LEAST_ENTERING = 500  # so many columns come in at a time, or a quarter of those that are in

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

_OPTIMAL = highspy.HighsModelStatus.kOptimal
_INFEASIBLE = (highspy.HighsModelStatus.kInfeasible, highspy.HighsModelStatus.kUnboundedOrInfeasible)


@dataclass
class Program:
    """Minimize a linear cost over columns within bounds, subject to rows within bounds.

    Columns and rows are added in blocks of arrays; every block of entries is (row, column, value).
    """

    costs: list[Floats] = field(default_factory=list)
    uppers: list[Floats] = field(default_factory=list)
    integers: list[npt.NDArray[np.bool_]] = field(default_factory=list)
    row_lowers: list[Floats] = field(default_factory=list)
    row_uppers: list[Floats] = field(default_factory=list)
    entries: list[tuple[Ints, Ints, Floats]] = field(default_factory=list)
    columns: int = 0
    rows: int = 0
    offset: float = 0.0

    def add_columns(self, cost: Floats, upper: float = 1.0, integer: bool = False) -> int:
        """Add columns from 0 to `upper`; returns the first one's number."""
        first = self.columns
        self.costs.append(np.asarray(cost, float))
        self.uppers.append(np.full(len(cost), upper))
        self.integers.append(np.full(len(cost), integer))
        self.columns += len(cost)
        return first

    def add_rows(self, lower: Floats | float, upper: Floats | float, count: int) -> int:
        """Add empty rows; returns the first one's number."""
        first = self.rows
        self.row_lowers.append(np.broadcast_to(np.asarray(lower, float), count))
        self.row_uppers.append(np.broadcast_to(np.asarray(upper, float), count))
        self.rows += count
        return first

    def add_entries(self, rows: Ints, columns: Ints, values: Floats | float) -> None:
        """Add coefficients; those of one row and column add up."""
        self.entries.append((rows, columns, np.broadcast_to(np.asarray(values, float), len(rows))))

    def add_row(self, columns: Ints, values: Floats | float, lower: float, upper: float) -> None:
        """Add one row with its coefficients."""
        row = self.add_rows(lower, upper, 1)
        self.add_entries(np.full(len(columns), row), columns, values)

    def matrix(self) -> tuple[Ints, Ints, Floats]:
        """Row starts, column numbers and values, by row; sums that vanish are left out."""
        if not self.entries:
            return np.zeros(self.rows + 1, np.int64), np.zeros(0, np.int64), np.zeros(0)
        rows, columns, values = (np.concatenate(part) for part in zip(*self.entries, strict=True))
        keys = rows * self.columns + columns
        order = np.argsort(keys, kind="stable")
        keys, first = np.unique(keys[order], return_index=True)
        sums = np.add.reduceat(values[order], first) if len(first) else np.zeros(0)
        kept = sums != 0
        keys, sums = keys[kept], sums[kept]
        counts = np.bincount(keys // self.columns, minlength=self.rows)
        return np.concatenate(([0], np.cumsum(counts))), keys % self.columns, sums


@dataclass(frozen=True)
class MilpResult:
    """What the solver found."""

    values: Floats | None  # of the columns; None when nothing was found
    bound: float  # proven lower bound; infinite when the program has no solution
    optimal: bool  # True when `values` are proven to be the best
    duals: Floats | None = None  # reduced costs of the columns, from `relax` only


def solve(
    program: Program, *, start: Ints | None = None, time_limit_s: float | None = None
) -> MilpResult:
    """Solve a program on one thread.

    Args:
        start: columns that are 1 in a known solution; the other integer columns of the first block are
            0.
        time_limit_s: stop after so long.
    """
    solver = _solver(time_limit_s)
    solver.passModel(_lp(program))
    if start is not None:
        count = len(program.costs[0])
        values = np.zeros(count)
        values[start] = 1.0
        solver.setSolution(count, np.arange(count, dtype=np.int32), values)
    solver.run()
    return _result(solver)


def relax(program: Program, first: Ints, time_limit_s: float | None = None) -> MilpResult:
    """Solve a program without regard to integers, by column generation.

    Most columns of the first block are worth nothing at the optimum. So the program is solved with a
    few; those that its duals show to be worth something come in, until none is left that would make it
    cheaper: the proof.

    Args:
        first: columns of the first block to begin with; a guess, on which only the time depends.
        time_limit_s: stop after so long; then nothing is proven.
    """
    begin = time.monotonic()
    matrix = _Matrix(program)
    outside = np.zeros(program.columns, np.bool_)
    outside[: len(program.costs[0])] = True
    outside[first] = False
    solver = _solver(time_limit_s)
    # New columns leave a basis feasible: the solver may go on from it by the primal method.
    solver.setOptionValue("simplex_strategy", 0)
    solver.passModel(_rows(program))
    order = np.zeros(0, np.int64)
    entering = np.flatnonzero(~outside)
    while True:
        matrix.add_to(solver, entering)
        order = np.concatenate((order, entering))
        if time_limit_s is not None:
            solver.setOptionValue("time_limit", max(0.0, time_limit_s - (time.monotonic() - begin)))
        solver.run()
        status = solver.getModelStatus()
        if status in _INFEASIBLE and outside.any():
            entering = np.flatnonzero(outside)
        elif status != _OPTIMAL:
            infeasible = status in _INFEASIBLE
            return MilpResult(None, math.inf if infeasible else -math.inf, infeasible)
        else:
            solution = solver.getSolution()
            spare = matrix.reduced_costs(np.array(solution.row_dual))
            entering = np.flatnonzero(outside & (spare < -_WORTH))
            if not len(entering):
                values = np.zeros(program.columns)
                values[order] = solution.col_value
                bound = float(solver.getInfo().objective_function_value)
                return MilpResult(values, bound, True, spare)
            entering = entering[np.argsort(spare[entering])[: max(_LEAST_ENTERING, len(order) // 4)]]
        outside[entering] = False


def _solver(time_limit_s: float | None) -> highspy.Highs:
    solver = highspy.Highs()
    solver.setOptionValue("output_flag", False)
    solver.setOptionValue("threads", 1)
    solver.setOptionValue("mip_rel_gap", 0.0)
    solver.setOptionValue("mip_abs_gap", 1e-6)
    solver.setOptionValue("mip_feasibility_tolerance", 1e-7)
    if time_limit_s is not None:
        solver.setOptionValue("time_limit", max(time_limit_s, 0.0))
    return solver


class _Matrix:
    """A program's coefficients by column."""

    def __init__(self, program: Program) -> None:
        starts, columns, values = program.matrix()
        order = np.argsort(columns, kind="stable")
        self._columns = columns[order]
        self._rows = np.repeat(np.arange(program.rows), np.diff(starts))[order]
        self._values = values[order]
        self._starts = np.searchsorted(self._columns, np.arange(program.columns + 1))
        self._costs = np.concatenate(program.costs)
        self._uppers = np.concatenate(program.uppers)

    def add_to(self, solver: highspy.Highs, columns: Ints) -> None:
        """Give a solver, which has the rows, some columns."""
        counts = self._starts[columns + 1] - self._starts[columns]
        starts = np.cumsum(counts) - counts
        entries = np.arange(counts.sum()) + np.repeat(self._starts[columns] - starts, counts)
        solver.addCols(
            len(columns),
            self._costs[columns],
            np.zeros(len(columns)),
            self._uppers[columns],
            len(entries),
            starts.astype(np.int32),
            self._rows[entries].astype(np.int32),
            self._values[entries],
        )

    def reduced_costs(self, row_duals: Floats) -> Floats:
        """Per column what it costs beyond what its rows are worth."""
        worth = np.bincount(
            self._columns, self._values * row_duals[self._rows], minlength=len(self._costs)
        )
        reduced: Floats = self._costs - worth
        return reduced


def _lp(program: Program) -> highspy.HighsLp:
    starts, columns, values = program.matrix()
    lp = _rows(program)
    lp.num_col_ = program.columns
    lp.col_cost_ = np.concatenate(program.costs)
    lp.col_lower_ = np.zeros(program.columns)
    lp.col_upper_ = np.concatenate(program.uppers)
    lp.a_matrix_.num_col_ = program.columns
    lp.a_matrix_.start_ = starts.astype(np.int32)
    lp.a_matrix_.index_ = columns.astype(np.int32)
    lp.a_matrix_.value_ = values
    kinds = (highspy.HighsVarType.kContinuous, highspy.HighsVarType.kInteger)
    lp.integrality_ = [kinds[integer] for integer in np.concatenate(program.integers).tolist()]
    return lp


def _rows(program: Program) -> highspy.HighsLp:
    """The program without columns."""
    lp = highspy.HighsLp()
    lp.num_row_ = program.rows
    lp.row_lower_ = np.concatenate(program.row_lowers) if program.rows else np.zeros(0)
    lp.row_upper_ = np.concatenate(program.row_uppers) if program.rows else np.zeros(0)
    lp.offset_ = program.offset
    lp.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
    lp.a_matrix_.num_row_ = program.rows
    lp.a_matrix_.start_ = np.zeros(program.rows + 1, np.int32)
    return lp


def _result(solver: highspy.Highs) -> MilpResult:
    status = solver.getModelStatus()
    if status in _INFEASIBLE:
        return MilpResult(None, math.inf, True)
    info = solver.getInfo()
    found = info.primal_solution_status == int(highspy.SolutionStatus.kSolutionStatusFeasible)
    values = np.array(solver.getSolution().col_value) if found else None
    bound = info.mip_dual_bound if math.isfinite(info.mip_dual_bound) else -math.inf
    return MilpResult(values, bound, status == _OPTIMAL)
