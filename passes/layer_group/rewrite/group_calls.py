# SPDX-License-Identifier: Apache-2.0
"""Calls of groups in the place of the calls of their layers, in a Relax module."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from graphlib import TopologicalSorter
from heapq import heappop, heappush
from itertools import pairwise
from typing import Any

from passes.ir import IRModule, nodes_in, structural_mutate, tir
from passes.layer_group.analysis.read_network import BlockNetwork
from passes.layer_group.planning.network import Group
from passes.layer_group.rewrite.group_function import GroupKernel
from passes.relax import rx


@dataclass(frozen=True, eq=False)
class GroupCall:
    """A group to call."""

    name: str  # Of its kernel in the module; a number follows where it is taken
    group: Group  # The layers
    kernel: GroupKernel

    @property
    def layers(self) -> tuple[str, ...]:
        """Names of the layers that it computes, with those that lay out its weights."""
        laid_out = self.group.index.layouts(self.group.loaded)
        return tuple(layer.name for layer in (*self.group.layers, *laid_out))

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of the tensors that the kernel is given: a weight as it is before its layout."""
        laid_out = self.group.index.layouts(self.group.loaded)
        given = {layer.output: layer.inputs[0] for layer in laid_out}
        return tuple(given.get(name, name) for name in self.group.loaded)


def call_groups(
    mod: IRModule, blocks: Sequence[tuple[BlockNetwork, Sequence[GroupCall]]]
) -> IRModule:
    """Return a module that calls groups where their layers were called.

    Bindings and kernels that are of no more use are gone; all else is as it was.
    """
    builder = rx.BlockBuilder(mod)
    kernels = [[_add(builder, group) for group in groups] for _, groups in blocks]
    functions = dict(builder.get().functions.items())
    # By function, as it was read: adjacent blocks become one when it is normalized.
    blocks_of: dict[tir.GlobalVar, list[Any]] = {}
    for (network, groups), variables in zip(blocks, kernels, strict=True):
        body = functions[network.function].body
        own = blocks_of.setdefault(network.function, list(body.blocks))
        behind = {
            key for block in own[network.block + 1 :] for key in _Node(0, block.bindings).used
        }
        behind |= _handles(rx.free_vars(body.body))
        calls = list(zip(variables, groups, strict=True))
        own[network.block] = _with_calls(own[network.block], network, calls, behind)
    for variable, own in blocks_of.items():
        function = functions[variable]
        body = rx.BlockBuilder().normalize(rx.SeqExpr(own, function.body.body))
        parts = (function.params, body, function.ret_ty, function.is_pure)
        functions[variable] = rx.Function(*parts, attrs=function.attrs, span=function.span)
    _drop_unused(mod, functions)
    return IRModule(functions, attrs=mod.attrs, global_infos=mod.global_infos)


def _add(builder: rx.BlockBuilder, group: GroupCall) -> tir.GlobalVar:
    """Add the kernel of a group and what it calls; functions that are equal get one name."""
    new: dict[int, tir.GlobalVar] = {}

    def on_global(variable: tir.GlobalVar, _mutator: Any) -> tir.GlobalVar:
        return new.get(variable.__chandle__(), variable)

    def added(function: Any, name: str) -> tir.GlobalVar:
        changed = structural_mutate(function, [(tir.GlobalVar, on_global)])
        variable: tir.GlobalVar = builder.add_func(changed, name)
        return variable

    function, functions = group.kernel
    for variable, called in functions.items():  # Each after what it calls.
        new[variable.__chandle__()] = added(called, variable.name_hint)
    return added(function, group.name)


@dataclass(eq=False)
class _Node:
    """Bindings that stand together in the new block."""

    order: int
    bindings: list[Any]
    is_needed: bool = True  # Else it is left out where nothing uses what it binds.
    is_opaque: bool = False  # It runs after those of this kind that were written before it.

    @cached_property
    def used(self) -> set[int]:
        """The handles of the variables that the bindings use, and their types with them."""
        symbols = (v for x in self.bindings for v in rx.symbols_in_type(x.var.ty))
        return _handles([*symbols, *(v for x in self.bindings for v in nodes_in(x.value, tir.Var))])

    @cached_property
    def defined(self) -> set[int]:
        """The handles of the variables that the bindings define, symbolic ones with them."""
        casts = (x for x in self.bindings if isinstance(x, rx.MatchCast))
        symbols = (v for x in casts for v in rx.definable_symbols_in_type(x.ty))
        return _handles([*(x.var for x in self.bindings), *symbols])


def _with_calls(
    block: Any,
    network: BlockNetwork,
    calls: Sequence[tuple[tir.GlobalVar, GroupCall]],
    used_behind: set[int],
) -> Any:
    """Return a block in which each group is called once, after what makes its inputs."""
    grouped = {name for _, group in calls for name in group.layers}
    alone = {network.bindings[name] for name in network.calls if name not in grouped}
    gone = {network.bindings[name] for name in grouped} - alone
    nodes = [
        _Node(
            max(network.bindings[name] for name in group.layers),
            _group_bindings(variable, group, network, isinstance(block, rx.DataflowBlock)),
        )
        for variable, group in calls
    ]
    made = {key for node in nodes for key in node.defined}
    # A value taken out of a call's tuple is a result of its own now.
    taken_out = {
        (binding.value.tuple_value.__chandle__(), int(binding.value.index)): binding.var
        for binding in block.bindings
        if isinstance(binding.value, rx.TupleGetItem) and binding.var.__chandle__() in made
    }
    for at, binding in enumerate(block.bindings):
        if binding.var.__chandle__() in made:
            continue
        value = binding.value
        if isinstance(value, rx.TupleGetItem):
            taken = taken_out.get((value.tuple_value.__chandle__(), int(value.index)))
            binding = binding if taken is None else rx.VarBinding(binding.var, taken)
        # Another name may be one for what is inside of a group only.
        is_plain = isinstance(binding, rx.VarBinding)
        is_name = is_plain and isinstance(value, (tir.Var, rx.Tuple, rx.TupleGetItem))
        is_needed = not (is_name or at in gone)
        nodes.append(_Node(at, [binding], is_needed, at in network.opaque))
    used, kept = set(used_behind), []
    for node in sorted(nodes, key=lambda node: node.order, reverse=True):
        if node.is_needed or not used.isdisjoint(node.defined):
            kept.append(node)
            used |= node.used
    bindings = [binding for node in _in_order(kept[::-1]) for binding in node.bindings]
    return type(block)(bindings)


def _group_bindings(
    variable: tir.GlobalVar, group: GroupCall, network: BlockNetwork, is_dataflow: bool
) -> list[Any]:
    """Return the call of a group, bound to the variables that its outputs were bound to."""
    typed = rx.BlockBuilder().normalize
    new_var = rx.DataflowVar if is_dataflow else rx.Var
    arguments = [network.values[name] for name in group.inputs]
    results = []
    for name in group.group.outputs:
        value = network.values[name]
        if not isinstance(value, tir.Var):
            ty = value.tuple_value.ty.fields[int(value.index)]
            value = new_var(name.replace(".", "_"), ty)
        results.append(value)
    types = [result.ty for result in results]
    call = typed(rx.call_tir(variable, rx.Tuple(arguments), types if len(types) > 1 else types[0]))
    if len(results) == 1:
        return [rx.VarBinding(results[0], call)]
    together = new_var(f"{group.name}_results", call.ty)
    bindings = [rx.VarBinding(together, call)]
    for at, result in enumerate(results):
        bindings.append(rx.VarBinding(result, typed(rx.TupleGetItem(together, at))))
    return bindings


def _in_order(nodes: Sequence[_Node]) -> list[_Node]:
    """Return nodes, given by their order, after those whose variables they use."""
    maker = {key: at for at, node in enumerate(nodes) for key in node.defined}
    waits = {
        at: {maker[key] for key in node.used if key in maker} - {at}
        for at, node in enumerate(nodes)
    }
    for before, after in pairwise(at for at, node in enumerate(nodes) if node.is_opaque):
        waits[after].add(before)
    sorter = TopologicalSorter(waits)
    sorter.prepare()  # A group is cut out so that nothing depends on itself.
    ready: list[int] = []
    found = []
    while sorter.is_active():
        for at in sorter.get_ready():
            heappush(ready, at)
        at = heappop(ready)
        found.append(nodes[at])
        sorter.done(at)
    return found


def _handles(variables: Iterable[Any]) -> set[int]:
    return {variable.__chandle__() for variable in variables}


def _drop_unused(before: IRModule, functions: dict[tir.GlobalVar, Any]) -> None:
    """Drop kernels that were called before and are not called any more."""

    def called(mod: Iterable[Any]) -> set[str]:
        return {str(name.name_hint) for func in mod for name in nodes_in(func, tir.GlobalVar)}

    unused = called(before.functions.values()) - called(functions.values())
    for variable, function in list(functions.items()):
        if "global_symbol" not in function.attrs and str(variable.name_hint) in unused:
            del functions[variable]
