# SPDX-License-Identifier: Apache-2.0
"""Bytes of Relax tensors: a number, times the symbolic factors of the shape that have no bound."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, reduce
from typing import Any

from passes.ir import (
    LOWER_BOUND,
    POSTORDER,
    Bound,
    InternalError,
    declared_bounds,
    items,
    most_of,
    nodes_in,
    structural_map,
    tir,
)
from passes.planning import ADDRESS_LIMIT
from passes.relax import rx
from passes.relax.bindings import signature_variables
from passes.relax.facts import LeftToRuntime, Weight
from target_hw.memory import is_byte_count


class UnknownSizeError(ValueError):
    """The reason why the bytes of a tensor are not known at compile time."""


@dataclass(frozen=True, eq=False)
class Size:
    """The bytes of a tensor: `count` bytes for each of the `factors`' product."""

    count: int  # Bytes; of dimensions with an upper bound, the most that they can be
    # Symbolic dimensions without an upper bound; empty where the bytes are a constant.
    factors: tuple[Any, ...] = ()
    bounds: tuple[Bound, ...] = ()  # The bounds that `count` rests on


class Sizes:
    """Bytes of the tensors of one function.

    As in `StaticPlanBlockMemory`, bounds are for symbolic variables of the function's signature,
    by name; one without a lower bound is at least 0.
    """

    def __init__(self, func: rx.Function, upper_bounds: Mapping[str, int]) -> None:
        upper = {**upper_bounds, **declared_bounds(func)}
        lower = declared_bounds(func, LOWER_BOUND)
        named = [(str(variable.name), variable) for variable in signature_variables(func)]
        self.variables = tuple(sorted({name for name, _ in named}))
        self._bounds = [
            _checked(variable, lower.get(name, 0), upper[name])
            for name, variable in named
            if name in upper
        ]
        self._analyzer = tir.Analyzer()

    def of(self, shape: Sequence[Any], dtype: Any) -> Size:
        """Return the bytes of a tensor."""
        count = element_bytes(dtype)
        factors: list[Any] = []
        used: dict[int, Bound] = {}
        for dim in shape:
            for factor in [dim] if type(dim) is tir.IntConstant else self._factors(dim):
                known = self._most(factor, used)
                if known is None:
                    factors.append(factor)
                else:
                    count *= known
        if count >= ADDRESS_LIMIT:
            raise UnknownSizeError(f"{count} bytes are above 2**62")
        return Size(count, tuple(factors) if count else (), tuple(used.values()))

    def constant(self, shape: Sequence[Any], dtype: Any) -> int:
        """Return the bytes of a tensor whose bytes have an upper bound."""
        size = self.of(shape, dtype)
        if size.factors:
            raise UnknownSizeError(f"dimension {size.factors[0]} has no upper bound")
        return size.count

    def _most(self, factor: Any, used: dict[int, Bound]) -> int | None:
        """Return the most that a factor can be, and note the bounds that this rests on."""
        if isinstance(factor, tir.IntConstant):
            return max(int(factor.value), 0)
        found = most_of(factor, self._bounds)
        if found is None:
            return None
        most, rests_on = found
        used.update((bound.variable.__chandle__(), bound) for bound in rests_on)
        return max(most, 0)

    def _factors(self, dim: Any) -> list[Any]:
        """Return what a dimension is the product of, a constant first where there is one.

        One with an upper bound stays whole. Only variables are taken out of a product one by one:
        of two other factors both may be negative.
        """
        if most_of(dim, self._bounds) is not None:
            return [dim]
        simple = self._analyzer.simplify(dim)
        multiple = self._analyzer.modular_set(simple)
        content = math.gcd(int(multiple.coeff), int(multiple.base))
        constant = [tir.IntConstant("int64", content)] if content > 1 else []
        simple = self._analyzer.simplify(simple // content) if content > 1 else simple
        flat = list(_flattened(simple))
        is_plain = all(isinstance(factor, (tir.Var, tir.IntConstant)) for factor in flat)
        return [*constant, *(flat if is_plain else [simple])]


def weights_within(name: str, ty: Any, sizes: Sizes) -> Iterator[Weight | LeftToRuntime]:
    """Yield the weights of a parameter; of a tuple each field, as ``name[0]``."""
    if isinstance(ty, rx.TupleType):
        for index, field in enumerate(ty.fields):
            yield from weights_within(f"{name}[{index}]", field, sizes)
    elif not isinstance(ty, rx.TensorType):
        yield LeftToRuntime(name, "a weight that is no tensor")
    elif not isinstance(ty.shape, rx.ShapeExpr) or ty.dtype is None:
        yield LeftToRuntime(name, "a weight whose shape or type is not known")
    else:
        try:
            yield Weight(name, sizes.constant(items(ty.shape.values), ty.dtype.dtype))
        except UnknownSizeError as error:
            yield LeftToRuntime(name, f"a weight whose {error}")


def value_of(expr: Any, values: Callable[[tir.Var], int]) -> int:
    """Return a symbolic expression's value, with values for its variables.

    Raises UnknownSizeError where it has none, such as where a number is divided by 0.
    """
    numbers = {v.__chandle__(): tir.IntConstant(v.ty, values(v)) for v in nodes_in(expr, tir.Var)}
    try:
        number = structural_map(
            expr, [(tir.Var, lambda variable: numbers[variable.__chandle__()])], POSTORDER
        )
        value = tir.Analyzer().simplify(number)
    except InternalError:
        value = None
    if not isinstance(value, tir.IntConstant):
        raise UnknownSizeError(f"the size {expr}")
    return int(value.value)


@cache
def element_bytes(dtype: Any) -> int:
    """Return the bytes of one element, a vector's lanes together, rounded up."""
    return (int(dtype.bits) * int(dtype.lanes) + 7) // 8


def _flattened(expr: Any) -> Iterator[Any]:
    if isinstance(expr, tir.Mul):
        yield from _flattened(expr.a)
        yield from _flattened(expr.b)
    else:
        yield expr


def product(factors: Sequence[Any]) -> Any:
    """Return the product of symbolic factors as one expression."""
    return reduce(operator.mul, factors)


def _checked(variable: Any, lower: int, upper: Any) -> Bound:
    if not is_byte_count(upper) or upper < 1 or upper < lower:
        raise ValueError(
            f"the upper bound of {str(variable.name)!r} must be an integer of at least "
            f"{max(lower, 1)}, got {upper!r}"
        )
    return Bound(variable, lower, upper)
