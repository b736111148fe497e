# SPDX-License-Identifier: Apache-2.0
"""The most that symbolic sizes can be, from bounds of the variables in them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tvm.ir import TensorLoad, Var
from tvm.sym import Analyzer, ConstIntBound
from tvm.tirx import PrimFunc, is_buffer_var

from passes.ir.structural import nodes_in
from passes.ir.whole_numbers import never_wraps

_LIMIT = 1 << 62  # What a size stays below; see `passes.planning.problem.ADDRESS_LIMIT`

UPPER_BOUND = "tir_var_upper_bound"
"""The function attribute that says the most that variables can be, by name."""

NO_LOWER = int(ConstIntBound.NEG_INF)
"""The lower bound of a variable that may have any value below its upper one."""


@dataclass(frozen=True, eq=False)
class Bound:
    """What a variable is at least and at most, both included."""

    variable: Var
    lower: int
    upper: int


class SymbolicBounds:
    """What is known of the variables that have a value when a function begins."""

    def __init__(self, bounds: Sequence[Bound]) -> None:
        self._bounds = {bound.variable.__chandle__(): bound for bound in bounds}

    def most(self, expr: Any) -> tuple[int, tuple[Bound, ...]] | None:
        """Return the most that an integer expression can be, and the bounds that it rests on.

        None where a variable without a bound leaves it open, or where it may wrap or reads memory.
        """
        if nodes_in(expr, TensorLoad) or not never_wraps(expr):
            return None
        analyzer = Analyzer()
        used: dict[int, Bound] = {}
        for variable in nodes_in(expr, Var):
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


def variables_of_params(func: PrimFunc) -> list[Var]:
    """Return the variables that have a value when a function begins, some more than once."""
    found: list[Var] = []
    for param in func.params:
        found.append(param)
        if is_buffer_var(param):
            for part in (*param.ty.shape, *param.ty.strides):
                found += nodes_in(part, Var)
    return found


def bounds_at_entry(func: PrimFunc, named: Mapping[str, int]) -> tuple[SymbolicBounds, ...]:
    """Return the bounds of the variables that have a value when a function begins.

    The second of the two take them not to be negative, as the sizes of arrays are. Upper bounds are
    those of the function's attribute ``tir_var_upper_bound``, and `named`.
    """
    attribute = func.attrs.get(UPPER_BOUND) if func.attrs else None
    bounds = {} if attribute is None else {str(name): int(b) for name, b in attribute.items()}
    bounds.update(named)
    found = [v for v in variables_of_params(func) if v.name in bounds]
    return tuple(
        SymbolicBounds([Bound(v, lower, bounds[v.name]) for v in found]) for lower in (NO_LOWER, 0)
    )
