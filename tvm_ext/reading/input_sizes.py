# SPDX-License-Identifier: Apache-2.0
"""Sizes of a network's inputs that its file leaves open, as a user names them."""

from __future__ import annotations

import math
import shlex
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple

from tvm import relax

from passes.ir import LOWER_BOUND, IRModule, declared_bounds, nodes_in, tir
from passes.relax import functions_in_order, place_of, rx, signature_variables, value_of
from tvm_ext.tensor_names import number_of_inputs
from tvm_ext.text import did_you_mean, formula


@dataclass(frozen=True)
class InputSizes:
    """Sizes for what a network leaves open: `shapes` of inputs, and values for dimensions.

    Both are by name. A size that is not an integer of at least 1 is a ValueError.
    """

    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    bind: Mapping[str, int] = field(default_factory=dict)  # By names of symbolic dimensions

    def __post_init__(self) -> None:
        for given in (self.shapes, self.bind):
            if not isinstance(given, Mapping):
                raise ValueError(f"sizes must be a mapping from names, got {given!r}")
        named = [*self.bind.items()]
        named += [(name, size) for name, shape in self.shapes.items() for size in shape]
        for name, size in named:
            if not isinstance(size, int) or isinstance(size, bool) or size < 1:
                raise ValueError(f"size of {name!r}: needs an integer above 0, got {size!r}")

    @classmethod
    def parse(cls, shapes: Iterable[str], bindings: Iterable[str]) -> InputSizes:
        """Read ``NAME=1,3,320,320``, one input a text, and ``NAME=8``, with commas between."""
        bind = (part for text in bindings for part in text.split(","))
        return cls(
            dict(_parsed(text, "NAME=1,3,320,320") for text in shapes),
            {name: size for name, (size,) in (_parsed(text, "NAME=8") for text in bind)},
        )

    def __bool__(self) -> bool:
        """Return whether any size is named."""
        return bool(self.shapes or self.bind)

    def apply(self, mod: IRModule) -> IRModule:
        """Return the module with these sizes in the place of its symbolic dimensions.

        Raises ValueError when no Relax function has such an input or dimension, or when a shape
        contradicts a size that is fixed, or a size a bound that the function declares.
        """
        if not self:
            return mod
        functions = dict(functions_in_order(mod))
        if not functions:
            raise ValueError("sizes of inputs are for networks: there is no Relax function")
        inputs = {str(p.name) for func in functions.values() for p in _inputs(func)}
        check_known("input", self.shapes, inputs)
        check_known("symbolic dimension", self.bind, open_dimensions(mod))
        for variable, func in functions.items():
            own = {str(p.name): _shape_of(p) for p in _inputs(func)}
            named = {v: str(v.name) for v in signature_variables(func)}
            bound = {v: self.bind[name] for v, name in named.items() if name in self.bind}
            shapes = {name: shape for name, shape in self.shapes.items() if name in own}
            if values := dimension_values(shapes, own, bound):
                _check_declared(variable, func, values)
                mod = relax.transform.BindSymbolicVars(values, str(variable.name_hint))(mod)
        return mod


def dimension_values(
    shapes: Mapping[str, tuple[int, ...]],
    inputs: Mapping[str, list[Any] | None],
    known: Mapping[Any, int] = MappingProxyType({}),
) -> dict[Any, int]:
    """Return the value of each open dimension that shapes fix, and those that are known.

    Of the inputs' own dimensions, numbers are fixed, and so are expressions by their variables;
    None is no known shape. Raises ValueError when there is no such input, or sizes contradict one
    another.
    """
    check_known("input", shapes, inputs)
    values = dict(known)
    made: list[tuple[str, int, Any, int]] = []
    for name, shape in shapes.items():
        own = inputs[name]
        if own is None or len(own) != len(shape):
            there = "no known shape" if own is None else f"{len(own)} dimensions"
            raise ValueError(f"input {name!r} has {there}, and {len(shape)} are given")
        for at, (dimension, size) in enumerate(zip(own, shape, strict=True)):
            is_open = isinstance(dimension, tir.Var | tuple)
            there = values.setdefault(dimension, size) if is_open else dimension
            if not isinstance(there, int):
                made.append((name, at, there, size))
            elif there != size:
                raise ValueError(f"input {name!r}: dimension {at} is {there}, not {size}")
    for name, at, dimension, size in made:
        value: int | str = f"{formula(dimension)} for variables that are to be bound"
        with suppress(KeyError):
            value = value_of(dimension, values.__getitem__)
        if value != size:
            raise ValueError(f"input {name!r}: dimension {at} is {value}, not {size}")
    return values


def _check_declared(variable: Any, func: rx.Function, values: Mapping[Any, int]) -> None:
    """Raise ValueError for a value that is outside of the bounds that a function declares."""
    for dimension, size in values.items():
        name = str(dimension.name)
        least = declared_bounds(func, LOWER_BOUND).get(name, 1)
        most = declared_bounds(func).get(name, math.inf)
        if not least <= size <= most:
            above = "" if most == math.inf else f", and at most {most}"
            raise ValueError(
                f"function {str(variable.name_hint)!r}: {name!r} is declared to be at least "
                f"{least}{above}, got {size}"
            )


def open_dimensions(mod: IRModule) -> list[str]:
    """Return the names of the symbolic dimensions of a module's Relax functions, sorted."""
    functions = functions_in_order(mod)
    return sorted({str(v.name) for _, func in functions for v in signature_variables(func)})


class Dimension(NamedTuple):
    """A symbolic dimension of a module's Relax functions."""

    name: str
    place: str  # With the input and axis that give it: ``n (axis 0 of x)``
    sizes: tuple[int, ...]  # The upper bounds that functions have for it, in increasing order
    is_open: bool  # Whether a function has it without a bound


def dimensions(
    mod: IRModule, upper_bounds: Mapping[str, int] = MappingProxyType({})
) -> list[Dimension]:
    """Return the symbolic dimensions of a module, sorted by name.

    Bounds are those that functions declare, and else `upper_bounds`.
    """
    places: dict[str, str] = {}
    bounds: defaultdict[str, list[int | None]] = defaultdict(list)
    for _, func in functions_in_order(mod):
        own = {str(v.name) for v in nodes_in(func, tir.Var) if isinstance(v.ty, tir.PrimType)}
        bounded = {**upper_bounds, **declared_bounds(func)}.items()
        known = {name: size for name, size in bounded if name in own}
        for name in {**dict.fromkeys(str(v.name) for v in signature_variables(func)), **known}:
            if places.get(name, name) == name:
                places[name] = place_of(func, name)
            bounds[name].append(known.get(name))
    return [
        Dimension(
            name, places[name], tuple(sorted({size for size in of if size is not None})), None in of
        )
        for name, of in sorted(bounds.items())
    ]


def bind_hint(dimensions: Iterable[str]) -> str:
    """Return the option that gives each of these dimensions a value."""
    return f"--bind {shlex.quote(','.join(f'{name}=8' for name in dimensions))}"


def _inputs(func: rx.Function) -> Sequence[Any]:
    """Return the parameters of a function that are no weights."""
    return list(func.params)[: number_of_inputs(func) or None]


def _parsed(text: str, example: str) -> tuple[str, tuple[int, ...]]:
    name, _, rest = text.rpartition("=")
    sizes = [size.strip() for size in rest.split(",") if size.strip()]
    if not name.strip() or not sizes:
        raise ValueError(f"expected {example}, got {text!r}")
    try:
        return name.strip(), tuple(map(int, sizes))
    except ValueError as error:
        raise ValueError(f"{text}: sizes are integers, as in {example}") from error


def _shape_of(parameter: rx.Var) -> list[Any] | None:
    shape = getattr(parameter.ty, "shape", None)
    if not isinstance(shape, rx.ShapeExpr):
        return None
    return [size.value if isinstance(size, tir.IntConstant) else size for size in shape.values]


def check_known(what: str, given: Iterable[str], known: Iterable[str]) -> None:
    """Raise ValueError, with what may be meant, for a name that is not known."""
    there = sorted(known)
    for name in given:
        if name not in there:
            some = ", ".join(there[:8]) + (", ..." if len(there) > 8 else "")
            hint = f": {did_you_mean(name, there)}there are: {some}" if there else ", nor any other"
            raise ValueError(f"there is no {what} {name!r}{hint}")
