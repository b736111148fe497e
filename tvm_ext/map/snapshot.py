# SPDX-License-Identifier: Apache-2.0
"""A memory map as a snapshot for PyTorch's memory visualiser, https://pytorch.org/memory_viz.

The format is that of ``torch.cuda.memory._snapshot``, as ``torch/cuda/_memory_viz.py`` and
``MemoryViz.js`` read it: a dictionary of segments and of one trace of events a device.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from typing import Any

from tvm_ext.drawing.map_picture import Slot, slots_of
from tvm_ext.map.memory_map import MemoryMap
from tvm_ext.map.model import BufferNote, PlannedProblem, ScopeMap

PROTOCOL = 4
"""The newest pickle protocol that the visualiser reads."""

Entry = dict[str, Any]


def snapshot(shown: MemoryMap) -> Entry:
    """Return a memory map in the format of a PyTorch memory snapshot, for `pickle.dumps`.

    Each plan of each memory is a device, in the order of the map; ``devices`` names them. Its
    memory is one segment, as large as the memory's capacity, or as the plan where that is more or
    there is no capacity. A slot of a buffer with bytes is allocated where a live range begins and
    freed where it ends; ``time_us`` is the position. Frames are the lines of the program: the line
    that allocates the buffer, and those that write it.

    The visualiser knows one allocation an address. So the source of an in-place pair is freed right
    before its result is allocated, not at the end of the statement in which both are live.
    """
    found: Entry = {"segments": [], "device_traces": [], "devices": []}
    for scope in shown.scopes:
        for placement in scope.placements:
            device, name = len(found["devices"]), f"{scope.function} {scope.name}"
            name += f", {placement.label}"
            base = placement.problem.memory.base
            size = max(placement.plan.peak, placement.problem.capacity or 0)
            found["devices"].append(name)
            found["segments"].append(_segment(device, name, scope.function, base, size))
            where = {"device": device, "stream": 0}
            begin = {"action": "segment_alloc", "addr": base, "size": size, "frames": []}
            events = _events(name, scope, placement)
            found["device_traces"].append(
                [{**begin, "time_us": scope.ends()[0], **where}, *({**e, **where} for e in events)]
            )
    return found


def write_snapshot(shown: MemoryMap) -> bytes:
    """Return `snapshot` as a pickle."""
    return pickle.dumps(snapshot(shown), protocol=PROTOCOL)


def _segment(device: int, name: str, function: str, address: int, size: int) -> Entry:
    # At the end everything is free again.
    free = {"address": address, "size": size, "requested_size": 0, "frames": []}
    return {
        **{"device": device, "address": address, "total_size": size},
        **dict.fromkeys(("allocated_size", "active_size", "requested_size", "stream"), 0),
        "segment_type": "large",
        "frames": [_frame(name, function, 0)],
        "blocks": [{**free, "state": "inactive"}],
    }


def _events(device: str, scope: ScopeMap, placement: PlannedProblem) -> Iterator[Entry]:
    """Yield allocations and frees by their positions, those that free first."""
    slots = sorted(slots_of(placement.problem, placement.plan), key=lambda s: (s.low, s.begin))
    events: list[tuple[int, bool, int]] = []
    for at, slot in enumerate(slots):
        behind = slots[at + 1 : at + 2]
        end = min([slot.end, *(other.begin for other in behind if other.low == slot.low)])
        if slot.begin < end:
            events += [(slot.begin, True, at), (end, False, at)]
    base = placement.problem.memory.base
    for position, begins, at in sorted(events):
        slot = slots[at]
        span = {"addr": base + slot.low, "size": slot.high - slot.low}
        for action in ("alloc",) if begins else ("free_requested", "free_completed"):
            frames = _frames(scope, device, slot)
            yield {"action": action, **span, "frames": frames, "time_us": position}


def _frames(scope: ScopeMap, device: str, slot: Slot) -> list[Entry]:
    note = scope.notes.get(slot.buffer, BufferNote())
    lines = [*([] if note.allocated is None else [note.allocated]), *note.writes]
    first = next(scope.lines_of(slot.buffer), (0, 0))[0]
    text = scope.listing.lines if scope.listing is not None else ()
    written = [_frame(text[at].strip(), scope.function, at + 1) for at in lines if text]
    return [_frame(slot.label, device, first + 1), *written]


def _frame(name: str, filename: str, line: int) -> Entry:
    # TVM's own strings would be pickled as objects.
    return {"name": "".join(name), "filename": "".join(filename), "line": line}
