# SPDX-License-Identifier: Apache-2.0
"""Carry the names that authors give to tensors through lowering, until memory is planned.

TVM drops names where it lowers: a group of fused operators becomes ``lv3``, its memory ``alloc15``.
So variables are named anew after legalization, around fusion, and where memory is allocated: by
their own name, if that is no number of TVM's; else by the module whose parameters the operator
reads, as ``blocks.2.mlp.up.matmul``; else by the line and the operator. TVM names parameters of
kernels by these, so they have only letters that code in C may have. After fusion the place stands
apart: ``blocks.2.mlp.up matmul``.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple

from tvm.ir import DictAttrs
from tvm.ir.transform import PassContext, module_pass

from passes.ir import POSTORDER, IRModule, Pass, structural_map, tir
from passes.ir.operators import operator_name
from passes.ir.relax_operators import ALLOC_TENSOR, CALL_TIR
from passes.relax import NUM_INPUT, bindings_of, renamed, rx, variables_in

_NUMBERED = re.compile(r"(lv|gv|alloc|_)\d*")
"""Names that say only that a variable is one of several."""
_PLACED = re.compile(r"^(\S+)\.([^.\d\s][^.\s]*(?:\.\d+)?)$")
"""A module, and an operator, or a result of one that has several."""
_MEMBER = "tvm_ext.member"

Names = dict[int, str]
"""By the handles of variables."""


def naming_passes(passes: Iterable[Pass]) -> list[Pass]:
    """Return a list of Relax passes, as TVM lists them, that keeps the names of tensors."""
    naming = {
        "LegalizeOps": _naming_modules,
        "FuseOps": _naming_groups,
        "CallTIRRewrite": _naming_allocations,
    }

    def named(stock: Pass) -> Pass:
        name = str(stock.info.name)
        if name not in naming:
            return stock
        return module_pass(partial(naming[name], stock), opt_level=stock.info.opt_level, name=name)

    return [named(stock) for stock in passes]


def operator_of(call: rx.Call) -> str:
    """Return the short name of what is called: an operator, a kernel or a function."""
    callee = call.args[0] if operator_name(call.op) == CALL_TIR else call.op
    name = getattr(callee, "name_hint", None) or getattr(callee, "global_symbol", None)
    return str(name or getattr(callee, "name", "")).rpartition(".")[2]


def variables_read(value: Any) -> list[Any]:
    """Return the variables that a call has as arguments, also in tuples; none of another value."""
    return [*variables_in(value.args)] if isinstance(value, rx.Call) else []


def number_of_inputs(func: rx.Function) -> int:
    """Return how many parameters are inputs; those after them are weights."""
    return int(func.attrs.get(NUM_INPUT, 0)) if func.attrs else 0


def with_names(mod: IRModule, names_of: Callable[[tir.GlobalVar, rx.Function], Names]) -> IRModule:
    """Return the module with new names for variables of its Relax functions, by `names_of`."""
    result = mod.clone()
    for variable, func in mod.functions.items():
        if _is_graph(func):
            result.update_func(variable, renamed(func, names_of(variable, func)))
    return result


def _is_graph(func: Any) -> bool:
    return isinstance(func, rx.Function) and not (func.attrs and "Primitive" in func.attrs)


def _is_numbered(variable: Any) -> bool:
    return _NUMBERED.fullmatch(str(variable.name)) is not None


def _is_operators(name: str, operator: str) -> bool:
    """Return whether a name says no more than the operator does."""
    return _plain(name) == _plain(operator)


def _plain(operator: str) -> str:
    """Return an operator without what TVM adds to tell its kernels apart."""
    return operator.removeprefix("tir_").rstrip("_0123456789")


# --------------------------------------------------------------------------- around legalization


def _naming_modules(legalize: Pass, mod: IRModule, _ctx: PassContext) -> IRModule:
    """Legalize, with names that are read before: layers share kernels, named by variables."""
    names: Names = {}
    for func in filter(_is_graph, mod.functions.values()):
        names |= names_from_modules(func)
    return with_names(legalize(mod), lambda _variable, _func: names)


def names_from_modules(func: rx.Function) -> Names:
    """Name what has no name of its own by the module whose parameters it reads."""
    module_of = {  # Of parameters, and of what is made of parameters alone.
        parameter.__chandle__(): str(parameter.name).rpartition(".")[0]
        for parameter in func.params[number_of_inputs(func) :]
        if "." in parameter.name
    }
    names: Names = {}
    for binding in bindings_of(func.body):
        variable, value = binding.var, binding.value
        if not isinstance(value, rx.Call):
            _same_tensor(binding, names)
            continue
        operator, read = operator_of(value), [one.__chandle__() for one in variables_read(value)]
        modules = [module_of[handle] for handle in read if handle in module_of]
        if modules and len(modules) == len(read):
            module_of[variable.__chandle__()] = modules[0]
        if modules and (_is_numbered(variable) or _is_operators(str(variable.name), operator)):
            within = _shared(f"{module}." for module in modules) or f"{modules[0]}."
            names[variable.__chandle__()] = within + operator
        elif _is_numbered(variable) and operator:
            line = "" if value.span is None else f"line{value.span.line}."
            names[variable.__chandle__()] = line + operator
    return names


def _same_tensor(binding: Any, names: Names) -> None:
    """Give another variable of a tensor the tensor's name, if it has none of its own."""
    value = binding.value
    known = names.get(value.__chandle__())
    if known is None and isinstance(value, rx.Var) and not _is_numbered(value):
        known = str(value.name)
    if known and _is_numbered(binding.var) and not _NUMBERED.fullmatch(known):
        names[binding.var.__chandle__()] = known


def _shared(names: Iterable[str]) -> str:
    """Return the common prefix of names, up to a separator."""
    common = os.path.commonprefix(list(names))  # noqa: RUF071 - these are no paths of files
    return common[: common.rfind(".") + 1]


# ------------------------------------------------------------------------------ around the fusion


def _naming_groups(fuse: Pass, mod: IRModule, _ctx: PassContext) -> IRModule:
    """Fuse operators, and name groups by their members.

    Equal groups become one function, which has the names of one. So a copy of the module is fused
    too, in which each call says whose it is and no two groups are equal.
    """
    fused, said = fuse(mod), fuse(_with_members(mod))

    def names_of(variable: tir.GlobalVar, func: rx.Function) -> Names:
        names: Names = {}
        twins = bindings_of(said[variable.name_hint].body)
        for binding, twin in zip(bindings_of(func.body), twins, strict=True):
            if group := _group(said, twin.value):
                names[binding.var.__chandle__()] = group_name(group)
            elif isinstance(binding.value, rx.Call):
                names[binding.var.__chandle__()] = spoken(str(binding.var.name))
            _same_tensor(binding, names)
        return names

    return with_names(fused, names_of)


def _with_members(mod: IRModule) -> IRModule:
    """Return the module with the name of its variable at each call of a kernel."""
    result, name_of = mod.clone(), Names()

    def say(call: Any) -> Any:
        name = name_of.get(call.__chandle__())
        if name is None or call.attrs is not None or operator_name(call.op) != CALL_TIR:
            return call
        return rx.Call(call.op, call.args, {_MEMBER: name}, call.ty_args, call.span, call.ty)

    for variable, func in mod.functions.items():
        if _is_graph(func):
            name_of |= {b.value.__chandle__(): str(b.var.name) for b in bindings_of(func.body)}
            result.update_func(variable, structural_map(func, [(rx.Call, say)], POSTORDER))
    return result


class Member(NamedTuple):
    """An operator of a group of fused operators."""

    name: str  # Of the variable that it is bound to
    operator: str


def _group(mod: IRModule, value: Any) -> list[Member]:
    """Return the members of a group that is called, in program order."""
    if not isinstance(value, rx.Call) or not isinstance(value.op, tir.GlobalVar):
        return []
    callee = mod[value.op]
    if not isinstance(callee, rx.Function) or _is_graph(callee):  # The author's own.
        return []
    members = []
    for call in (binding.value for binding in bindings_of(callee.body)):
        attrs = getattr(call, "attrs", None)
        if isinstance(attrs, DictAttrs) and _MEMBER in attrs:
            members.append(Member(str(attrs[_MEMBER]), operator_of(call)))
    return members


def spoken(name: str) -> str:
    """Return a name with its place apart: ``blocks.0.mlp.up gelu``."""
    return _PLACED.sub(r"\1 \2", name)


def label_of(binding: Any) -> str:
    """Return what a binding is called: by its name, or else by the operator; empty without both."""
    if not _is_numbered(binding.var):
        return spoken(str(binding.var.name))
    return operator_of(binding.value) if isinstance(binding.value, rx.Call) else ""


def group_name(members: Sequence[Member]) -> str:
    """Name a group of fused operators by its last member, as ``blocks.0.mlp.up gelu``.

    Where that has neither a place nor a name of its own, it is named after the last that has one.
    """
    last = members[-1]
    own = [one.name for one in members if not _is_operators(one.name, one.operator)]
    placed = [name for name in own if "." in name]
    first = (placed or own or [last.name])[-1]
    if first == last.name:
        return spoken(first)
    is_own = own[-1] == last.name
    place = spoken(first).partition(" ")[0]
    return f"{place} {last.name if is_own else _plain(last.operator)}"


# ------------------------------------------------------------------------------ before planning


def _naming_allocations(allocate: Pass, mod: IRModule, _ctx: PassContext) -> IRModule:
    """Allocate results, with their names."""
    return with_names(allocate(mod), lambda _variable, func: _of_allocations(func))


def _of_allocations(func: rx.Function) -> Names:
    """Name each allocation, and the call that fills it, by the variable bound to it later."""
    names: Names = {}
    filled_by: dict[int, Any] = {}  # The binding of the call that fills an allocation
    for binding in bindings_of(func.body):
        variable, value = binding.var, binding.value
        if isinstance(value, rx.Call) and operator_name(value.op) == ALLOC_TENSOR:
            names[variable.__chandle__()] = ""
        for read in variables_read(value):
            if names.get(read.__chandle__()) == "":
                filled_by.setdefault(read.__chandle__(), binding)
        several = isinstance(value, rx.Tuple)
        for at, held in enumerate(value.fields if several else (value,)):
            handle = held.__chandle__()
            if names.get(handle) == "" and handle in filled_by:
                call = filled_by[handle].value
                name = operator_of(call) if _is_numbered(variable) else str(variable.name)
                names[handle] = f"{name}.{at}" if several else name
    for handle, binding in filled_by.items():
        names[handle] = names[handle] or operator_of(binding.value)
        if _is_numbered(binding.var):
            names.setdefault(binding.var.__chandle__(), names[handle])
    return {handle: spoken(name) for handle, name in names.items() if name}
