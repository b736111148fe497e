# SPDX-License-Identifier: Apache-2.0
"""Maxima of symbolic sizes, from bounds of the variables in the sizes, and what wraps.

TVM takes ``int32`` and ``int64`` never to overflow. Arithmetic in other types wraps, and its
analyses do not see that.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from tvm.ir import BaseFunc, Op
from tvm.sym import ConstIntBound
from tvm.tirx import max_value, min_value

from passes.ir import tir
from passes.ir.structural import has_any, nodes_in, structural_map

_MAY_WRAP = (tir.Add, tir.Sub, tir.Mul, tir.LShift, tir.Cast)
_LIMIT = 1 << 62  # Sizes are below; see `passes.planning.problem.ADDRESS_LIMIT`

LOWER_BOUND, UPPER_BOUND = "tir_var_lower_bound", "tir_var_upper_bound"
"""The function attributes that map names of variables to their lower and upper bounds."""

NO_LOWER = int(ConstIntBound.NEG_INF)
"""The lower bound of a variable that has an upper bound alone."""


@dataclass(frozen=True, eq=False)
class Bound:
    """The lowest and the highest value of a variable."""

    variable: tir.Var
    lower: int
    upper: int


def most_of(expr: Any, bounds: Iterable[Bound]) -> tuple[int, tuple[Bound, ...]] | None:
    """Return the maximum of an integer expression, and the bounds that it follows from.

    None where the maximum does not follow from bounds of variables: a variable has no bound, an
    operation may wrap or reads memory, or TVM's analyzer knows no more of an operation than the
    limits of its type.
    """
    if has_any(expr, tir.Load) or not never_wraps(expr):
        return None
    if any(map(_is_by_minus_one, nodes_in(expr, tir.Div))):
        # `CompactBufferAllocation` writes that of a buffer that is read backwards.
        changed = structural_map(
            expr, [(tir.Div, lambda op: -op.a if _is_by_minus_one(op) else op)]
        )
        expr = tir.Analyzer().simplify(changed)
    analyzer, known = tir.Analyzer(), {bound.variable.__chandle__(): bound for bound in bounds}
    used: dict[int, Bound] = {}
    for variable in nodes_in(expr, tir.Var):
        bound = known.get(variable.__chandle__())
        # Without a bound the analyzer takes the limits of the variable's type for one.
        limits = ConstIntBound(ConstIntBound.NEG_INF, ConstIntBound.POS_INF)
        if bound is not None:
            used[variable.__chandle__()] = bound
            limits = ConstIntBound(bound.lower, bound.upper)
        analyzer.update(variable, limits, override=True)
    if any(_is_at_limit(node, analyzer) for node in nodes_in(expr, tir.Expr)):
        return None
    most = int(analyzer.const_int_bound(expr).max_value)
    return None if most >= _LIMIT else (most, tuple(used.values()))


def _is_by_minus_one(op: tir.Div) -> bool:
    return isinstance(op.b, tir.IntConstant) and op.b.value == -1


def _is_at_limit(node: tir.Expr, analyzer: tir.Analyzer) -> bool:
    """Return whether the analyzer's range of an operation ends at a limit of the operation's type.

    Limits of 64 bits are infinite for the analyzer, and stay so in what is computed of them.
    """
    if isinstance(node, (tir.Var, tir.IntConstant, Op)) or type(node.ty) is not tir.PrimType:
        return False  # A name or a pointer among the operands of a call is no number.
    dtype = node.ty.dtype
    if str(dtype) == "bool" or dtype.bits >= 64:
        return False
    found = analyzer.const_int_bound(node)
    least, most = int(min_value(dtype).value), int(max_value(dtype).value)
    return int(found.min_value) == least or int(found.max_value) == most


def declared_bounds(func: BaseFunc, attribute: str = UPPER_BOUND) -> dict[str, int]:
    """Return the bounds that a function declares in an attribute, by the variables' names."""
    given = func.attrs.get(attribute) if func.attrs else None
    return {str(name): int(bound) for name, bound in (given or {}).items()}


def variables_of_params(func: tir.PrimFunc) -> list[tir.Var]:
    """Return the variables that have a value when a function begins, some more than once."""
    arrays = [param.ty for param in func.params if tir.is_buffer(param)]
    sizes = [part for ty in arrays for part in (*ty.shape, *ty.strides)]
    return [*func.params, *(variable for size in sizes for variable in nodes_in(size, tir.Var))]


def names_of_sizes(functions: Iterable[tir.PrimFunc]) -> list[str]:
    """Return the names of the numbers that have a value when functions begin."""
    known = [var for func in functions for var in variables_of_params(func)]
    return [str(var.name) for var in known if not tir.is_buffer(var)]


def bounds_at_entry(func: tir.PrimFunc, named: Mapping[str, int]) -> tuple[list[Bound], ...]:
    """Return the bounds of the variables that have a value when a function begins.

    The first result has upper bounds alone. The second one has the lower bound 0 besides, as sizes
    of arrays have. Upper bounds are those of the function's attribute ``tir_var_upper_bound``, and
    `named`; a name stands for each variable of this name.
    """
    bounds = {**declared_bounds(func), **named}
    found = [v for v in variables_of_params(func) if v.name in bounds]
    return tuple([Bound(v, lower, bounds[v.name]) for v in found] for lower in (NO_LOWER, 0))


def does_not_wrap(dtype: Any) -> bool:
    """Return whether sums and products of a type, scalar or vector, are those of whole numbers."""
    return bool(dtype.bits >= 32 and str(dtype).startswith("int"))


def never_wraps(expr: Any) -> bool:
    """Return whether no sum, product or cast in an integer expression wraps."""
    return not any(map(_may_wrap, nodes_in(expr, *_MAY_WRAP)))


def _may_wrap(op: Any) -> bool:
    new = op.ty.dtype
    if isinstance(op, tir.Cast):
        old = op.value.ty.dtype
        if old.bits <= new.bits and old.type_code == new.type_code:
            return False
    return not does_not_wrap(new)
