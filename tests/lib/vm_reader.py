# SPDX-License-Identifier: Apache-2.0
"""A planned Relax function as its virtual machine runs it: what allocates, refers and lets go.

TVM's own passes say when that is: `LowerAllocTensor` makes a storage of each tensor that no plan
places, and `KillAfterLastUse` writes where the machine empties a register.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import tvm
import vm_model as machine
from tvm import relax
from tvm.ir import GlobalVar
from tvm.ir.transform import Sequential
from tvm.sym import Analyzer
from tvm.tirx import IntImm, Var
from tvm.tirx.analysis import undefined_vars

from passes.ir.operators import operator_name
from passes.ir.relax_operators import (
    ALLOC_PLANNED_STORAGE,
    ALLOC_PLANNED_TENSOR,
    ALLOC_STORAGE_AT_RUN_TIME,
    ALLOC_TENSOR_AT_RUN_TIME,
    Callee,
)
from passes.relax.bindings import classify, signature_variables

_ALLOC_STORAGE = (ALLOC_PLANNED_STORAGE, ALLOC_STORAGE_AT_RUN_TIME)
_ALLOC_TENSOR = (ALLOC_PLANNED_TENSOR, ALLOC_TENSOR_AT_RUN_TIME)

_AS_RUN = Sequential([relax.transform.LowerAllocTensor(), relax.transform.KillAfterLastUse()])


def read_machine_function(
    mod: tvm.IRModule, variable: GlobalVar, func: relax.Function
) -> machine.Function:
    """Read a function, given with a plan or without one."""
    alone = tvm.IRModule({variable: func}, global_infos=mod.global_infos)
    return _Reader(mod).function(_AS_RUN(alone)[variable])


class _Reader:
    def __init__(self, mod: tvm.IRModule) -> None:
        self._mod = mod
        self._storages: list[machine.Extent] = []

    def function(self, func: relax.Function) -> machine.Function:
        symbols = {var.__chandle__(): str(var.name) for var in signature_variables(func)}
        parameters = tuple(param.__chandle__() for param in func.params)
        body = self._body(func.body)
        return machine.Function(parameters, symbols, body, tuple(self._storages))

    def _body(self, expr: Any) -> machine.Body:
        if not isinstance(expr, relax.SeqExpr):
            return machine.Body((), _operand(expr))
        bindings = (binding for block in expr.blocks for binding in block.bindings)
        steps = tuple(step for binding in bindings for step in self._steps(binding))
        return machine.Body(steps, _operand(expr.body))

    def _steps(self, binding: Any) -> list[machine.Step]:
        register, value = binding.var.__chandle__(), binding.value
        if isinstance(binding, relax.MatchCast):
            learned = _symbols_of(binding.ty, value.ty)

            def learn(_run: machine.Run, frame: machine.Frame) -> None:
                frame.symbols.update(_known(learned, frame))

            return [learn, _refer(register, value)]
        if isinstance(value, relax.If):
            ways = self._body(value.true_branch), self._body(value.false_branch)
            return [lambda run, frame: run.branch(frame, register, ways)]
        if isinstance(value, relax.Function):
            raise machine.UnknownMemoryError("a closure")
        if isinstance(value, relax.Call):
            return [self._call(register, value)]
        return [_refer(register, value)]

    def _call(self, register: int, call: Any) -> machine.Step:
        name = operator_name(call.op)
        if name in _ALLOC_STORAGE:
            extents = _extents(call.args[0].ty)
            if not extents or not isinstance(call.args[1], IntImm):
                raise machine.UnknownMemoryError(
                    "a size or a device that is known at run time only"
                )
            nbytes, device = _product(extents), int(call.args[1].value)
            self._storages.append(nbytes)
            return lambda run, frame: run.allocate(frame, register, nbytes(frame.symbols), device)
        if name in _ALLOC_TENSOR:
            return _refer(register, call.args[0])
        callee, _ = classify(self._mod, call.op)
        if callee is Callee.ALIASES:
            return _refer(register, call.args[0])
        if callee in (Callee.FREES, Callee.PLANNED):
            emptied = call.args[0].__chandle__()
            return lambda run, frame: run.drop(frame, emptied)
        if callee is Callee.CALLS:
            return self._call_of_function(register, call)
        return lambda run, frame: run.refer(frame, register, None)

    def _call_of_function(self, register: int, call: Any) -> machine.Step:
        name, arguments = str(call.op.name_hint), list(map(_operand, call.args))
        symbols = [
            pair
            for param, argument in zip(self._mod[call.op].params, call.args, strict=True)
            for pair in _symbols_of(param.ty, argument.ty)
        ]

        def step(run: machine.Run, frame: machine.Frame) -> None:
            given = [argument(frame) for argument in arguments]
            run.call(frame, register, name, given, _known(symbols, frame))

        return step


def _refer(register: int, expr: Any) -> machine.Step:
    operand = _operand(expr)
    return lambda run, frame: run.refer(frame, register, operand(frame))


def _operand(expr: Any) -> machine.Operand:
    if isinstance(expr, relax.Var) and not isinstance(expr, GlobalVar):
        register = int(expr.__chandle__())
        return lambda frame: frame.read(register)
    if isinstance(expr, relax.Tuple):
        fields = list(map(_operand, expr.fields))
        return lambda frame: [field(frame) for field in fields]
    if isinstance(expr, relax.TupleGetItem):
        whole, index = _operand(expr.tuple_value), int(expr.index)

        def field_of(frame: machine.Frame) -> machine.Value:
            values = whole(frame)
            return values[index] if isinstance(values, list) else None

        return field_of
    return lambda _frame: None


def _known(symbols: Sequence[tuple[int, machine.Extent]], frame: machine.Frame) -> dict[int, int]:
    """Return the values that symbolic dimensions get where a frame's have theirs."""
    return {key: extent(frame.symbols) for key, extent in symbols}


def _symbols_of(pattern: Any, given: Any) -> Sequence[tuple[int, machine.Extent]]:
    """Return the symbolic dimensions that a type gives values to, from what is given."""
    if isinstance(pattern, relax.TupleType) and isinstance(given, relax.TupleType):
        return [
            pair
            for one, other in zip(pattern.fields, given.fields, strict=False)
            for pair in _symbols_of(one, other)
        ]
    wanted, there = _extents(pattern), _extents(given)
    return [
        (dim.__chandle__(), _extent(value))
        for dim, value in zip(wanted, there, strict=False)
        if isinstance(dim, Var)
    ]


def _extents(ty: Any) -> Sequence[Any]:
    if isinstance(ty, relax.TensorType) and isinstance(ty.shape, relax.ShapeExpr):
        return list(ty.shape.values)
    if isinstance(ty, relax.ShapeType) and ty.values is not None:
        return list(ty.values)
    return []


def _product(extents: Sequence[Any]) -> machine.Extent:
    factors = [_extent(extent) for extent in extents]
    return lambda symbols: math.prod(factor(symbols) for factor in factors)


def _extent(expr: Any) -> machine.Extent:
    """Return a symbolic expression as a function of its variables."""
    if isinstance(expr, IntImm):
        number = int(expr)
        return lambda _: number
    if isinstance(expr, Var):
        key = expr.__chandle__()
        return lambda symbols: symbols[key]
    variables = list(undefined_vars(expr))

    def extent(symbols: Mapping[int, int]) -> int:
        analyzer = Analyzer()
        for variable in variables:
            number = IntImm(variable.ty.dtype, symbols[variable.__chandle__()])
            analyzer.bind(variable, number)
        found = analyzer.simplify(expr)
        if not isinstance(found, IntImm):
            raise machine.UnknownMemoryError(f"the size {expr}")
        return int(found)

    return extent
