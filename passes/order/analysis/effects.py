# SPDX-License-Identifier: Apache-2.0
"""Order that the bindings of a dataflow block must keep.

A binding runs after all that it uses: the values that it names, and the symbolic dimensions that a
``match_cast`` gives values to. Beyond that, in the order in which they are written run

- everything on either side of a call that is not pure;
- whatever is not known to compute from its arguments alone, with the others of that kind: packed
  functions (which may hold a generator of random numbers), kernels that call such, Relax functions,
  closures, hints of devices, and the checks of ``match_cast``;
- all that may touch the memory of what is overwritten in place or checked by ``match_cast``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from passes.ir import IRModule, PrimFunc, nodes_in, tir
from passes.ir.operators import operator_name
from passes.ir.relax_operators import CALL_TIR
from passes.relax import OpaqueValues, rx

_OUTSIDE = -1  # Stands for all memory from outside of the block, which may be one memory


def runs_before(mod: IRModule, bindings: Sequence[Any]) -> tuple[tuple[int, ...], ...]:
    """Return for each binding of a block those that have to run before it, sorted."""
    is_opaque = OpaqueValues(mod)
    made_by: dict[int, int] = {}  # By handle: the binding of a value or of a symbolic dimension
    memory_of: dict[int, frozenset[int]] = {}  # By handle: the bindings whose memory it may be
    touched: list[frozenset[int]] = []
    exclusive: list[int] = []  # The bindings so far that overwrite or check memory
    opaque, impure = -1, -1  # The last such binding
    before: list[set[int]] = []
    named: dict[int, frozenset[int]] = {}  # By handle of a kernel: the variables of its body
    for number, binding in enumerate(bindings):
        value, checks = binding.value, isinstance(binding, rx.MatchCast)
        name = operator_name(value.op) if isinstance(value, tir.Call) else ""
        used = _variables(value)
        symbols = _variables(binding.ty if checks else binding.var.ty)
        earlier = {made_by[handle] for handle in (*used, *symbols) if handle in made_by}
        memory = frozenset[int]().union(*(memory_of.get(h, (_OUTSIDE,)) for h in used))
        is_new = name == CALL_TIR and _tensors_read(mod, value, named) != 1
        result = frozenset((number,)) if is_new else memory | {number}
        touches = memory | result
        is_exclusive = checks or is_opaque.overwrite_arguments(value)
        if rx.contains_impure_call(value):
            earlier.update(range(number))
            impure = number
        earlier.update(last for last in (impure,) if 0 <= last < number)
        if checks or is_opaque(value):
            earlier.update(last for last in (opaque,) if last >= 0)
            opaque = number
        others = range(number) if is_exclusive else exclusive
        earlier.update(other for other in others if touched[other] & touches)
        if is_exclusive:
            exclusive.append(number)
        if checks:
            made_by.update((handle, number) for handle in symbols)
        handle = binding.var.__chandle__()
        made_by[handle], memory_of[handle] = number, result
        touched.append(touches)
        before.append(earlier)
    return tuple(tuple(sorted(earlier)) for earlier in before)


def _tensors_read(mod: IRModule, call: tir.Call, named: dict[int, frozenset[int]]) -> int:
    """Return how many arguments a kernel reads; of a kernel that reads one, TVM may make a view."""
    kernel = mod.functions.get(call.args[0])
    if not isinstance(kernel, PrimFunc) or not isinstance(call.args[1], rx.Tuple):
        return 1
    handle = kernel.__chandle__()
    if handle not in named:
        named[handle] = frozenset(_variables(kernel.body))
    given = kernel.params[: len(call.args[1].fields)]
    return sum(param.__chandle__() in named[handle] for param in given)


def _variables(*parts: Any) -> tuple[int, ...]:
    """Return the handles of the variables in expressions and types, each once."""
    known = (part for part in parts if part is not None)
    named = (variable for part in known for variable in nodes_in(part, rx.DataflowVar, tir.Var))
    handles = (v.__chandle__() for v in named if not isinstance(v, tir.GlobalVar))
    return tuple(dict.fromkeys(handles))
