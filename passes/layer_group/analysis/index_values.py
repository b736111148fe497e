# SPDX-License-Identifier: Apache-2.0
"""The values of an index expression at all values of its variables at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from tvm.ir import Var
from tvm.ir.expr import Call
from tvm.tirx import Cast, FloatImm, IntImm, Not, Select

Values = npt.NDArray[Any]

_BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "Add": np.add,
    "Sub": np.subtract,
    "Mul": np.multiply,
    "FloorDiv": np.floor_divide,
    "FloorMod": np.mod,
    "Min": np.minimum,
    "Max": np.maximum,
    "And": np.logical_and,
    "Or": np.logical_or,
    "EQ": np.equal,
    "NE": np.not_equal,
    "LT": np.less,
    "LE": np.less_equal,
    "GT": np.greater,
    "GE": np.greater_equal,
    "LShift": np.left_shift,
    "RShift": np.right_shift,
    "BitwiseAnd": np.bitwise_and,
}

_CALLS: dict[str, Callable[[Any], Any]] = {
    "floor": np.floor,
    "ceil": np.ceil,
    "trunc": np.trunc,
    "round": np.rint,
    "fabs": np.abs,
}


class NotAnIndexError(ValueError):
    """An expression that holds more than integers, variables and what is known of them."""


def values_of(expr: Any, of: Mapping[int, Values]) -> Values:
    """Evaluate an expression of indices in the arithmetic that TVM compiles it to.

    `of` has the values of each variable, by its handle: arrays that broadcast against each other.

    Raises NotAnIndexError when a variable is not given, or an operation is not known, such as a
    load.
    """
    kind = type(expr).__name__
    if isinstance(expr, Var):
        known = of.get(expr.__chandle__())
        if known is None:
            raise NotAnIndexError(f"variable {expr.name!r} is not known")
        return known
    if isinstance(expr, (IntImm, FloatImm)):
        return np.asarray(expr.value, dtype=_dtype(expr))
    if kind in _BINARY:
        return np.asarray(_BINARY[kind](values_of(expr.a, of), values_of(expr.b, of)))
    if kind in ("Div", "Mod"):
        return _truncated(kind, values_of(expr.a, of), values_of(expr.b, of))
    if isinstance(expr, Not):
        return np.logical_not(values_of(expr.a, of))
    if isinstance(expr, Cast):
        return values_of(expr.value, of).astype(_dtype(expr))
    if isinstance(expr, Select):
        parts = (expr.condition, expr.true_value, expr.false_value)
        return np.where(*(values_of(part, of) for part in parts))
    if isinstance(expr, Call):
        name = str(getattr(expr.op, "name", "")).split(".")[-1]
        if name == "if_then_else":
            return np.where(*(values_of(part, of) for part in expr.args))
        if name in _CALLS and len(expr.args) == 1:
            return np.asarray(_CALLS[name](values_of(expr.args[0], of)))
    raise NotAnIndexError(f"{kind} is no index arithmetic")


def _truncated(kind: str, a: Values, b: Values) -> Values:
    """Divide as C does: towards zero for integers."""
    if a.dtype.kind == "f":
        return np.asarray(a / b if kind == "Div" else np.fmod(a, b))
    quotient = np.sign(a) * np.sign(b) * (np.abs(a) // np.abs(b))
    return np.asarray(quotient if kind == "Div" else a - quotient * b)


def _dtype(expr: Any) -> np.dtype[Any]:
    """Return numpy's type for an expression's."""
    try:
        return np.dtype(str(expr.ty.dtype))
    except TypeError:
        raise NotAnIndexError(f"{expr.ty.dtype} is no type of indices") from None
