# SPDX-License-Identifier: Apache-2.0
"""The newer strategy for local memory: items that would wait for each other lie in other banks.

After tpu-mlir's ``LmemAllocator``, without its sharing of operand and result: the item that can
start lowest is placed next, where each avoids the banks of items that it should not meet, as long
as there is room elsewhere. Avoiding banks leaves holes; where an item then finds no room, the
caller tries again without.
"""

from __future__ import annotations

from passes.layer_group.planning.banks import banks_of, rivals
from passes.layer_group.planning.local_memory import OPERATION, Item, LocalMemory
from passes.planning.plan import Plan, Status
from target_hw.memory import round_up

Piece = tuple[int, int]
"""Free bytes ``[begin, end)``."""


def bank_aware(local: LocalMemory, *, avoid: bool = True) -> Plan | None:
    """Place the items of a group, large and long-lived ones first among those that start lowest.

    With `avoid`, items avoid the banks of others. The result is None if an item finds no room.
    """
    if local.memory.capacity is None:
        raise ValueError(f"{local.name}: the planner 'bank_aware' needs a capacity")
    state = _State(local, avoid)
    while state.unplaced:
        if not state.place_next():
            return None
    peak = max((state.offsets[i.name] + i.lane_bytes for i in local.items), default=0)
    offsets = {item.name: (state.offsets[item.name],) for item in local.items}
    return Plan(offsets, peak, 0, "bank_aware", Status.FEASIBLE)


class _State:
    """What is placed, and what is still free for each other item."""

    def __init__(self, local: LocalMemory, avoid: bool) -> None:
        self.local = local
        self.avoid = avoid
        self.offsets: dict[str, int] = {}
        self.unplaced = list(local.items)
        self._rivals = rivals(local)
        self._free = {item.name: self._all() for item in local.items}
        self._banned: dict[str, set[int]] = {item.name: set() for item in local.items}
        self._starts: dict[str, int | None] = {}  # Where each can start, as far as that is known
        # What still waits for a place, of what each computing row touches; working memory does
        # not count here.
        self._compute = [
            {n for n in row.compute if n in local.item and local.item[n].kind != OPERATION}
            for row in local.rows
        ]
        self._transfer = [
            set(row.transfer) & set(local.item) if row.compute else set[str]() for row in local.rows
        ]

    def _all(self) -> list[Piece]:
        pieces, begin = [], 0
        for low, high in [*self.local.memory.reserved, (self.local.memory.capacity or 0, 0)]:
            if begin < low:
                pieces.append((begin, low))
            begin = round_up(high, self.local.memory.alignment)
        return pieces

    def place_next(self) -> bool:
        """Place one more item; False if one finds no room."""
        at_risk = {name for row in (*self._compute, *self._transfer) for name in row}
        self.unplaced.sort(key=lambda i: (i.name not in at_risk, -self.local.area(i), i.life.first))
        candidates = []
        for order, item in enumerate(self.unplaced):
            if item.name not in self._starts:
                self._starts[item.name] = self._candidate(item)
            start = self._starts[item.name]
            if start is None:
                return False
            candidates.append((start if self.offsets else 0, order))
            if not self.offsets:
                break
        start, order = min(candidates)
        if not self.offsets:
            start = self._candidate(self.unplaced[order]) or 0
        self._settle(self.unplaced.pop(order), start)
        return True

    def _candidate(self, item: Item) -> int | None:
        pieces = [p for p in self._free[item.name] if p[1] - p[0] >= item.lane_bytes]
        if not pieces:
            return None
        bank_bytes = self.local.memory.bank_bytes
        if self.avoid and bank_bytes:
            allowed = pieces
            for bank in sorted(self._banned[item.name]):
                allowed = _without(allowed, bank * bank_bytes, (bank + 1) * bank_bytes)
            for begin, end in allowed:
                if end - begin >= item.lane_bytes:
                    return begin
        return pieces[0][0]

    def _settle(self, placed: Item, start: int) -> None:
        self.offsets[placed.name] = start
        end = round_up(start + placed.lane_bytes, self.local.memory.alignment)
        banks = banks_of(self.local.memory, start, placed.lane_bytes)
        for item in self.unplaced:
            if placed.name in self._rivals[item.name]:
                self._starts.pop(item.name, None)
                self._banned[item.name].update(banks)
            if self.local.rows_of[item.name] & self.local.rows_of[placed.name]:
                self._starts.pop(item.name, None)
                self._free[item.name] = _without(self._free[item.name], start, end)
        for compute, transfer in zip(self._compute, self._transfer, strict=True):
            compute.discard(placed.name)
            transfer.discard(placed.name)
            if not compute:
                transfer.clear()
            elif len(compute) == 1 and not transfer:
                compute.clear()


def _without(pieces: list[Piece], begin: int, end: int) -> list[Piece]:
    """Return what is left of pieces without the bytes ``[begin, end)``."""
    left = []
    for low, high in pieces:
        if low < min(high, begin):
            left.append((low, min(high, begin)))
        if max(low, end) < high:
            left.append((max(low, end), high))
    return left
