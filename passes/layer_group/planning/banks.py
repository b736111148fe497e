# SPDX-License-Identifier: Apache-2.0
"""Banks of local memory: which items meet in one bank, and how to keep them apart.

Two accesses to one bank in one step wait for each other: operands and results of one layer, or
what a layer touches and what is loaded or stored meanwhile. That costs time; it is never wrong.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from passes.layer_group.planning.local_memory import Item, LocalMemory
from passes.planning.plan import Plan, Status
from target_hw.memory import MemoryScope

ROUNDS = 8
"""How often `keep_apart` goes over all items at most."""


@dataclass(frozen=True)
class BankConflict:
    """Two items that one step touches in one bank."""

    row: int  # The time step
    # Names of the items; the layer touches the first.
    first: str
    second: str
    bank: int  # The lowest bank that they share


def banks_of(memory: MemoryScope, begin: int, size: int) -> range:
    """Return the banks in which ``size`` bytes from offset `begin` lie."""
    if not memory.bank_bytes or size == 0:
        return range(0)
    return range(begin // memory.bank_bytes, (begin + size - 1) // memory.bank_bytes + 1)


def rivals(local: LocalMemory) -> dict[str, dict[str, int]]:
    """Return for each item those that should not share a bank with it, and in how many rows."""
    found: dict[str, dict[str, int]] = {item.name: {} for item in local.items}
    for row in local.rows:
        for first, second in _meeting(local, row.compute, row.transfer):
            for one, other in ((first, second), (second, first)):
                found[one][other] = found[one].get(other, 0) + 1
    return found


def _meeting(
    local: LocalMemory, compute: tuple[str, ...], transfer: tuple[str, ...]
) -> list[tuple[str, str]]:
    """Return the pairs of items that one step touches, the layer at least one of them."""
    touched = [name for name in compute if name in local.item]
    moved = [name for name in transfer if name in local.item and name not in touched]
    pairs = [(a, b) for at, a in enumerate(touched) for b in touched[at + 1 :]]
    return pairs + [(a, b) for a in touched for b in moved]


def bank_conflicts(local: LocalMemory, plan: Plan) -> tuple[BankConflict, ...]:
    """Return each pair of items that meet in a bank, row by row."""
    conflicts = []
    for number, row in enumerate(local.rows):
        for first, second in _meeting(local, row.compute, row.transfer):
            banks = [
                banks_of(local.memory, plan.offsets[name][0], local.item[name].lane_bytes)
                for name in (first, second)
            ]
            begin = max(banks[0].start, banks[1].start)
            if begin < min(banks[0].stop, banks[1].stop):
                conflicts.append(BankConflict(number, first, second, begin))
    return tuple(conflicts)


def crossings(local: LocalMemory, plan: Plan) -> tuple[str, ...]:
    """Return the items that lie in more banks than they have to."""
    bank = local.memory.bank_bytes
    if not bank:
        return ()
    return tuple(
        item.name
        for item in local.items
        if len(banks_of(local.memory, plan.offsets[item.name][0], item.lane_bytes))
        > -(-item.lane_bytes // bank)
    )


def bank_penalty(local: LocalMemory, plan: Plan) -> int:
    """Return two for each pair that meets in a bank in a row, and one for each crossing."""
    return 2 * len(bank_conflicts(local, plan)) + len(crossings(local, plan))


def keep_apart(local: LocalMemory, plan: Plan) -> Plan:
    """Move items of a plan that fits to where fewer of them meet in a bank; it goes on fitting.

    Each item in turn takes the place of least penalty among all places where it can start: zero,
    the ends of items and of banks. A step in which two items meet in a bank costs two, an item
    that crosses a bank without need costs one. This goes on until nothing changes.
    """
    memory = local.memory
    if not plan.fits or not memory.bank_bytes or memory.capacity is None:
        return plan
    foes = rivals(local)
    offsets = {name: starts[0] for name, starts in plan.offsets.items()}
    for _ in range(ROUNDS):
        changed = False
        for item in local.items:
            at = offsets[item.name]
            ((now, _),) = _penalties(local, item, [at], offsets, foes[item.name])
            if now == 0:
                continue
            starts = places(local, item, offsets)
            cost, best = min(_penalties(local, item, [at, *starts], offsets, foes[item.name]))
            if cost < now:
                offsets[item.name], changed = best, True
        if not changed:
            break
    peak = max((offsets[i.name] + i.lane_bytes for i in local.items), default=0)
    if peak != plan.peak or any(plan.offsets[n] != (o,) for n, o in offsets.items()):
        # Offsets are other ones now: what was known of the peak no longer holds.
        moved = {name: (offset,) for name, offset in offsets.items()}
        status = plan.status if peak <= plan.peak else Status.FEASIBLE
        return replace(plan, offsets=moved, peak=peak, status=status)
    return plan


def spread(local: LocalMemory) -> tuple[Plan, ...]:
    """Place items one after the other, each where it meets the fewest others in a bank.

    There is one plan for each order that finds room for all: what takes many bytes for many steps
    first, what takes many bytes first, and what stays for all slices first.
    """
    if not local.memory.bank_bytes or local.memory.capacity is None:
        return ()
    foes = rivals(local)
    orders = (
        sorted(local.items, key=lambda item: -local.area(item)),
        sorted(local.items, key=lambda item: -item.lane_bytes),
        sorted(local.items, key=lambda item: (not item.life.everywhere, -local.area(item))),
    )
    plans = []
    for order in orders:
        offsets: dict[str, int] = {}
        for item in order:
            starts = places(local, item, offsets)
            if not starts:
                break
            _, offsets[item.name] = min(_penalties(local, item, starts, offsets, foes[item.name]))
        else:
            peak = max((offsets[i.name] + i.lane_bytes for i in local.items), default=0)
            found = {item.name: (offsets[item.name],) for item in local.items}
            plans.append(Plan(found, peak, 0, "spread", Status.FEASIBLE))
    return tuple(plans)


def _penalties(
    local: LocalMemory,
    item: Item,
    starts: Iterable[int],
    offsets: Mapping[str, int],
    foes: Mapping[str, int],
) -> list[tuple[int, int]]:
    """Return the penalty of an item at each of these offsets, and the offset."""
    bank, size = local.memory.bank_bytes or 1, item.lane_bytes
    taken = [
        (banks_of(local.memory, offsets[foe], local.item[foe].lane_bytes), 2 * rows)
        for foe, rows in foes.items()
        if foe in offsets
    ]
    others = [(banks.start, banks.stop, cost) for banks, cost in taken]
    found = []
    for start in starts:
        first, stop = start // bank, (start + size - 1) // bank + 1
        penalty = int(stop - first > -(-size // bank))
        penalty += sum(cost for begin, end, cost in others if begin < stop and first < end)
        found.append((penalty, start))
    return found


def places(local: LocalMemory, item: Item, offsets: Mapping[str, int]) -> list[int]:
    """Return the offsets at which an item overlaps nothing placed that lives when it does."""
    memory, rows = local.memory, local.rows_of
    capacity, alignment = memory.capacity or 0, memory.alignment
    busy = list(memory.reserved)
    for other in local.items:
        placed = other.name in offsets and other.name != item.name
        if placed and rows[item.name] & rows[other.name]:
            busy.append((offsets[other.name], offsets[other.name] + other.lane_bytes))
    starts = {0, *(end for _, end in busy)}
    starts.update(range(0, capacity, memory.bank_bytes or capacity))
    aligned = sorted({-(-start // alignment) * alignment for start in starts})
    begins = sorted(begin for begin, _ in busy)
    ends = sorted(end for _, end in busy)
    # Nothing is in the way if as much has ended at the start as begins before the end.
    return [
        start
        for start in aligned
        if start + item.lane_bytes <= capacity
        and bisect_right(ends, start) == bisect_left(begins, start + item.lane_bytes)
    ]
