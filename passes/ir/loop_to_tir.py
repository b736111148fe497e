# SPDX-License-Identifier: Apache-2.0
"""Loops over integers, written in Python, as TIR that TVM compiles.

The planners' hot loops are plain Python functions on one-dimensional sequences of integers. Here
such a function, and the helpers that it calls, become `PrimFunc` on arrays of 64-bit integers, with
the same statements in the same order: one source, and the same steps in both forms. What counts:

- parameters annotated `int`; arrays (any other annotation); and a `NamedTuple` of these, which
  stands for its fields: ``state.begin[i]``. ``begins = state.begin`` is a second name of the field;
- integers at the top of the module, as constants;
- assignments to names and elements, several at once and augmented, too; ``if``, ``while``, ``for``
  over a `range` of step 1, ``break``, ``continue``, ``return``;
- calls of helpers as statements; of those that return an integer, as the whole of what is assigned
  or returned. A helper's last parameter is where its result goes: TVM's code generator knows no
  other way out of a function that is not called from outside;
- ``+``, ``-``, ``*``, ``//``, ``%``, ``min``, ``max``, ``int``, comparisons, ``and``, ``or``,
  ``not``, ``x if c else y``, which evaluate what Python would. Truth values are stored as 0 and 1.

Integers that need more than 64 bits wrap around, and an index is not checked and never negative.
Anything else is a `LoopError` that names the function and the line.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable, Sequence
from types import FunctionType, NoneType
from typing import Any, get_type_hints

import tvm
from tvm import tirx

from passes.ir import IRModule, PrimFunc, tir

_INT = "int64"
_PIPELINE = "tvm_ext.planner_loop"
# TVM says to LLVM that accesses through two buffer variables never meet, each being of a type of
# its own. A caller's array and its helper's parameter are two variables and one memory, so LLVM
# must not ask about types; that no two parameters are one array, no function says either.
_TARGET = {"kind": "llvm", "cl-opt": ["-enable-tbaa:bool=0"]}
_OF_TWO: dict[Any, Callable[[Any, Any], Any]] = {
    ast.Add: tirx.Add,
    ast.Sub: tirx.Sub,
    ast.Mult: tirx.Mul,
    ast.FloorDiv: lambda one, two: _divided(one, two)[0],
    ast.Mod: lambda one, two: _divided(one, two)[1],
    ast.Lt: tirx.LT,
    ast.LtE: tirx.LE,
    ast.Gt: tirx.GT,
    ast.GtE: tirx.GE,
    ast.Eq: tirx.EQ,
    ast.NotEq: tirx.NE,
    "min": tirx.Min,
    "max": tirx.Max,
}
_ZERO, _ONE = tir.IntConstant(_INT, 0), tir.IntConstant(_INT, 1)
_LEAVE = tir.Return(tir.IntConstant("int32", 0))
# The allocation is one of LLVM's, which makes a register of it, and no call of the runtime.
_ON_STACK = {"disable_lower_builtin": tir.IntConstant("bool", 1)}


class LoopError(ValueError):
    """A construct of a Python function that the translation to TIR does not support."""


def loop_module(entry: FunctionType) -> IRModule:
    """Return the TIR of a function under its name, and privately of the helpers that it calls.

    The function returns nothing. Its arrays are taken as tensors of one dimension; the fields of a
    `NamedTuple` are parameters one after the other. Raises LoopError when something is not of the
    subset above.
    """
    variables: dict[FunctionType, tir.GlobalVar] = {}
    functions: dict[tir.GlobalVar, PrimFunc] = {}

    def variable(function: FunctionType, is_entry: bool = False) -> tir.GlobalVar:
        """Return the name of a function in the module, which has the function from then on."""
        if function not in variables:
            name = variables[function] = tir.GlobalVar(function.__name__)
            functions[name] = _Function(variable, function, is_entry).translated()
        return variables[function]

    variable(entry, is_entry=True)
    return IRModule(functions)


class _Function:
    """One function: what its names stand for, and its statements."""

    def __init__(
        self,
        variable: Callable[[FunctionType], tir.GlobalVar],
        function: FunctionType,
        is_entry: bool,
    ) -> None:
        self._variable_of, self._function, self._is_entry = variable, function, is_entry
        lines, self._first_line = inspect.getsourcelines(function)
        self._tree: Any = ast.parse(textwrap.dedent("".join(lines))).body[0]
        # A name is a buffer: an array, or one element for an integer; or a tuple's, by field.
        self._names: dict[str, Any] = {}
        self._params: list[tir.Var] = []
        self._begin: list[tir.Statement] = []

    def translated(self) -> PrimFunc:
        """Return the function as TIR."""
        hints = get_type_hints(self._function)
        for argument in self._tree.args.args:
            self._names[argument.arg] = self._parameter(argument.arg, hints.get(argument.arg))
        if _has_result(self._function):
            self._names[""] = self._parameter("result", None)
        block = self._block(self._tree.body)  # It adds to what stands at the beginning.
        body = tir.Sequence([*self._begin, block, _LEAVE])
        func = PrimFunc(self._params, body, tir.PrimType("int32"))
        return func.with_attr("global_symbol", self._tree.name) if self._is_entry else func

    def _parameter(self, name: str, hint: Any) -> Any:
        if isinstance(hint, type) and issubclass(hint, tuple):
            fields = get_type_hints(hint).items()
            return {field: self._parameter(f"{name}_{field}", of) for field, of in fields}
        if hint is int:
            self._params.append(tir.Var(name, tir.PrimType(_INT)))
            buffer = self._variable(name)
            self._begin.append(tir.Store(buffer, self._params[-1], [_ZERO]))
            return buffer
        if self._is_entry:
            size = tir.Var(f"{name}_size", tir.PrimType(_INT))
            self._params.append(tirx.decl_buffer((size,), _INT, name))
            return self._params[-1]
        self._params.append(tir.Var(name, tir.PointerType(tir.PrimType(_INT))))
        array = tirx.decl_buffer((1,), _INT, name)
        self._begin.append(tir.Declaration(array, data=self._params[-1]))
        return array

    def _variable(self, name: str) -> Any:
        buffer = tirx.decl_buffer((1,), _INT, name, scope="local")
        self._begin.append(tir.Allocation(buffer, annotations=_ON_STACK))
        return buffer

    # Statements

    def _block(self, statements: Sequence[ast.stmt]) -> tir.Statement:
        made = [part for each in statements for part in self._statement(each)]
        return tir.Sequence(made) if len(made) != 1 else made[0]

    def _statement(self, node: ast.stmt) -> list[tir.Statement]:
        match node:
            case ast.Expr(value=ast.Constant()):
                return []
            case ast.Expr(value=ast.Call() as call):
                return [self._call(call)]
            case ast.Assign(targets=targets, value=value):
                return [part for target in targets for part in self._assign(target, value)]
            case ast.AugAssign(target=target, op=op, value=value):
                return self._assign(target, ast.copy_location(ast.BinOp(target, op, value), node))
            case ast.If(test=test, body=body, orelse=orelse):
                other = self._block(orelse) if orelse else None
                return [tir.If(self._truth(test), self._block(body), other)]
            case ast.While(test=test, body=body, orelse=[]):
                return [tir.While(self._truth(test), self._block(body))]
            case ast.For(target=ast.Name() as target, iter=over, body=body, orelse=[]):
                return [self._for(target, over, body)]
            case ast.Return(value=value):
                made = [] if value is None else self._store(self._names[""], _ZERO, value)
                return [*made, _LEAVE]
            case ast.Break():
                return [tir.Evaluation(tirx.break_loop())]
            case ast.Continue():
                return [tir.Evaluation(tirx.continue_loop())]
        raise self._error(node)

    def _assign(self, target: ast.expr, value: ast.expr) -> list[tir.Statement]:
        match target, value:
            case ast.Tuple(elts=targets), ast.Tuple(elts=values) if len(targets) == len(values):
                # All values are evaluated before the first is stored.
                names = [ast.Name(f"{each.lineno} {each.col_offset}") for each in values]
                kept = [self._assign(*each) for each in zip(names, values, strict=True)]
                stored = [self._assign(*each) for each in zip(targets, names, strict=True)]
                return [part for each in (*kept, *stored) for part in each]
            case ast.Name(id=name), ast.Name() | ast.Attribute():
                found = self._value(value)
                if not _is_number(found):
                    self._names[name] = found
                    return []
        return self._store(*self._place(target), value)

    def _store(self, buffer: Any, index: Any, value: ast.expr) -> list[tir.Statement]:
        """Return what stores a value, which may be the result of a helper."""
        if not isinstance(value, ast.Call) or self._helper(value) is None:
            return [tir.Store(buffer, self._int(value), [index])]
        result = self._variable("result")
        return [self._call(value, result), tir.Store(buffer, result[_ZERO], [index])]

    def _place(self, target: ast.expr) -> tuple[Any, Any]:
        """Return the buffer and the index that are assigned to."""
        match target:
            case ast.Subscript(value=array, slice=index):
                return self._value(array), self._int(index)
            case ast.Name(id=name) if name not in self._names or _is_number(self._value(target)):
                if name not in self._names:
                    self._names[name] = self._variable(name)
                return self._names[name], _ZERO
        raise self._error(target)

    def _for(self, target: ast.Name, over: ast.expr, body: Sequence[ast.stmt]) -> tir.Statement:
        match over:
            case ast.Call(func=ast.Name(id="range"), args=[end], keywords=[]):
                begin, extent = _ZERO, self._int(end)
            case ast.Call(func=ast.Name(id="range"), args=[first, end], keywords=[]):
                begin = self._int(first)
                extent = self._int(end) - begin
            case _:
                raise self._error(over)
        counter = tir.Var(target.id, tir.PrimType(_INT))
        buffer, _ = self._place(target)
        inside = tir.Sequence([tir.Store(buffer, counter, [_ZERO]), self._block(body)])
        return tir.Loop(counter, begin, extent, tir.LoopKind.SERIAL, inside)

    def _call(self, node: ast.Call, result: Any = None) -> tir.Statement:
        function = self._helper(node)
        if function is None or _has_result(function) != (result is not None):
            raise self._error(node)
        arguments = [part for each in node.args for part in self._argument(each)]
        arguments += [] if result is None else [result.data]
        return tir.Evaluation(
            tir.Call(self._variable_of(function), arguments, ret_ty=tir.PrimType("int32"))
        )

    def _helper(self, node: ast.Call) -> FunctionType | None:
        name = node.func.id if isinstance(node.func, ast.Name) and not node.keywords else ""
        function = self._function.__globals__.get(name)
        return function if isinstance(function, FunctionType) else None

    def _argument(self, node: ast.expr) -> list[Any]:
        """Return what a helper is given: an integer, or a pointer, or those of all fields."""
        values = [_read(field) for field in self._fields(node).values()] or [self._value(node)]
        return [_as_int(value) if _is_number(value) else value.data for value in values]

    # Expressions

    def _int(self, node: ast.expr) -> Any:
        value = self._value(node)
        if not _is_number(value):
            raise self._error(node)
        return _as_int(value)

    def _truth(self, node: ast.expr) -> Any:
        value = self._value(node)
        return value if value.ty.dtype == "bool" else tirx.NE(self._int(node), _ZERO)

    def _value(self, node: ast.expr) -> Any:
        """Return an integer, a truth value, or an array."""
        match node:
            case ast.Constant(value=bool() | int() as value):
                return tir.IntConstant(_INT, int(value))
            case ast.Name(id=name) if not isinstance(self._names.get(name, {}), dict):
                return _read(self._names[name])
            case ast.Name(id=name) if isinstance(self._function.__globals__.get(name), int):
                return tir.IntConstant(_INT, int(self._function.__globals__[name]))
            case ast.Attribute(value=of, attr=field) if field in self._fields(of):
                return _read(self._fields(of)[field])
            case ast.Subscript(value=of, slice=index):
                return self._value(of)[self._int(index)]
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return _negative(self._int(operand))
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                return tirx.Not(self._truth(operand))
            case ast.BinOp(one, op, two) | ast.Compare(one, [op], [two]) if type(op) in _OF_TWO:
                return _OF_TWO[type(op)](self._int(one), self._int(two))
            case ast.BoolOp(op=op, values=[first, *others]):
                # TIR's own `And` and `Or` evaluate both sides, also where one would not do.
                rest = others[0] if len(others) == 1 else ast.BoolOp(op, others)
                second = _as_int(self._truth(ast.copy_location(rest, node)))
                both = (second, _ZERO) if isinstance(op, ast.And) else (_ONE, second)
                return tirx.NE(tirx.if_then_else(self._truth(first), *both), _ZERO)
            case ast.IfExp(test=test, body=body, orelse=orelse):
                return tirx.if_then_else(self._truth(test), self._int(body), self._int(orelse))
            case ast.Call(func=ast.Name(id="int"), args=[truth]):
                return self._int(truth)
            case ast.Call(func=ast.Name(id=name), args=[one, two]) if name in _OF_TWO:
                return _OF_TWO[name](self._int(one), self._int(two))
        raise self._error(node)

    def _fields(self, node: ast.expr) -> dict[str, Any]:
        found = self._names.get(node.id) if isinstance(node, ast.Name) else None
        return found if isinstance(found, dict) else {}

    def _error(self, node: ast.AST) -> LoopError:
        line = self._first_line + getattr(node, "lineno", 1) - 1
        name = self._function.__qualname__
        return LoopError(f"{name}, line {line}: '{ast.unparse(node)}' is not understood in a loop")


def _has_result(function: FunctionType) -> bool:
    return get_type_hints(function).get("return", NoneType) is not NoneType


def _is_number(value: Any) -> bool:
    return not tir.is_buffer(value)


def _read(buffer: Any) -> Any:
    """Return the integer that a variable has; an array is returned as it is."""
    return buffer[_ZERO] if buffer.ty.storage_scope == "local" else buffer


def _as_int(value: Any) -> Any:
    return value if value.ty.dtype == _INT else tir.Cast(_INT, value)


def _negative(value: Any) -> Any:
    if isinstance(value, tir.IntConstant):
        return tir.IntConstant(_INT, -int(value.value))
    return tirx.Sub(_ZERO, value)


def _divided(one: Any, two: Any) -> tuple[Any, Any]:
    """Return the quotient, rounded down, and the remainder, which has the sign of the divisor.

    TVM lowers its own floor division right where the divisor is a positive constant. For others it
    makes `Let` expressions, and it refuses some that are nested.
    """
    if isinstance(two, tir.IntConstant):
        if two.value > 0:
            return tirx.FloorDiv(one, two), tirx.FloorMod(one, two)
        one, two = _negative(one), _negative(two)
        return tirx.FloorDiv(one, two), _negative(tirx.FloorMod(one, two))
    quotient, rest = tirx.Div(one, two), tirx.Mod(one, two)
    below, above = tirx.LT(rest, _ZERO), tirx.GT(rest, _ZERO)
    is_other_sign = tirx.Or(
        tirx.And(below, tirx.GT(two, _ZERO)), tirx.And(above, tirx.LT(two, _ZERO))
    )
    lower = tir.Select(is_other_sign, tirx.Sub(quotient, _ONE), quotient)
    return lower, tir.Select(is_other_sign, tirx.Add(rest, two), rest)


def built_loop(function: FunctionType) -> Any | None:
    """Return a module with the compiled function; None where TVM has no code generator for it."""
    if not tvm.runtime.enabled("llvm"):
        return None
    tirx.register_tir_pipeline(_PIPELINE, _pipeline)
    # The first plan may be made in the middle of a build with a configuration of its own.
    with tvm.transform.PassContext():
        return tirx.build(loop_module(function), target=_TARGET, pipeline=_PIPELINE)


def _pipeline() -> tuple[Any, Any, Any]:
    """Return the passes that loops need; TVM's others take most of the time to compile."""
    calls = [tirx.transform.AnnotateEntryFunc(), tirx.transform.MakePackedAPI()]
    stock = tirx.compilation_pipeline
    host, device = stock.finalize_host_passes, stock.finalize_device_passes
    return tvm.transform.Sequential(calls), host, device
