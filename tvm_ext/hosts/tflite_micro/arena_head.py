# SPDX-License-Identifier: Apache-2.0
"""The head of TensorFlow Lite Micro's arena: which tensors it holds, when, and which in place.

Time counts operators: inputs of the model are written at 0, operator `k` of the first subgraph runs
at `k + 1` if no earlier one runs a subgraph, and a subgraph that is run has times of its own.

Source: ``micro_allocation_info.cc``, ``micro_allocator.cc`` and
``memory_planner/greedy_memory_planner.cc`` of tensorflow/tflite-micro, August 2026.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from passes.planning import Buffer, Plan, Problem, Status
from target_hw.memory import MemoryScope, round_up
from tvm_ext.hosts.tflite_micro.read_model import NOT_PLANNED, Model, called_tensor

ALIGNMENT = 16
"""Bytes to which ``MicroArenaBufferAlignment`` rounds sizes and offsets."""

GREEDY = "greedy"
"""The name of TensorFlow Lite Micro's own planner in tables."""

Scratch = Mapping[tuple[int, int], int]
"""Bytes of scratch memory that kernels ask for, by subgraph and operator."""


_ELEMENTWISE = """
    ABS ADD CAST CEIL COS DIV ELU EQUAL EXP FLOOR FLOOR_DIV FLOOR_MOD GREATER GREATER_EQUAL
    HARD_SWISH L2_NORMALIZATION LEAKY_RELU LESS LESS_EQUAL LOG LOGICAL_AND LOGICAL_NOT LOGICAL_OR
    LOGISTIC LOG_SOFTMAX MAXIMUM MINIMUM MUL NEG NOT_EQUAL PRELU QUANTIZE RELU RELU6 ROUND RSQRT
    SELECT_V2 SIN SOFTMAX SQRT SQUARE SQUARED_DIFFERENCE SUB TANH
"""
ELEMENTWISE = frozenset(_ELEMENTWISE.split())
"""Operators that make each row or element of the same one of operands of the result's shape, where
a kernel reads each element for the last time before it writes the element's place."""

RESHAPING = frozenset({"EXPAND_DIMS", "RESHAPE"})
"""Operators that copy their first operand as it is; of equal addresses, to itself.

``SQUEEZE`` is not among them: it calls ``memcpy``, for which equal addresses are not defined.
"""


@dataclass(frozen=True)
class Resident:
    """A tensor, or the scratch memory of one operator, in the arena's head."""

    name: str
    size: int  # Bytes, a multiple of `ALIGNMENT`
    first: int  # The times of its first and its last use
    last: int
    tensor: int | None = None  # Its number in a plan; None for scratch memory
    pinned: int | None = None  # The offset in bytes that the file gives it

    def meets(self, other: Resident) -> bool:
        """Return whether both are in use at one time."""
        return self.first <= other.last and other.first <= self.last


class Turn(NamedTuple):
    """One operator at its time, and that at which the subgraphs that it runs are over."""

    time: int
    end: int
    subgraph: int
    operator: int


@dataclass(frozen=True)
class ArenaHead:
    """The contents of the head while a model runs."""

    residents: tuple[Resident, ...]  # Tensors in the order of a plan, then scratch memory
    steps: tuple[Turn, ...]  # Sorted by time

    def problem(self, model: Model, pairs: Sequence[tuple[int, int]] = ()) -> Problem:
        """Return the problem of placing everything anew.

        Parameters
        ----------
        model : Model
            The model of the arena.
        pairs : sequence of (int, int)
            Operand and result, by their numbers in a plan, that may be at one offset.
        """
        end = max((each.last for each in self.residents), default=0)

        def live(each: Resident) -> tuple[int, int]:
            # A variable keeps its value from one run to the next.
            kept = each.tensor is not None and model.tensors[each.tensor].is_variable
            return (0, end + 1) if kept else (each.first, each.last + 1)

        buffers = tuple(
            Buffer(each.name, each.size, (live(each),), alignment=ALIGNMENT)
            for each in self.residents
        )
        names = {each.tensor: each.name for each in self.residents}
        in_place = tuple((names[source], names[target]) for source, target in pairs)
        memory = MemoryScope("global.arena", alignment=ALIGNMENT)
        return Problem(buffers, memory, in_place, name=f"arena of {model.name}")

    def plan_of(self, model: Model, plan: Plan) -> tuple[int, ...]:
        """Return the offsets in bytes of all tensors of a model, as the file takes them."""
        offsets = [NOT_PLANNED] * len(model.tensors)
        for each in self.residents:
            if each.tensor is not None:
                (offsets[each.tensor],) = plan.offsets[each.name]
        return tuple(offsets)


def arena_of(model: Model, scratch: Scratch) -> ArenaHead:
    """Read off a model what its arena holds, as ``MarkAllocationLifetimes`` does."""
    made: dict[int, int] = {}
    last: dict[int, int] = {}
    steps: list[Turn] = []

    def use(tensors: Iterable[int], now: int) -> None:
        for tensor in tensors:
            made.setdefault(tensor, now)
            last[tensor] = now

    def run(number: int, now: int) -> int:
        graph, base = model.subgraphs[number], model.first_tensor(number)
        use((base + tensor for tensor in graph.inputs), now)
        for position, one in enumerate(graph.operators):
            now += 1
            begin = now
            for tensor in one.outputs:
                made.setdefault(base + tensor, begin)
            for other in one.runs:
                now = run(other, now + 1)
            last.update((base + tensor, now) for tensor in (*one.operands, *one.outputs))
            steps.append(Turn(begin, now, number, position))
        use((base + tensor for tensor in graph.outputs), now)
        return now

    run(0, 0)
    residents, seen = [], set[str]()
    for subgraph, graph in enumerate(model.subgraphs):
        for number, tensor in enumerate(graph.tensors):
            at = model.first_tensor(subgraph) + number
            pinned = None if model.plan is None or model.plan[at] < 0 else model.plan[at]
            # A variable with an offset of its own is planned; see `InitializeAllocationInfo`.
            in_head = tensor.in_arena or (tensor.is_variable and pinned is not None)
            if not in_head:
                continue
            first = made.get(at, -1)
            name = called_tensor(graph.tensors, number)
            if name in seen:
                name = f"{name} of subgraph {subgraph}"
            seen.add(name)
            size = round_up(tensor.size, ALIGNMENT)
            residents.append(Resident(name, size, first, max(first, last.get(at, -1)), at, pinned))
    spans: dict[tuple[int, int], tuple[int, int]] = {}
    for step in steps:  # A subgraph that runs again keeps its scratch memory until then.
        begin, _ = spans.get((step.subgraph, step.operator), (step.time, step.end))
        spans[step.subgraph, step.operator] = begin, step.end
    for subgraph, operator in sorted(scratch.keys() & spans.keys()):
        first, end = spans[subgraph, operator]
        label = f"scratch of {model.subgraphs[subgraph].operators[operator].name}"
        name = f"{label} (operator {operator}{f' of subgraph {subgraph}' * bool(subgraph)})"
        size = round_up(scratch[subgraph, operator], ALIGNMENT)
        residents.append(Resident(name, size, first, end))
    return ArenaHead(tuple(residents), tuple(sorted(steps)))


def greedy_plan(arena: ArenaHead) -> Plan:
    """Plan as TensorFlow Lite Micro does: what the file pins, then by size, each in the first gap.

    Among equal sizes the later one comes first, as the original leaves them after its sort.
    """
    pinned = [each for each in arena.residents if each.pinned is not None]
    free = [each for each in reversed(arena.residents) if each.pinned is None]
    placed: list[tuple[int, Resident]] = []
    for each in (*pinned, *sorted(free, key=lambda one: -one.size)):
        offset = each.pinned
        if offset is None:
            live = [one for one in placed if one[1].meets(each)]
            offset = 0
            for begin, other in live:
                if begin - offset >= each.size:
                    break
                offset = max(offset, begin + other.size)
        # After those of an equal offset, as the original inserts.
        at = next((i for i, (other, _) in enumerate(placed) if other > offset), len(placed))
        placed.insert(at, (offset, each))
    offsets = {each.name: (offset,) for offset, each in placed}
    peak = max((offset + each.size for offset, each in placed), default=0)
    return Plan(offsets, peak, 0, GREEDY, Status.FEASIBLE)


def in_place_pairs(model: Model, arena: ArenaHead) -> Iterator[tuple[int, int]]:
    """Yield operand and result, by their numbers in a plan, that may be at one offset.

    TensorFlow Lite Micro places no result in place itself, but runs a plan that does. The tables
    hold for the reference kernels; each operator of them is tried there.

    The operand is used by no later operator and is no result of its subgraph; none is a variable;
    both take equally many bytes, and have one shape where the operator is no `RESHAPING` one.
    """
    residents = {each.tensor: each for each in arena.residents}
    for step in arena.steps:
        graph, base = model.subgraphs[step.subgraph], model.first_tensor(step.subgraph)
        one = graph.operators[step.operator]
        if len(one.outputs) != 1 or one.name not in ELEMENTWISE | RESHAPING:
            continue
        (result,) = one.outputs
        target = residents.get(base + result)
        operands = one.operands[:1] if one.name in RESHAPING else one.operands
        for operand in dict.fromkeys(operands):
            source = residents.get(base + operand)
            old, new = graph.tensors[operand], graph.tensors[result]
            kept = operand in graph.outputs or old.is_variable or new.is_variable
            if source is None or target is None or kept:
                continue
            is_alike = old.size == new.size and (one.name in RESHAPING or old.shape == new.shape)
            if is_alike and source.last == target.first == step.time and source.first < step.time:
                yield base + operand, base + result
