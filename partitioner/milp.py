"""Mixed-integer programs as numpy arrays, and their solution by HiGHS.

Invariant: `MilpResult.bound` is a proven lower bound on the program's optimum, whatever stopped the
solver; `values` are None or satisfy the program.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import highspy
import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

_OPTIMAL = highspy.HighsModelStatus.kOptimal
_INFEASIBLE = (
    highspy.HighsModelStatus.kInfeasible,
    highspy.HighsModelStatus.kUnboundedOrInfeasible,
)


@dataclass
class Program:
    """Minimise a linear cost over columns within bounds, subject to rows within bounds.

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
    """What the solver found.

    Args:
        values: of the columns; None when nothing was found.
        bound: proven lower bound; infinite when the program has no solution.
        optimal: True when `values` are proven to be the best.
        duals: reduced costs of the columns, of a program without integers only.
    """

    values: Floats | None
    bound: float
    optimal: bool
    duals: Floats | None = None


def solve(
    program: Program,
    *,
    start: Ints | None = None,
    time_limit_s: float | None = None,
    relax: bool = False,
) -> MilpResult:
    """Solve a program on one thread.

    Args:
        program: what to solve.
        start: columns that are 1 in a known solution, from which the solver completes a first one; all
            other integer columns among the first block are 0.
        time_limit_s: stop after so long.
        relax: leave out that columns are integers.
    """
    solver = highspy.Highs()
    solver.setOptionValue("output_flag", False)
    solver.setOptionValue("threads", 1)
    solver.setOptionValue("mip_rel_gap", 0.0)
    solver.setOptionValue("mip_abs_gap", 1e-6)
    solver.setOptionValue("mip_feasibility_tolerance", 1e-7)
    if time_limit_s is not None:
        solver.setOptionValue("time_limit", max(time_limit_s, 0.0))
    solver.passModel(_lp(program, relax))
    if start is not None:
        count = len(program.costs[0])
        values = np.zeros(count)
        values[start] = 1.0
        solver.setSolution(count, np.arange(count, dtype=np.int32), values)
    solver.run()
    return _result(solver, relax)


def _lp(program: Program, relax: bool) -> highspy.HighsLp:
    starts, columns, values = program.matrix()
    lp = highspy.HighsLp()
    lp.num_col_ = program.columns
    lp.num_row_ = program.rows
    lp.col_cost_ = np.concatenate(program.costs)
    lp.col_lower_ = np.zeros(program.columns)
    lp.col_upper_ = np.concatenate(program.uppers)
    lp.row_lower_ = np.concatenate(program.row_lowers) if program.rows else np.zeros(0)
    lp.row_upper_ = np.concatenate(program.row_uppers) if program.rows else np.zeros(0)
    lp.offset_ = program.offset
    lp.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
    lp.a_matrix_.num_col_ = program.columns
    lp.a_matrix_.num_row_ = program.rows
    lp.a_matrix_.start_ = starts.astype(np.int32)
    lp.a_matrix_.index_ = columns.astype(np.int32)
    lp.a_matrix_.value_ = values
    if not relax:
        kinds = (highspy.HighsVarType.kContinuous, highspy.HighsVarType.kInteger)
        lp.integrality_ = [kinds[integer] for integer in np.concatenate(program.integers).tolist()]
    return lp


def _result(solver: highspy.Highs, relax: bool) -> MilpResult:
    status = solver.getModelStatus()
    if status in _INFEASIBLE:
        return MilpResult(None, math.inf, True)
    info = solver.getInfo()
    optimal = status == _OPTIMAL
    found = info.primal_solution_status == int(highspy.SolutionStatus.kSolutionStatusFeasible)
    solution = solver.getSolution()
    values = np.array(solution.col_value) if found else None
    if relax:
        bound = info.objective_function_value if optimal else -math.inf
        return MilpResult(values, bound, optimal, np.array(solution.col_dual) if optimal else None)
    bound = info.mip_dual_bound if math.isfinite(info.mip_dual_bound) else -math.inf
    return MilpResult(values, bound, optimal)
