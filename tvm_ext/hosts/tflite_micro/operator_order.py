# SPDX-License-Identifier: Apache-2.0
"""Another order of a model's operators, in which less memory is live."""

from __future__ import annotations

from dataclasses import replace

from passes.order import FoundOrder, LiveBytes, OrderProblem, find_order
from target_hw.memory import round_up
from tvm_ext.hosts.tflite_micro.arena_head import ALIGNMENT, Scratch
from tvm_ext.hosts.tflite_micro.read_model import Model, Subgraph

STATEFUL = ("ASSIGN_VARIABLE", "CALL_ONCE", "CUSTOM", "RANDOM", "READ_VARIABLE", "VAR_HANDLE")
"""Prefixes of operators that may share a state: they keep their order among each other."""


def find_operator_order(model: Model, scratch: Scratch) -> FoundOrder | None:
    """Return the order of the operators in which the least is live, as far as it is found.

    None if the model has several subgraphs: an operator that runs one must not be moved alone.
    """
    if len(model.subgraphs) != 1:
        return None
    (graph,) = model.subgraphs
    return find_order(_problem(graph, scratch))


def reordered(model: Model, order: tuple[int, ...], content: bytes) -> Model:
    """Return a model of one subgraph whose operators run in another order, as a file has it."""
    (graph,) = model.subgraphs
    moved = replace(graph, operators=tuple(graph.operators[at] for at in order))
    return replace(model, subgraphs=(moved,), content=content)


def reordered_scratch(scratch: Scratch, order: tuple[int, ...]) -> Scratch:
    """Return the scratch memory of operators by their new numbers."""
    place = {operator: at for at, operator in enumerate(order)}
    return {(0, place[operator]): size for (_, operator), size in sorted(scratch.items())}


def _problem(graph: Subgraph, scratch: Scratch) -> OrderProblem:
    writer: dict[int, int] = {}
    before: list[tuple[int, ...]] = []
    state: int | None = None
    variables: dict[int, int] = {}
    touched: dict[int, list[int]] = {}
    for number, one in enumerate(graph.operators):
        earlier = {writer[tensor] for tensor in one.operands if tensor in writer}
        if one.name.startswith(STATEFUL):
            earlier |= set() if state is None else {state}
            state = number
        for tensor in sorted({*one.operands, *one.outputs}):
            touched.setdefault(tensor, []).append(number)
            if graph.tensors[tensor].is_variable:
                earlier |= {variables[tensor]} if tensor in variables else set()
                variables[tensor] = number
        writer.update(dict.fromkeys(one.outputs, number))
        before.append(tuple(sorted(earlier)))
    tensors = [
        LiveBytes(
            round_up(tensor.size, ALIGNMENT),
            tuple(touched.get(number, ())),
            begun=number in graph.inputs,
            kept=number in graph.outputs,
        )
        for number, tensor in enumerate(graph.tensors)
        if tensor.in_arena and (number in touched or number in graph.inputs)
    ]
    tensors += [
        LiveBytes(round_up(size, ALIGNMENT), (operator,))
        for (_, operator), size in sorted(scratch.items())
    ]
    return OrderProblem(tuple(before), tuple(tensors))
