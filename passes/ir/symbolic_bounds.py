"""The most that symbolic sizes can be, from bounds of the variables in them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tvm.ir import TensorLoad, Var
from tvm.sym import Analyzer, ConstIntBound
from tvm_ffi import structural_walk

from passes.ir.whole_numbers import never_wraps

_LIMIT = 1 << 62
"""What a size stays below; see `passes.planning.problem.ADDRESS_LIMIT`."""


NO_LOWER = int(ConstIntBound.NEG_INF)
"""The lower bound of a variable that may have any value below its upper one."""


@dataclass(frozen=True, eq=False)
class Bound:
    """What a variable is at least and at most, both included."""

    variable: Var
    lower: int
    upper: int


class SymbolicBounds:
    """What is known of the variables of a function.

    Parameters
    ----------
    bounds : sequence of Bound
        Of variables that have a value when the function begins.
    """

    def __init__(self, bounds: Sequence[Bound]) -> None:
        self._bounds = {bound.variable.__chandle__(): bound for bound in bounds}

    def most(self, expr: Any) -> tuple[int, tuple[Bound, ...]] | None:
        """Return the most that an expression can be.

        Parameters
        ----------
        expr : tvm.ir.Expr
            Of an integer type.

        Returns
        -------
        tuple of (int, tuple of Bound), or None
            The value, and the bounds that it rests on; None where a variable without a bound
            leaves it open, or where the expression may wrap or reads memory.
        """
        variables: list[Var] = []
        loads: list[TensorLoad] = []
        structural_walk(expr, [(Var, variables.append), (TensorLoad, loads.append)])
        if loads or not never_wraps(expr):
            return None
        analyzer = Analyzer()
        used: dict[int, Bound] = {}
        for variable in variables:
            bound = self._bounds.get(variable.__chandle__())
            if bound is None:
                # Without this the analyzer takes the limits of the variable's type for a bound.
                least, most = ConstIntBound.NEG_INF, ConstIntBound.POS_INF
            else:
                used[variable.__chandle__()] = bound
                least, most = bound.lower, bound.upper
            analyzer.update(variable, ConstIntBound(least, most), override=True)
        most = int(analyzer.const_int_bound(expr).max_value)
        return None if most >= _LIMIT else (most, tuple(used.values()))
