"""Bytes of Relax tensors, or upper bounds of them where a shape has symbolic dimensions."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from tvm import relax
from tvm.tirx import IntImm

from passes.ir.symbolic_bounds import Bound, SymbolicBounds
from passes.planning.problem import ADDRESS_LIMIT
from target_hw.memory import is_byte_count

UPPER_BOUND = "tir_var_upper_bound"
LOWER_BOUND = "tir_var_lower_bound"


class UnknownSizeError(ValueError):
    """Why the bytes of a tensor cannot be said at compile time."""


class Sizes:
    """Bytes of the tensors of one function.

    As in `StaticPlanBlockMemory`, bounds are for symbolic variables of the function's signature,
    by name; one without a lower bound is at least 0.

    Parameters
    ----------
    func : tvm.relax.Function
        Its attributes ``tir_var_upper_bound`` and ``tir_var_lower_bound`` hold.
    upper_bounds : mapping of str to int
        Used for the variables that the attribute does not name.

    Raises
    ------
    ValueError
        When a bound is no positive integer, or below the lower one.
    """

    def __init__(self, func: relax.Function, upper_bounds: Mapping[str, int]) -> None:
        bounds = []
        upper = {**upper_bounds, **_attribute(func, UPPER_BOUND)}
        lower = _attribute(func, LOWER_BOUND)
        for variable in relax.analysis.tir_vars_in_type(
            relax.FuncType([param.ty for param in func.params], func.ret_ty)
        ):
            name = str(variable.name)
            if name in upper:
                bounds.append(_checked(variable, lower.get(name, 0), upper[name]))
        self._bounds = SymbolicBounds(bounds)

    def bytes_of(self, shape: Sequence[Any], dtype: Any) -> tuple[int, tuple[Bound, ...]]:
        """Return the bytes that a tensor has at most, and the bounds that this rests on.

        Raises
        ------
        UnknownSizeError
            When a dimension has no upper bound, or when the bytes do not fit 62 bits.
        """
        dims = []
        used: dict[int, Bound] = {}
        for dim in shape:
            if isinstance(dim, IntImm):
                dims.append(int(dim.value))
                continue
            found = self._bounds.most(dim)
            if found is None:
                raise UnknownSizeError(f"dimension {dim} has no upper bound")
            most, rests_on = found
            dims.append(max(most, 0))
            used.update((bound.variable.__chandle__(), bound) for bound in rests_on)
        size = math.prod(dims) * element_bytes(dtype)
        if size >= ADDRESS_LIMIT:
            raise UnknownSizeError(f"{size} bytes are above 2**62")
        return size, tuple(used.values())


def element_bytes(dtype: Any) -> int:
    """Return the bytes of one element, a vector's lanes together, rounded up."""
    return (int(dtype.bits) * int(dtype.lanes) + 7) // 8


def _attribute(func: relax.Function, name: str) -> dict[str, int]:
    given = func.attrs.get(name) if func.attrs else None
    return {} if given is None else {str(key): int(value) for key, value in given.items()}


def _checked(variable: Any, lower: int, upper: Any) -> Bound:
    if not is_byte_count(upper) or upper < 1 or upper < lower:
        raise ValueError(
            f"the upper bound of {str(variable.name)!r} must be an integer of at least "
            f"{max(lower, 1)}, got {upper!r}"
        )
    return Bound(variable, lower, upper)
