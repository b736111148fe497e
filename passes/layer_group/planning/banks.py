# SPDX-License-Identifier: Apache-2.0
"""Banks of local memory: places at which what is used at once does not share a bank.

A bank serves one access at a time. So two operands of a layer, or an operand and a tensor that is
moved meanwhile, should lie in banks of their own, and no buffer in more banks than it needs.
(tpu-mlir, ``LmemAllocator``; LayerGroup's document: "it is better not to cross the bank".) A local
memory has a capacity, and no price for bytes: of plans within it, the one is taken in which the
fewest operands meet, then the fewest operands and transfers, then the fewest buffers cross a bank
that they need not cross. What a meeting costs in cycles is not published, and the cost model
charges nothing for it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, combinations, product

from passes.layer_group.planning.local_memory import LocalMemory
from passes.layer_group.planning.time_steps import TimeSteps
from passes.planning import Plan, Status

Pair = tuple[str, str]

OPERANDS, TRANSFERS = 1 << 20, 1 << 10
"""The cost of a bank that two operands of a step share; an operand and a transfer. A buffer that
crosses a bank needlessly costs 1: there are fewer of them."""

ROUNDS = 4
"""The number of times that each buffer that meets another one is placed anew."""


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
    weights: Counter[Pair] = Counter()
    for operands, beside in used_at_once(steps):
        weights.update(dict.fromkeys(operands, OPERANDS) | dict.fromkeys(beside, TRANSFERS))
    given = {name: plan.offsets[name][0] for name in local.sizes}
    best = _Places(local, weights, {}, given)
    kept = {other: one for _, (one, other) in local.in_place if given[one] == given[other]}
    # Results that lie in an operand's place are placed with it where there is no room for both.
    for together in ({}, kept) if kept else ({},):
        for order in _orders(local, weights):
            found = _Places(local, weights, together, {})
            fits = all(found.place(name) for name in order if name not in together)
            if fits and found.improved().cost < best.cost:
                best = found
            if best.cost == 0:
                break
    if best.at == given:
        best = _Places(local, weights, kept, given).improved()
    offsets = {name: (best.at[name],) for name in local.sizes}
    if best.at == given:
        return plan
    peak = max(best.at[name] + size for name, size in local.sizes.items())
    return replace(plan, offsets=offsets, peak=peak, status=Status.FEASIBLE)


def _orders(local: LocalMemory, weights: Mapping[Pair, int]) -> Iterator[Sequence[str]]:
    """Yield orders in which buffers are placed: large ones, long-lived ones, then as they come."""
    meets: Counter[str] = Counter()
    for (one, other), weight in weights.items():
        meets.update({one: weight, other: weight})
    steps = {name: sum(b - a for a, b in live) for name, live in local.live.items()}
    sizes = local.sizes
    yield sorted(sizes, key=lambda x: (-(sizes[x] // local.bank_bytes), -meets[x], -sizes[x]))
    yield sorted(sizes, key=lambda x: -sizes[x] * steps[x])
    yield list(sizes)


@dataclass(eq=False)
class _Places:
    """Places of some buffers; a place decides in how many banks its buffer is."""

    local: LocalMemory
    weights: Mapping[Pair, int]
    together: Mapping[str, str]  # Buffers that lie where another one does
    at: dict[str, int]

    def __post_init__(self) -> None:
        local = self.local
        self._bank, self._unit = local.bank_bytes, local.memory.alignment
        self._capacity = local.memory.capacity or 0
        self._rows = {
            name: sum(((1 << end) - 1) ^ ((1 << begin) - 1) for begin, end in local.live[name])
            for name in local.sizes
        }
        self._followers: dict[str, list[str]] = {}
        for name in self.together:
            other = name
            while other in self.together:
                other = self.together[other]
            self._rows[other] |= self._rows[name]
            self._followers.setdefault(other, []).append(name)
        self._near: dict[str, dict[str, int]] = {name: {} for name in local.sizes}
        for (one, other), weight in self.weights.items():
            if one in local.sizes and other in local.sizes:
                self._near[one][other] = self._near[other][one] = weight

    def _mask(self, name: str, at: int) -> int:
        first, last = at // self._bank, (at + self.local.sizes[name] - 1) // self._bank
        return (2 << last) - (1 << first)

    def _cost_at(self, name: str, at: int) -> int:
        """Return what a place costs: meetings with what is placed, and a bank that is crossed."""
        mask, least = self._mask(name, at), -(-self.local.sizes[name] // self._bank)
        cost = int(mask.bit_count() > least)
        for one in (name, *self._followers.get(name, ())):
            for other, weight in self._near[one].items():
                if other in self.at and mask & self._mask(other, self.at[other]):
                    cost += weight
        return cost

    @property
    def cost(self) -> int:
        """The cost of all places together; a meeting counts for both."""
        return sum(self._cost_at(name, at) for name, at in self.at.items())

    def place(self, name: str) -> bool:
        """Put a buffer where it costs least with those that are placed; False if it has no room."""
        size, rows, unit = self.local.sizes[name], self._rows[name], self._unit
        taken = sorted(
            (at, at + self.local.sizes[other])
            for other, at in self.at.items()
            if rows & self._rows[other]
        )
        most, starts = self._capacity - size, set[int]()
        begin = 0
        for low, high in (*taken, (self._capacity, self._capacity)):
            first, last = -(-begin // unit) * unit, (low - size) // unit * unit
            if first <= last:
                starts.update((first, last))
                banks = range(-(-first // self._bank) * self._bank, last + 1, self._bank)
                starts.update(banks)
                ends = range(-(-(first + size) // self._bank) * self._bank, low + 1, self._bank)
                starts.update((end - size) // unit * unit for end in ends)
            begin = max(begin, high)
        able = sorted(at for at in starts if 0 <= at <= most)
        if not able:
            return False
        chosen = min(able, key=lambda at: (self._cost_at(name, at), at))
        self.at |= dict.fromkeys((name, *self._followers.get(name, ())), chosen)
        return True

    def improved(self) -> _Places:
        """Place each buffer that costs something anew, as long as that lowers the cost."""
        for _ in range(ROUNDS):
            before = self.cost
            for name in [name for name in self.local.sizes if name not in self.together]:
                if self._cost_at(name, self.at[name]):
                    old = dict(self.at)
                    for one in (name, *self._followers.get(name, ())):
                        del self.at[one]
                    if not self.place(name):
                        self.at = old
            if self.cost >= before:
                break
        return self
