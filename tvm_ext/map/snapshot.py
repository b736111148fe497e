# SPDX-License-Identifier: Apache-2.0
"""A memory map as a snapshot for PyTorch's memory visualiser, https://pytorch.org/memory_viz.

The format is that of ``torch.cuda.memory._snapshot``, as ``torch/cuda/_memory_viz.py`` and
``MemoryViz.js`` read it: a dictionary of segments and of one trace of events a device.
"""

from __future__ import annotations

import pickle
from collections import defaultdict
from collections.abc import Iterator
from typing import Any, NamedTuple

from passes.planning import Buffer
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
    buffer: int
    slot: int


def _trace(device: int, scope: ScopeMap, placement: Placement) -> list[Entry]:
    base, buffers = placement.problem.memory.base, placement.problem.buffers
    where = {"device": device, "stream": _STREAM}
    begin: Entry = {"addr": base, "size": _segment_size(placement), "frames": []}
    entries = [{"action": "segment_alloc", **begin, "time_us": scope.ends()[0], **where}]
    for position, begins, at, slot in _shown_events(placement):
        buffer = buffers[at]
        address = base + placement.plan.offsets[buffer.name][slot]
        frames = _frames(scope, placement, buffer, slot)
        entry = {"addr": address, "size": buffer.size, "frames": frames, "time_us": position}
        for action in ("alloc",) if begins else ("free_requested", "free_completed"):
            entries.append({"action": action, **entry, **where})
    return entries


def _shown_events(placement: Placement) -> Iterator[_Event]:
    """Yield the events, with one buffer an address: of those live there, the last one to begin."""
    buffers, offsets = placement.problem.buffers, placement.plan.offsets
    live: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)
    for event in sorted(_events(placement)):
        position, begins, at, slot = event
        here = live[offsets[buffers[at].name][slot]]
        if begins:
            if here:
                yield _Event(position, False, *here[-1])
            here.append((at, slot))
            yield event
        elif here[-1] == (at, slot):
            here.pop()
            yield event
            if here:
                yield _Event(position, True, *here[-1])
        else:
            here.remove((at, slot))


def _events(placement: Placement) -> Iterator[_Event]:
    for at, buffer in enumerate(placement.problem.buffers):
        for slot in range(len(placement.plan.offsets[buffer.name]) if buffer.size else 0):
            for begin, end in buffer.live:
                yield _Event(begin, True, at, slot)
                yield _Event(end, False, at, slot)


def _frames(scope: ScopeMap, placement: Placement, buffer: Buffer, slot: int) -> list[Entry]:
    note, several = scope.notes.get(buffer.name, BufferNote()), buffer.slots > 1
    name = f"{buffer.name} [slot {slot}]" if several else buffer.name
    lines = [*([] if note.allocated is None else [note.allocated]), *note.writes]
    first = next(scope.lines_of(buffer.name), (0, 0))[0]
    frames = [_frame(name, _device(scope, placement), first + 1)]
    if scope.listing is not None:
        text = scope.listing.lines
        frames += [_frame(text[line].strip(), scope.function, line + 1) for line in lines]
    return frames


def _frame(name: str, filename: str, line: int) -> Entry:
    # TVM's own strings would be pickled as objects.
    return {"name": "".join(name), "filename": "".join(filename), "line": line}
