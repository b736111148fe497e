# SPDX-License-Identifier: Apache-2.0
"""Functions of loops, which a CPU calls where a chip runs the loops; and ``memcpy``.

Networks repeat their blocks, so a group has many loops that differ in nothing but the buffers and
the rows that they work on. As functions of these, equal ones are one function, which is compiled
once: compilers take more than twice as long for a kernel that is twice as long.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import tirx
from tvm.ir import CallingConv, GlobalVar, PointerType, PrimType, Var
from tvm.ir.expr import Call
from tvm.ir.prim.expr import FloorDiv, FloorMod
from tvm.tirx import (
    BufferLoad,
    Cast,
    DeclBuffer,
    Evaluate,
    PrimFunc,
    SeqStmt,
    address_of,
    call_extern,
)
from tvm.tirx.analysis import undefined_vars

from passes.ir import Callbacks, structural_mutate
from passes.ir.operators import reinterpreted
from passes.layer_group.rewrite.slice_values import INDEX, number

_SCALAR = "int32"
"""The type of numbers that a function is given. What is narrowed in a caller stays so."""

OPAQUE = 8
"""TVM's ``kOpaque``: operator fusion leaves a kernel of this pattern alone."""


class LoopFunctions:
    """The functions that one kernel calls, as they are written."""

    def __init__(self) -> None:
        self.functions: dict[GlobalVar, PrimFunc] = {}
        self._copy: GlobalVar | None = None

    def copied(self, to: Any, source: Any, size: Any) -> Any:
        """Return a call that copies so many bytes from one address to another."""
        if self._copy is None:
            self._copy = self._add("copy_bytes", *_copy())
        return self._call(self._copy, [to, source, Cast(_SCALAR, size)])

    def called(self, loops: Any, name: str) -> Any:
        """Return a call in the place of loops.

        The function is given the addresses and the numbers that the loops take from outside.
        It knows no bounds of these, and `FlattenBuffer` takes a quotient or a remainder of such a
        number and a loop variable apart wrongly (``docs/known-faults.md`` has the programs): it is
        kept from looking into them.

        Nothing is said about its buffers not to overlap, because some lie in the place of others;
        LLVM may put it in the place of a call, and then has to know of no difference between its
        buffers and those of other functions.
        """
        parameters, arguments, declared = [], [], []
        new: dict[int, Any] = {}
        for at, var in enumerate(undefined_vars(loops)):
            if tirx.is_buffer_var(var):
                ty = var.ty
                pointer = Var(f"memory{at}", PointerType(PrimType("void"), ty.storage_scope))
                buffer = tirx.decl_buffer(
                    ty.shape, str(ty.dtype.dtype), var.name, scope=ty.storage_scope, layout=None
                )
                parameters.append(pointer)
                arguments.append(address(var, [number(0)] * len(ty.shape)))
                declared.append(DeclBuffer(buffer, data=pointer))
                new[var.__chandle__()] = buffer
            elif isinstance(var.ty, PointerType):
                parameters.append(Var(f"memory{at}", var.ty))
                arguments.append(var)
                new[var.__chandle__()] = parameters[-1]
            else:
                parameters.append(Var(var.name, PrimType(_SCALAR)))
                arguments.append(Cast(_SCALAR, var))
                new[var.__chandle__()] = Cast(INDEX, parameters[-1])

        def on_var(var: Var, _mutator: Any) -> Any:
            return new.get(var.__chandle__(), var)

        def on_division(division: Any, _mutator: Any) -> Any:
            return reinterpreted(structural_mutate(division, [(Var, on_var)]))

        callbacks: Callbacks = [
            (FloorDiv, on_division),
            (FloorMod, on_division),
            (Var, on_var),
        ]
        body = structural_mutate(loops, callbacks)
        body = SeqStmt([*declared, body]) if declared else body
        return self._call(self._add(name, parameters, body), arguments)

    def _call(self, variable: GlobalVar, arguments: Sequence[Any]) -> Any:
        return Evaluate(Call(variable, arguments, ret_ty=self.functions[variable].ret_type))

    def _add(self, name: str, parameters: Sequence[Var], body: Any) -> GlobalVar:
        """Add a function that is called by its symbol, as it is.

        TVM makes no packed function of what has a calling convention.
        """
        function = PrimFunc(parameters, body)
        convention = int(CallingConv.C_PACKED_FUNC)
        for key, value in (("calling_conv", convention), ("s_tir", True), ("op_pattern", OPAQUE)):
            function = function.with_attr(key, value)
        variable = GlobalVar(name)
        self.functions[variable] = function
        return variable


def address(buffer: Var, at: Sequence[Any]) -> Any:
    """Return the address of an element of a buffer."""
    return address_of(BufferLoad(buffer, at))


def _copy() -> tuple[tuple[Var, ...], Any]:
    """Return the parameters and the body of a function that copies bytes.

    The size becomes unsigned here and not where it is worked out: TVM looks for its bounds there,
    and knows of no unsigned number for what is below zero where it overestimates.
    """
    to, source = (Var(name, PointerType(PrimType("void"))) for name in ("to", "source"))
    size = Var("size", PrimType(_SCALAR))
    copy = call_extern("handle", "memcpy", to, source, Cast("uint64", size))
    return (to, source, size), Evaluate(copy)
