# SPDX-License-Identifier: Apache-2.0
"""Contents of a lane's local memory while a group runs, over time, and places in its banks.

They are an ordinary `Problem`, whose plan any planner finds. A bank serves one access at a time. So
two operands of a layer, or an operand and a tensor that is moved meanwhile, should lie in banks of
their own, and no buffer in more banks than it needs. (tpu-mlir, ``LmemAllocator``; LayerGroup's
document: "it is better not to cross the bank".) A local memory has a capacity, and no price for
bytes: of plans within it, the one is taken in which the fewest operands meet, then the fewest
operands and transfers, then the fewest buffers cross a bank that they need not cross. The cycles of
a meeting are not published, and the cost model charges nothing for it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate, chain, combinations, product
from math import prod

from passes.layer_group.planning.lanes import Lanes
from passes.layer_group.planning.network import Layer
from passes.layer_group.planning.slicing import GroupSlices, TensorSlices, region_needed
from passes.layer_group.planning.time_steps import Live, TimeSteps, live_ranges
from passes.planning import Buffer, Plan, Problem, Status
from target_hw.memory import MemoryScope

Pair = tuple[str, str]
"""Two items in local memory."""


@dataclass(frozen=True, eq=False)
class LocalMemory:
    """The tensors and the working memory of a group: bytes a lane, and when they are live."""

    # By the tensor's name, or the layer's for its working memory, in the order of their first use.
    sizes: Mapping[str, int]
    live: Mapping[str, Live]  # Time steps, by name
    rows: int  # Number of time steps
    memory: MemoryScope  # One lane's local memory
    name: str = "group"  # For messages

    @cached_property
    def problem(self) -> Problem:
        """The same as buffers that compete for one memory; positions are time steps."""
        buffers = (Buffer(name, size, self.live[name]) for name, size in self.sizes.items())
        return Problem(tuple(buffers), self.memory, name=self.name)

    @cached_property
    def content(self) -> Hashable:
        """The same but for names."""
        return tuple((size, self.live[name]) for name, size in self.sizes.items()), self.rows

    @cached_property
    def bank_bytes(self) -> int:
        """Bytes a lane of one bank; 0 where it is not known."""
        banks = dict(self.memory.facts).get("banks", 0)
        return (self.memory.capacity or 0) // banks if banks else 0

    @cached_property
    def most_live(self) -> int:
        """Bytes a lane that are live in one time step, at most."""
        change = [0] * (self.rows + 1)
        lives = [(size, live) for name, size in self.sizes.items() for live in self.live[name]]
        for size, (begin, end) in lives:
            change[begin] += size
            change[end] -= size
        return max(accumulate(change))


def lane_bytes(slices: GroupSlices, lanes: Lanes) -> dict[str, int]:
    """Return the bytes a lane of each tensor, and of each layer's working memory by its name."""
    sizes = {name: tensor.bytes_in(lanes) for name, tensor in slices.tensors.items()}
    for layer in slices.group.layers:
        sizes[layer.name] = working_bytes(layer, slices.tensors[layer.output], lanes)
    return sizes


def working_bytes(layer: Layer, made: TensorSlices, lanes: Lanes) -> int:
    """Return the bytes a lane of a layer's working memory for what it makes at once."""
    if not layer.buffers:
        return 0
    bits = 0
    for buffer in layer.buffers:
        region = region_needed(made.makes, buffer.maps, buffer.shape)
        bits += buffer.bits * prod(max(1, part.spans.longest) for part in region)
    extents = tuple(part.spans.longest for part in made.makes)
    return lanes.working_bytes(made.tensor, extents, bits)


def of_time_steps(
    slices: GroupSlices, steps: TimeSteps, memory: MemoryScope, sizes: Mapping[str, int]
) -> LocalMemory:
    """Return what takes local memory in time steps, by `sizes` in bytes a lane."""
    group = slices.group
    live = live_ranges(steps, (*slices.resident, *slices.kept))
    for number, row in enumerate(steps.rows):
        for position in row.layers:
            live[group.layers[position].name] = ((number, number + 1),)
    order = dict.fromkeys(n for x in group.layers for n in (*x.inputs, x.name, x.output))
    return LocalMemory(
        {name: sizes[name] for name in order if sizes[name]},
        live,
        len(steps.rows),
        memory,
        f"{group.index.network.name}: LMEM",
    )


_OPERANDS, _TRANSFERS = 1 << 20, 1 << 10
"""The cost of a bank that two operands of a step share; an operand and a transfer. A buffer that
crosses a bank needlessly costs 1: there are fewer of them."""


def used_at_once(steps: TimeSteps) -> Iterator[tuple[set[Pair], set[Pair]]]:
    """Yield, for each time step, the operands that are used at once, and those with transfers.

    A layer's operands are what it reads, its result and its working memory, by its name. Pairs are
    in the order of their names.
    """
    for row in steps.rows:
        layers = [steps.group.layers[position] for position in row.layers]
        touched = [dict.fromkeys((*x.inputs, x.output, x.name)) for x in layers]
        operands = {pair for names in touched for pair in combinations(sorted(names), 2)}
        moved = [transfer.tensor for transfer in row.transfers]
        beside = product(moved, dict.fromkeys(chain(*touched)))
        yield operands, {(min(x), max(x)) for x in beside if x[0] != x[1]} - operands


def bank_conflicts(local: LocalMemory, steps: TimeSteps, plan: Plan) -> int:
    """Return in how many time steps operands, or an operand and a transfer, share a bank."""
    if not local.bank_bytes:
        return 0
    banks = _Banks(local, {})
    at = {name: plan.offsets[name][0] for name in local.sizes}
    return sum(
        any(banks.meet(*pair, at) for pair in pairs | beside if at.keys() >= {*pair})
        for pairs, beside in used_at_once(steps)
    )


def in_banks(local: LocalMemory, steps: TimeSteps, plan: Plan) -> Plan:
    """Return a plan that meets in banks as little as is found; `plan` if none is better."""
    if not local.bank_bytes:
        return plan
    weights: dict[str, Counter[str]] = {name: Counter() for name in local.sizes}
    for operands, beside in used_at_once(steps):
        each = dict.fromkeys(operands, _OPERANDS) | dict.fromkeys(beside, _TRANSFERS)
        for (one, other), weight in each.items():
            if one in weights and other in weights:
                weights[one][other] += weight
                weights[other][one] += weight
    sizes, bank, banks = local.sizes, local.bank_bytes, _Banks(local, weights)
    steps_of = {name: sum(end - begin for begin, end in local.live[name]) for name in sizes}
    # The largest for the longest time first, or the largest that meet most.
    orders = (
        sorted(sizes, key=lambda x: -sizes[x] * steps_of[x]),
        sorted(sizes, key=lambda x: (-(sizes[x] // bank), -weights[x].total(), -sizes[x])),
    )
    given = best = {name: plan.offsets[name][0] for name in sizes}
    for order in orders:
        found = banks.placed(order)
        if found is not None and banks.total(found) < banks.total(best):
            best = found
    if best is given:
        return plan
    offsets = {name: (best[name],) for name in sizes}
    peak = max(best[name] + size for name, size in sizes.items())
    return replace(plan, offsets=offsets, peak=peak, status=Status.FEASIBLE)


@dataclass(frozen=True, eq=False)
class _Banks:
    """The banks of a local memory, and what it costs to lie in them at places ``at``."""

    local: LocalMemory
    weights: Mapping[str, Counter[str]]  # The price of a bank that two buffers share

    def _of(self, name: str, at: int) -> range:
        bank = self.local.bank_bytes
        return range(at // bank, (at + self.local.sizes[name] - 1) // bank + 1)

    def meet(self, one: str, other: str, at: Mapping[str, int]) -> bool:
        """Return whether two buffers are in one bank."""
        ours, theirs = self._of(one, at[one]), self._of(other, at[other])
        return ours.start < theirs.stop and theirs.start < ours.stop

    def cost(self, name: str, at: Mapping[str, int]) -> int:
        """Return what the place of a buffer costs with the others that are placed."""
        least = -(-self.local.sizes[name] // self.local.bank_bytes)
        crosses = int(len(self._of(name, at[name])) > least)
        met = (
            n
            for other, n in self.weights[name].items()
            if other in at and self.meet(name, other, at)
        )
        return crosses + sum(met)

    def total(self, at: Mapping[str, int]) -> int:
        """Return the cost of all places together; a meeting counts for both."""
        return sum(self.cost(name, at) for name in at)

    def placed(self, order: Iterable[str]) -> dict[str, int] | None:
        """Put buffers, in an order, where each costs least; None if one has no room."""
        unit, capacity = self.local.memory.alignment, self.local.memory.capacity or 0
        sizes, bank, at = self.local.sizes, self.local.bank_bytes, dict[str, int]()
        rows = {
            name: {step for begin, end in self.local.live[name] for step in range(begin, end)}
            for name in sizes
        }
        for name in order:
            size = sizes[name]
            taken = sorted(
                (begin, begin + sizes[other])
                for other, begin in at.items()
                if not rows[name].isdisjoint(rows[other])
            )
            starts, begin = set[int](), 0
            for low, high in (*taken, (capacity, capacity)):
                first, last = -(-begin // unit) * unit, (low - size) // unit * unit
                if first <= last:  # At the ends of a gap, or of a bank in it.
                    banks = [each * bank for each in range(first // bank, low // bank + 1)]
                    ends = ((end - size) // unit * unit for end in banks)
                    inside = (each for each in (*banks, *ends) if first <= each <= last)
                    starts.update((first, last, *inside))
                begin = max(begin, high)
            if not starts:
                return None
            at[name] = min(sorted(starts), key=lambda x: self.cost(name, at | {name: x}))
        return at
