# SPDX-License-Identifier: Apache-2.0
"""Expressions of indices evaluated by numpy, at many values of their variables at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from passes.ir import tir
from passes.ir.structural import nodes_in

Values = npt.NDArray[Any]


def _divided(a: Values, b: Values) -> Values:
    """Divide as C does: towards zero for integers."""
    if a.dtype.kind == "f":
        return np.asarray(a / b)
    return np.asarray(np.sign(a) * np.sign(b) * (np.abs(a) // np.abs(b)))


_OPERATIONS: dict[str, Callable[..., Any]] = {
    **{"Add": np.add, "Sub": np.subtract, "Mul": np.multiply, "Div": _divided, "Mod": np.fmod},
    **{"FloorDiv": np.floor_divide, "FloorMod": np.mod, "Min": np.minimum, "Max": np.maximum},
    **{"And": np.logical_and, "Or": np.logical_or, "Not": np.logical_not},
    **{"EQ": np.equal, "NE": np.not_equal, "LT": np.less, "LE": np.less_equal},
    **{"GT": np.greater, "GE": np.greater_equal, "LShift": np.left_shift},
    **{"RShift": np.right_shift, "BitwiseAnd": np.bitwise_and, "Select": np.where},
    **{"if_then_else": np.where, "floor": np.floor, "ceil": np.ceil, "trunc": np.trunc},
    **{"round": np.rint, "fabs": np.abs, "likely": np.asarray, "BitwiseOr": np.bitwise_or},
    **{"BitwiseXor": np.bitwise_xor},
}
"""Functions that evaluate the classes of expressions, and the operators of calls."""

_OPERANDS = {"Not": ("a",), "Select": ("condition", "true_value", "false_value")}
"""The fields of an expression's operands, where they are not ``a`` and ``b``."""


class NotAnIndexError(ValueError):
    """An expression that holds more than integers, variables and what is known of them."""


def rounds_products(expr: Any) -> bool:
    """Return whether an expression has products of floats, which `values_of` may round or not."""
    return any(str(product.ty.dtype).startswith("float") for product in nodes_in(expr, tir.Mul))


def values_of(expr: Any, of: Mapping[int, Values], fused: bool = False) -> Values:
    """Evaluate an expression of indices in the arithmetic that TVM compiles it to.

    `of` has the values of each variable, by its handle: arrays that broadcast against each other.
    `fused` says whether the compiler makes one instruction of a product of floats and a sum, and
    does not round between the two. Raises NotAnIndexError for a variable that is not given, or an
    operation that is not known, such as a load.
    """
    kind = type(expr).__name__
    if isinstance(expr, tir.Var):
        known = of.get(expr.__chandle__())
        if known is None:
            raise NotAnIndexError(f"variable {expr.name!r} is not known")
        return known
    if isinstance(expr, (tir.IntConstant, tir.FloatConstant)):
        return np.asarray(expr.value, dtype=_dtype(expr))
    if isinstance(expr, tir.Cast):
        return values_of(expr.value, of, fused).astype(_dtype(expr))
    if fused and kind in ("Add", "Sub") and _dtype(expr).kind == "f":
        return _rounded_once(expr, of)
    if isinstance(expr, tir.Call):
        kind, operands = str(getattr(expr.op, "name", "")).split(".")[-1], expr.args
    else:
        operands = [getattr(expr, name, None) for name in _OPERANDS.get(kind, ("a", "b"))]
    if kind not in _OPERATIONS:
        raise NotAnIndexError(f"{type(expr).__name__} is no index arithmetic")
    return np.asarray(_OPERATIONS[kind](*(values_of(part, of, fused) for part in operands)))


def _rounded_once(expr: Any, of: Mapping[int, Values]) -> Values:
    """Return a sum with a product that is not rounded: twice as many bits hold it."""
    parts = (expr.a, expr.b)
    if all(isinstance(part, tir.Mul) for part in parts) or _dtype(expr).itemsize > 4:
        raise NotAnIndexError("it is not known which product is rounded, or no type holds one")

    def wide(part: Any) -> Values:
        return values_of(part, of, fused=True).astype(np.float64)

    summands = (wide(x.a) * wide(x.b) if isinstance(x, tir.Mul) else wide(x) for x in parts)
    total = _OPERATIONS[type(expr).__name__](*summands)
    return np.asarray(total).astype(_dtype(expr))


def _dtype(expr: Any) -> np.dtype[Any]:
    """Return numpy's type for an expression's, or for the lanes of a vector."""
    try:
        return np.dtype(str(expr.ty.dtype).partition("x")[0])
    except TypeError:
        raise NotAnIndexError(f"{expr.ty.dtype} is no type of indices") from None
