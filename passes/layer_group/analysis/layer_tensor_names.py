# SPDX-License-Identifier: Apache-2.0
"""Names for the tensors of a Relax function: what variables, tuples and parts of them stand for."""

from __future__ import annotations

from typing import Any

from passes.ir import element_type, tir, unique_name
from passes.relax import rx


class TensorNames:
    """The tensors of a function, by the names that its network knows them by."""

    def __init__(self) -> None:
        self.of_var: dict[int, Any] = {}  # A name, or a list for a tuple.
        self.values: dict[str, Any] = {}
        self.shapes: dict[str, tuple[int, ...] | None] = {}
        self.bits: dict[str, int] = {}
        self.devices: dict[str, str] = {}
        self.constants: list[str] = []
        self._taken: set[str] = set()

    def new(self, var: Any) -> Any:
        """Name the tensors that a variable stands for."""
        names = self._name_all(str(var.name), var, var.ty)
        self.of_var[var.__chandle__()] = names
        return names

    def _name_all(self, hint: str, value: Any, ty: Any) -> Any:
        if isinstance(ty, rx.TupleType):
            return [
                self._name_all(f"{hint}.{i}", rx.TupleGetItem(value, i), part)
                for i, part in enumerate(ty.fields)
            ]
        # A colon is what tells the names of layers from those of tensors.
        name = unique_name(hint.replace(":", "_"), self._taken, "_")
        self.values[name] = value
        self.shapes[name], self.bits[name] = _shape_and_bits(ty)
        device = getattr(ty, "vdevice", None)
        self.devices[name] = "" if device is None else str(device)
        return name

    def of(self, expr: Any) -> Any:
        """Return the name of the tensor that an expression is; nested lists for a tuple."""
        if isinstance(expr, (tir.Var, rx.Constant)):
            key = expr.__chandle__()
            if key not in self.of_var and isinstance(expr, rx.Constant):
                self.of_var[key] = self._name_all("constant", expr, expr.ty)
                self.constants += flat(self.of_var[key])
            return self.of_var[key] if key in self.of_var else self.new(expr)
        if isinstance(expr, rx.Tuple):
            return [self.of(part) for part in expr.fields]
        if isinstance(expr, rx.TupleGetItem):
            whole = self.of(expr.tuple_value)
            return whole[int(expr.index)] if isinstance(whole, list) else whole
        return []


def flat(names: Any) -> list[str]:
    """Return the names in nested lists of names."""
    if isinstance(names, str):
        return [names]
    return [name for part in names for name in flat(part)]


def tuple_uses(function: rx.Function, number: int) -> tuple[set[tuple[int, int]], set[int]]:
    """Return the fields that a block takes out of each tuple, and variables used otherwise."""
    taken_out, whole = set(), _handles(function.body.body)
    for at, block in enumerate(function.body.blocks):
        for binding in block.bindings:
            value = binding.value
            here = at == number and isinstance(binding, rx.VarBinding)
            if here and isinstance(value, rx.TupleGetItem):
                taken_out.add((value.tuple_value.__chandle__(), int(value.index)))
            else:
                whole |= _handles(value)
    return taken_out, whole


def _handles(expr: Any) -> set[int]:
    return {var.__chandle__() for var in rx.free_vars(expr)}


def _shape_and_bits(ty: Any) -> tuple[tuple[int, ...] | None, int]:
    """Return a tensor's extents, None where they are not known, and the bits of its elements."""
    extents = getattr(getattr(ty, "shape", None), "values", None)
    if extents is None or not all(isinstance(n, tir.IntConstant) for n in extents):
        return None, 8
    bits = 8 if ty.dtype is None else element_type(ty.dtype).nbits
    return tuple(int(n.value) for n in extents), bits
