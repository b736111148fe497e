# SPDX-License-Identifier: Apache-2.0
"""Calls between the functions of a module, and when a call is done with its operands.

While a function runs, its callers' buffers are still needed, and addresses that are decided for
each function by itself would be theirs. A copy that runs by itself may read or write its operands
until something waits for it; `passes.ir.operators` says which operators begin no such thing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from passes.ir import LinearAccess, PrimFunc, nodes_in, tir
from passes.ir.operators import ASYNCHRONOUS_SCOPES, is_done_on_return
from passes.ir.storage_entries import StmtKind
from target_hw.memory import ByteRange


@dataclass(frozen=True)
class Callers:
    """Facts about the callers of a function that its planning needs."""

    # The addresses at which callers hold something while it runs, by storage scope.
    taken: Mapping[str, tuple[ByteRange, ...]] = field(default_factory=dict)
    at_once: bool = False  # Whether several iterations or threads may be in it at the same time
    again: bool = False  # Whether it may be called while it runs
    # The functions that it may call and that may not be done when they return.
    lasting: frozenset[str] = frozenset()
    # The scopes in which they use addresses of the program's own that are in no plan.
    unknown: frozenset[str] = frozenset()
    on_stack: bool = False  # As `CallGraph.is_on_stack` says


@dataclass(frozen=True)
class CallGraph:
    """Calls between the functions of a module."""

    # The functions that each function mentions, by name; also in strings, as extern functions are.
    calls: Mapping[str, tuple[str, ...]]
    # The functions that a name may stand for: that of a function, or a ``global_symbol``.
    names: Mapping[str, tuple[str, ...]]
    # The functions in which something may go on after they return, seen by themselves.
    going_on: frozenset[str]

    @cached_property
    def callers(self) -> Mapping[str, frozenset[str]]:
        """The direct and indirect callers of each function."""
        return callers_of(self.calls)

    @property
    def order(self) -> list[str]:
        """All functions, callers before callees (in no particular order within a cycle)."""
        return sorted(self.calls, key=lambda name: (len(self.callers[name] | {name}), name))

    def is_on_stack(self, name: str, func: PrimFunc) -> bool:
        """Return whether TVM takes global memory of a function from the stack alone.

        It does so, a little for each buffer, for a private function that another one calls.
        """
        return "global_symbol" not in func.attrs and bool(self.callers[name])

    @cached_property
    def lasting(self) -> frozenset[str]:
        """The names of functions that may not be done when they return."""
        lasting = self.going_on.union(*(self.callers[name] for name in self.going_on))
        return frozenset(name for name, of in self.names.items() if not lasting.isdisjoint(of))


def callers_of(calls: Mapping[str, Iterable[str]]) -> dict[str, frozenset[str]]:
    """Return the direct and indirect callers of each function, from what each calls directly."""
    found: dict[str, set[str]] = {name: set() for name in calls}
    for name in calls:
        todo = list(calls[name])
        while todo:
            callee = todo.pop()
            if name not in found[callee]:
                found[callee].add(name)
                todo += calls[callee]
    return {name: frozenset(callers) for name, callers in found.items()}


def find_calls(functions: Mapping[str, PrimFunc]) -> CallGraph:
    """Find which functions, by name and in the order of their names, call one another."""
    names: dict[str, tuple[str, ...]] = {name: (name,) for name in functions}
    for name, func in functions.items():
        symbol = str(func.attrs.get("global_symbol", name))
        if symbol != name:
            names[symbol] = (*names.get(symbol, ()), name)
    calls: dict[str, tuple[str, ...]] = {}
    for name, func in functions.items():
        found = [str(var.name_hint) for var in nodes_in(func.body, tir.GlobalVar)]
        found += [str(text.value) for text in nodes_in(func.body, tir.StringConstant)]
        calls[name] = tuple(sorted({one for called in found for one in names.get(called, ())}))
    called = {callee for callees in calls.values() for callee in callees}  # Others need no look.
    going_on = frozenset(n for n, func in functions.items() if n in called and goes_on(func.body))
    return CallGraph(calls, names, going_on)


def call_sites(
    access: LinearAccess, graph: CallGraph, callees: Collection[str]
) -> Iterator[tuple[int, bool]]:
    """Yield the positions of calls of `callees`, and whether several threads call at once."""
    at_once = [
        (position, position + entry.scope_pair_offset)
        for position, entry in enumerate(access.sequence)
        if entry.kind in (StmtKind.PARALLEL, StmtKind.THREAD)
    ]
    for name, position, in_region in access.calls:
        if any(one in callees for one in graph.names.get(name, ())):
            yield position, in_region or any(begin < position <= end for begin, end in at_once)


def goes_on(body: Any) -> bool:
    """Return whether something in statements may still use memory when they have run."""
    return any(map(_goes_on, nodes_in(body, tir.Call, tir.Store, tir.Attribute)))


def _goes_on(node: Any) -> bool:
    if isinstance(node, tir.Store):
        return isinstance(node.value.ty, tir.PointerType)
    if isinstance(node, tir.Attribute):
        return node.attr_key in ASYNCHRONOUS_SCOPES
    return not is_done_on_return(node)
