# SPDX-License-Identifier: Apache-2.0
"""The bytes that the bindings of a Relax function keep alive, as `GMEMAllocate` will read them.

The function is lowered up to where memory is planned, and read there by the code that the plan will
be made from. Each binding gets a name of its own before, so that what it became is found again.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from tvm import relax

from passes.ir import IRModule, PrimFunc, Sequential, nodes_in, tir
from passes.order.planning.operator_graph import LiveBytes, OrderProblem
from passes.planning import Problem
from passes.relax import RelaxMemory, TensorGroup, bindings_of, renamed, rx
from target_hw.memory import round_up

LOWERING = Sequential(
    [
        relax.transform.RewriteDataflowReshape(),
        relax.transform.ToNonDataflow(),
        relax.transform.RemovePurityChecking(),
        relax.transform.CallTIRRewrite(),
    ]
)
"""The passes of TVM's pipelines between the fusion of operators and the planning of memory."""

Unit = tuple[int, str, str]
"""A device, its storage scope, and what sizes are multiples of; "" where they are constant."""


@dataclass(frozen=True, eq=False)
class Block:
    """A dataflow block."""

    block: rx.DataflowBlock
    bindings: tuple[Any, ...]
    start: int  # The number of its first binding in the function

    @property
    def numbers(self) -> range:
        """The numbers of its bindings in the function."""
        return range(self.start, self.start + len(self.bindings))


@dataclass(frozen=True, eq=False)
class FunctionMemory:
    """The memory of a Relax function over time, by the numbers of its bindings."""

    memory: RelaxMemory  # As `GMEMAllocate` will read it
    position_of: tuple[int, ...]  # For each binding, its position in what was read

    def groups(self) -> dict[Unit, TensorGroup]:
        """Return the tensors that may share memory; those of one unit in two groups are left out.

        That is: where a symbolic size is only known within a branch.
        """
        found: dict[Unit, list[TensorGroup]] = {}
        for group in self.memory.groups:
            unit = "" if group.unit is None else str(group.unit)
            found.setdefault((group.device, group.scope, unit), []).append(group)
        return {unit: same[0] for unit, same in found.items() if len(same) == 1}

    def live_bytes(self, tensors: Problem) -> list[int]:
        """Return the bytes of some tensors that live while each binding runs."""
        begun = [0] * (len(self.memory.bindings) + 1)
        for buffer in tensors.buffers:
            size = round_up(buffer.size, tensors.memory.alignment)
            for first, end in buffer.live:
                begun[first] += size
                begun[end] -= size
        live, least = 0, [0] * len(self.position_of)
        for position in range(len(self.memory.bindings)):
            live += begun[position]
            number = min(bisect_left(self.position_of, position), len(least) - 1)
            least[number] = max(least[number], live)
        return least

    def problem(
        self, block: Block, before: Sequence[Sequence[int]], tensors: Problem
    ) -> OrderProblem:
        """Return the problem of ordering a block's bindings, for some of the tensors."""
        first, end = self._span(block)
        base, found = 0, []
        touched_at = {n: of.touched_at for g in self.memory.groups for n, of in g.uses.items()}
        returned = {one.name for group in self.memory.groups for one in group.returned}
        for buffer in tensors.buffers:
            size = round_up(buffer.size, tensors.memory.alignment)
            inside = [at for at in touched_at.get(buffer.name, ()) if first <= at < end]
            begun = any(begin < first < over for begin, over in buffer.live)
            kept = buffer.name in returned or any(begin < end < over for begin, over in buffer.live)
            if inside:
                numbers = {bisect_left(self.position_of, at) for at in inside}
                touched_by = sorted(number - block.start for number in numbers)
                found.append(LiveBytes(size, tuple(touched_by), begun, kept))
            elif begun and kept:
                base += size
        return OrderProblem(tuple(map(tuple, before)), tuple(found), base)

    def names_within(self, block: Block) -> dict[str, str]:
        """Return the name of a block's binding, by the name of each binding that it became."""
        positions = range(*self._span(block))
        numbers = (bisect_left(self.position_of, at) - block.start for at in positions)
        names = (str(block.bindings[number].var.name) for number in numbers)
        return dict(zip((self.memory.bindings[at] for at in positions), names, strict=True))

    def _span(self, block: Block) -> tuple[int, int]:
        first = self.position_of[block.start - 1] + 1 if block.start else 0
        return first, self.position_of[block.numbers[-1]] + 1


def read_function(
    mod: IRModule, variable: tir.GlobalVar, read: Callable[[IRModule, tir.GlobalVar], RelaxMemory]
) -> FunctionMemory:
    """Read what a function keeps in memory, by `read` once it is lowered.

    ValueError is raised when what a binding became is not found, or by `read`.
    """
    func = mod[variable]
    names = {b.var.__chandle__(): f"binding.{n}" for n, b in enumerate(bindings_of(func.body))}
    alone = {
        other: function
        for other, function in mod.functions.items()
        if isinstance(function, PrimFunc) or other.same_as(variable)
    }
    alone[variable] = renamed(func, names)
    lowered = LOWERING(IRModule(alone, attrs=mod.attrs, global_infos=mod.global_infos))
    whole = mod.clone()
    whole.update_func(variable, lowered[variable])
    memory = read(whole, variable)
    position_of = {name: position for position, name in enumerate(memory.bindings)}
    positions = tuple(position_of.get(name, -1) for name in names.values())
    if any(one >= other for one, other in pairwise((-1, *positions))):
        raise ValueError("its bindings are not found again where memory is planned")
    return FunctionMemory(memory, positions)


def blocks_of(func: rx.Function) -> list[Block]:
    """Return the dataflow blocks of a function, with those of its branches, in program order."""
    numbers = {b.var.__chandle__(): number for number, b in enumerate(bindings_of(func.body))}
    found: dict[int, Block] = {}
    for block in nodes_in(func.body, rx.DataflowBlock):
        bindings = tuple(block.bindings)
        start = numbers.get(bindings[0].var.__chandle__()) if bindings else None
        if start is not None:
            found[start] = Block(block, bindings, start)
    return [found[start] for start in sorted(found)]
