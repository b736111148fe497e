# SPDX-License-Identifier: Apache-2.0
"""The first strategy for local memory: layer by layer, what lives long first, then what is large.

From LayerGroup's documentation: "allocate them in order of op, giving priority to those with long
timestep, followed by those with large LMEM", and "better not to cross the bank". What stays for
all slices comes first; other than in the first implementation it is in the way of everything, so
that the second slice finds its weights.
"""

from __future__ import annotations

from passes.layer_group.planning.banks import banks_of, places
from passes.layer_group.planning.local_memory import Item, LocalMemory
from passes.planning.plan import Plan, Status


def op_order(local: LocalMemory) -> Plan | None:
    """Place items in the order of the layers, first where they cross no bank, else anywhere.

    The result is None if an item finds no room.
    """
    count = len(local.rows)

    def duration(item: Item) -> int:
        if item.life.everywhere:
            return count - item.life.first
        return sum(end - begin for begin, end in item.life.ranges(count))

    computing = [number for number, row in enumerate(local.rows) if row.compute]
    turns = [[item for item in local.items if item.life.everywhere]]
    for row in [*computing, *range(count)]:
        bit = 1 << row
        turns.append([item for item in local.items if local.rows_of[item.name] & bit])
    offsets: dict[str, int] = {}
    for items in turns:
        waiting = [item for item in items if item.name not in offsets]
        for item in sorted(waiting, key=lambda i: (-duration(i), -i.lane_bytes)):
            starts = places(local, item, offsets)
            inside = [at for at in starts if len(banks_of(local.memory, at, item.lane_bytes)) <= 1]
            if not starts:
                return None
            offsets[item.name] = (inside or starts)[0]
    peak = max((offsets[i.name] + i.lane_bytes for i in local.items), default=0)
    return Plan({n: (at,) for n, at in offsets.items()}, peak, 0, "op_order", Status.FEASIBLE)
