# SPDX-License-Identifier: Apache-2.0
"""The first strategy for local memory: layer by layer, what lives long first, then what is large.

From LayerGroup's documentation: "allocate them in order of op, giving priority to those with long
timestep, followed by those with large LMEM", and "better not to cross the bank". What stays for
all slices comes first; other than in the first implementation it is in the way of everything, so
that the second slice finds its weights.
"""

from __future__ import annotations

from passes.layer_group.planning.banks import banks_of
from passes.layer_group.planning.local_memory import Item, LocalMemory
from passes.planning.plan import Plan, Status


def op_order(local: LocalMemory) -> Plan:
    """Place items in the order of the layers, first where they cross no bank, else anywhere.

    Items for which there is no room lie above the capacity.
    """
    count = len(local.rows)
    offsets: dict[str, int] = {}

    def duration(item: Item) -> int:
        if item.life.everywhere:
            return count - item.life.first
        return sum(end - begin for begin, end in item.life.ranges(count))

    def place(items: list[Item]) -> None:
        for item in sorted(items, key=lambda i: (-duration(i), -i.lane_bytes)):
            offsets[item.name] = _lowest(local, item, offsets)

    place([item for item in local.items if item.life.everywhere])
    computing = [number for number, row in enumerate(local.rows) if row.compute]
    for row in [*computing, *range(count)]:
        place(
            [
                item
                for item in local.items
                if item.name not in offsets
                and any(begin <= row < end for begin, end in item.life.ranges(count))
            ]
        )
    peak = max((offsets[i.name] + i.lane_bytes for i in local.items), default=0)
    capacity = local.memory.capacity
    fits = capacity is None or peak <= capacity
    status = Status.FEASIBLE if fits else Status.NOT_FOUND
    return Plan({n: (at,) for n, at in offsets.items()}, peak, 0, "op_order", status)


def _lowest(local: LocalMemory, item: Item, offsets: dict[str, int]) -> int:
    """Return the lowest free offset within one bank; without that, if it is above the capacity."""
    rows = local.rows_of
    busy = list(local.memory.reserved)
    for other in local.items:
        if other.name in offsets and rows[item.name] & rows[other.name]:
            busy.append((offsets[other.name], offsets[other.name] + other.lane_bytes))
    busy.sort()
    capacity, bank = local.memory.capacity, local.memory.bank_bytes
    if bank and item.lane_bytes <= bank:
        start = _first_fit(local, item, busy, within_bank=True)
        if capacity is None or start + item.lane_bytes <= capacity:
            return start
    return _first_fit(local, item, busy, within_bank=False)


def _first_fit(
    local: LocalMemory, item: Item, busy: list[tuple[int, int]], *, within_bank: bool
) -> int:
    start = 0
    for begin, end in [*busy, (None, None)]:
        if within_bank and len(banks_of(local.memory, start, item.lane_bytes)) > 1:
            start = _round_up(start, local.memory.bank_bytes or 1)
        if begin is None or end is None or start + item.lane_bytes <= begin:
            break
        start = max(start, _round_up(end, local.memory.alignment))
    return start


def _round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple
