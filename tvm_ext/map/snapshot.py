# SPDX-License-Identifier: Apache-2.0
"""A memory map as a snapshot for PyTorch's memory visualiser, https://pytorch.org/memory_viz.

The format is that of ``torch.cuda.memory._snapshot``, as ``torch/cuda/_memory_viz.py`` and
``MemoryViz.js`` read it: a dictionary of segments and of one trace of events a device.
"""

from __future__ import annotations

import pickle
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from tvm_ext.drawing.memory_map import Slot, slots_of
from tvm_ext.map.memory_map import MemoryMap
from tvm_ext.map.model import BufferNote, Placement, ScopeMap

PROTOCOL = 4
"""The newest pickle protocol that the visualiser reads."""

_STREAM = 0

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
    devices = [(scope, placement) for scope in shown.scopes for placement in scope.placements]
    return {
        "segments": [_segment(device, *parts) for device, parts in enumerate(devices)],
        "device_traces": [_trace(device, *parts) for device, parts in enumerate(devices)],
        "devices": [_device(scope, placement) for scope, placement in devices],
    }


def write_snapshot(shown: MemoryMap) -> bytes:
    """Return `snapshot` as a pickle."""
    return pickle.dumps(snapshot(shown), protocol=PROTOCOL)


def _device(scope: ScopeMap, placement: Placement) -> str:
    return f"{scope.function} {scope.name}, {placement.label}"


def _segment_size(placement: Placement) -> int:
    return max(placement.plan.peak, placement.problem.capacity or 0)


def _segment(device: int, scope: ScopeMap, placement: Placement) -> Entry:
    address, size = placement.problem.memory.base, _segment_size(placement)
    free = {"address": address, "size": size, "requested_size": 0, "frames": []}
    return {
        **{"device": device, "address": address, "total_size": size},
        **dict.fromkeys(("allocated_size", "active_size", "requested_size"), 0),
        "stream": _STREAM,
        "segment_type": "large",
        "frames": [_frame(_device(scope, placement), scope.function, 0)],
        "blocks": [{**free, "state": "inactive"}],  # At the end everything is free again.
    }


class _Event(NamedTuple):
    """When a slot begins or ends to be live; ends come first at one position."""

    position: int
    begins: bool
    slot: int  # Its number


def _trace(device: int, scope: ScopeMap, placement: Placement) -> list[Entry]:
    base = placement.problem.memory.base
    where = {"device": device, "stream": _STREAM}
    begin: Entry = {"addr": base, "size": _segment_size(placement), "frames": []}
    entries = [{"action": "segment_alloc", **begin, "time_us": scope.ends()[0], **where}]
    slots = list(slots_of(placement.problem, placement.plan))
    frames = [_frames(scope, _device(scope, placement), slot) for slot in slots]
    for position, begins, at in _shown_events(slots):
        span = {"addr": base + slots[at].low, "size": slots[at].high - slots[at].low}
        entry = {**span, "frames": frames[at], "time_us": position}
        for action in ("alloc",) if begins else ("free_requested", "free_completed"):
            entries.append({"action": action, **entry, **where})
    return entries


def _shown_events(slots: Sequence[Slot]) -> Iterator[_Event]:
    """Yield the events, with one buffer an address: of those live there, the last one to begin."""
    live: defaultdict[int, list[int]] = defaultdict(list)
    begins = (_Event(slot.begin, True, at) for at, slot in enumerate(slots))
    ends = (_Event(slot.end, False, at) for at, slot in enumerate(slots))
    for event in sorted((*begins, *ends)):
        here = live[slots[event.slot].low]
        if event.begins:
            if here:
                yield _Event(event.position, False, here[-1])
            here.append(event.slot)
            yield event
        elif here[-1] == event.slot:
            here.pop()
            yield event
            if here:
                yield _Event(event.position, True, here[-1])
        else:
            here.remove(event.slot)


def _frames(scope: ScopeMap, device: str, slot: Slot) -> list[Entry]:
    note = scope.notes.get(slot.buffer, BufferNote())
    lines = [*([] if note.allocated is None else [note.allocated]), *note.writes]
    first = next(scope.lines_of(slot.buffer), (0, 0))[0]
    frames = [_frame(slot.label, device, first + 1)]
    if scope.listing is not None:
        text = scope.listing.lines
        frames += [_frame(text[line].strip(), scope.function, line + 1) for line in lines]
    return frames


def _frame(name: str, filename: str, line: int) -> Entry:
    # TVM's own strings would be pickled as objects.
    return {"name": "".join(name), "filename": "".join(filename), "line": line}
