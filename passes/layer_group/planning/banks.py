# SPDX-License-Identifier: Apache-2.0
"""Banks of local memory: places at which what is used at once does not share a bank.

A bank serves one access at a time. So two operands of a layer, or an operand and a tensor that is
moved meanwhile, should lie in banks of their own, and no buffer in more banks than it needs.
(tpu-mlir, ``LmemAllocator``; LayerGroup's document: "it is better not to cross the bank".) A local
memory has a capacity, and no price for bytes: of plans within it, the one is taken in which the
fewest operands meet, then the fewest operands and transfers, then the fewest buffers cross a bank
that they need not cross. The cycles of a meeting are not published, and the cost model charges
nothing for it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain, combinations, product

from passes.layer_group.planning.local_memory import LocalMemory
from passes.layer_group.planning.time_steps import TimeSteps
from passes.planning import Plan, Status

Pair = tuple[str, str]

OPERANDS, TRANSFERS = 1 << 20, 1 << 10
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
        moved = [*(transfer.tensor for transfer in row.transfers), *row.parted]
        beside = product(moved, dict.fromkeys(chain(*touched)))
        yield operands, {(min(x), max(x)) for x in beside if x[0] != x[1]} - operands


def bank_conflicts(local: LocalMemory, steps: TimeSteps, plan: Plan) -> int:
    """Return in how many time steps operands, or an operand and a transfer, share a bank."""
    if not local.bank_bytes:
        return 0
    banks = {
        name: set(range(at // local.bank_bytes, (at + size - 1) // local.bank_bytes + 1))
        for name, size in local.sizes.items()
        for at in plan.offsets[name][:1]
    }
    return sum(
        any(banks.get(one, set()) & banks.get(other, set()) for one, other in pairs | beside)
        for pairs, beside in used_at_once(steps)
    )


def in_banks(local: LocalMemory, steps: TimeSteps, plan: Plan) -> Plan:
    """Return a plan that meets in banks as little as is found; `plan` if none is better."""
    if not local.bank_bytes:
        return plan
    weights: dict[str, Counter[str]] = {name: Counter() for name in local.sizes}
    for operands, beside in used_at_once(steps):
        each = dict.fromkeys(operands, OPERANDS) | dict.fromkeys(beside, TRANSFERS)
        for (one, other), weight in each.items():
            if one in weights and other in weights:
                weights[one][other] += weight
                weights[other][one] += weight
    given = {name: plan.offsets[name][0] for name in local.sizes}
    best = _Places(local, weights, {}, given)
    kept = {other: one for _, (one, other) in local.in_place if given[one] == given[other]}
    sizes, bank = local.sizes, local.bank_bytes
    steps_of = {name: sum(end - begin for begin, end in local.live[name]) for name in sizes}
    # The largest for the longest time first, or the largest that meet most.
    orders = (
        sorted(sizes, key=lambda x: -sizes[x] * steps_of[x]),
        sorted(sizes, key=lambda x: (-(sizes[x] // bank), -weights[x].total(), -sizes[x])),
    )
    # Results that lie in an operand's place are placed with it where there is no room for both.
    for together, order in product(({}, kept) if kept else ({},), orders):
        found = _Places(local, weights, together, {})
        fits = all(found.place(name) for name in order if name not in together)
        if fits and found.cost < best.cost:
            best = found
        if best.cost == 0:
            break
    if best.at == given:
        return plan
    offsets = {name: (best.at[name],) for name in local.sizes}
    peak = max(best.at[name] + size for name, size in local.sizes.items())
    return replace(plan, offsets=offsets, peak=peak, status=Status.FEASIBLE)


@dataclass(eq=False)
class _Places:
    """Places of some buffers; a place decides in how many banks its buffer is."""

    local: LocalMemory
    weights: Mapping[str, Counter[str]]  # The price of a bank that two buffers share
    together: Mapping[str, str]  # Buffers that lie where another one does
    at: dict[str, int]

    def __post_init__(self) -> None:
        self._bank = self.local.bank_bytes
        self._rows = {
            name: {step for begin, end in self.local.live[name] for step in range(begin, end)}
            for name in self.local.sizes
        }
        self._with = {name: [name] for name in self.local.sizes}
        for name in self.together:
            other = name
            while other in self.together:
                other = self.together[other]
            self._rows[other] |= self._rows[name]
            self._with[other].append(name)

    def least(self, name: str) -> int:
        """Return in how many banks a buffer is at least."""
        return -(-self.local.sizes[name] // self._bank)

    def _banks(self, name: str, at: int) -> range:
        return range(at // self._bank, (at + self.local.sizes[name] - 1) // self._bank + 1)

    def _cost_at(self, name: str, at: int) -> int:
        """Return what a place costs: meetings with what is placed, and a bank that is crossed."""
        banks = self._banks(name, at)
        cost = int(len(banks) > self.least(name))
        for other, weight in (
            (x, w) for one in self._with[name] for x, w in self.weights[one].items()
        ):
            if other in self.at:
                theirs = self._banks(other, self.at[other])
                cost += weight if banks.start < theirs.stop and theirs.start < banks.stop else 0
        return cost

    @property
    def cost(self) -> int:
        """The cost of all places together; a meeting counts for both."""
        return sum(self._cost_at(name, at) for name, at in self.at.items())

    def place(self, name: str) -> bool:
        """Put a buffer where it costs least with those that are placed; False if it has no room."""
        size, unit, sizes = self.local.sizes[name], self.local.memory.alignment, self.local.sizes
        capacity = self.local.memory.capacity or 0
        taken = sorted(
            (at, at + sizes[other])
            for other, at in self.at.items()
            if not self._rows[name].isdisjoint(self._rows[other])
        )
        starts, begin = set[int](), 0
        for low, high in (*taken, (capacity, capacity)):
            first, last = -(-begin // unit) * unit, (low - size) // unit * unit
            if first <= last:  # At the ends of a gap, or of a bank in it.
                banks = [
                    at * self._bank for at in range(first // self._bank, low // self._bank + 1)
                ]
                ends = ((at - size) // unit * unit for at in banks)
                starts.update((first, last, *(at for at in (*banks, *ends) if first <= at <= last)))
            begin = max(begin, high)
        chosen = min(sorted(starts), key=lambda at: self._cost_at(name, at), default=None)
        if chosen is None:
            return False
        self.at |= dict.fromkeys(self._with[name], chosen)
        return True
