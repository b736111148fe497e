# SPDX-License-Identifier: Apache-2.0
"""A memory map as a trace for Perfetto or ``chrome://tracing``.

The format is the Trace Event Format, as JSON: complete events (``X``), counters (``C``) and names
(``M``). https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU
"""

from __future__ import annotations

import heapq
import json
from collections.abc import Iterable, Iterator
from typing import Any

from passes.planning import live_bytes
from passes.simulation import Stall
from tvm_ext.drawing.map_picture import Slot, slots_of
from tvm_ext.drawing.timeline import WAIT_NAMES, gaps
from tvm_ext.map.memory_map import MemoryMap
from tvm_ext.map.model import BufferNote, PlannedProblem, PlannedRun, ScopeMap

Event = dict[str, Any]

_MOST_NAMED = 3
"""What a wait is for is in its name if it can be no more things than these."""


def trace(shown: MemoryMap) -> dict[str, Any]:
    """Return a memory map as a trace, for `json.dumps`.

    Each plan of each memory is a process: a counter of the live bytes, and the buffers on as few
    tracks as they need, a position being a microsecond. Each simulation is a process with a track
    for each pipeline, a cycle being a microsecond; before a statement stands what its pipeline
    waited for.
    """
    events: list[Event] = []
    process = 0
    for scope in shown.scopes:
        for placement in scope.placements:
            process += 1
            events += _memory(process, scope, placement)
    for run in shown.runs:
        process += 1
        events += _pipelines(process, run)
    return {
        "traceEvents": events,
        "displayTimeUnit": "ns",
        "otherData": {
            "title": shown.title,
            "statements run": sum(run.simulation.runs for run in shown.runs),
            "statements shown": sum(len(run.simulation.timeline) for run in shown.runs),
        },
    }


def write_trace(shown: MemoryMap) -> str:
    """Return `trace` as JSON text."""
    return json.dumps(trace(shown), separators=(",", ":"))


def _named(what: str, process: int, name: str, track: int = 0) -> Event:
    return {"ph": "M", "name": what, "pid": process, "tid": track, "args": {"name": name}}


def _complete(
    process: int, track: int, name: str, category: str, span: tuple[int, int], **args: object
) -> Event:
    begin, end = span
    where = {"pid": process, "tid": track, "ts": begin, "dur": end - begin}
    return {"ph": "X", "name": name, "cat": category, **where, "args": args}


def _memory(process: int, scope: ScopeMap, placement: PlannedProblem) -> Iterator[Event]:
    name = f"{scope.function} {scope.name}, {placement.label}"
    yield _named("process_name", process, name)
    counter = {"ph": "C", "name": "bytes live", "pid": process, "tid": 0}
    for position, nbytes in live_bytes(placement.problem):
        yield {**counter, "ts": position, "args": {"bytes": nbytes}}
    for track, slot in _tracks(slots_of(placement.problem, placement.plan)):
        args = {"bytes": slot.high - slot.low, "offset": slot.low, "end": slot.high}
        lines = ", ".join(f"{a + 1} to {b + 1}" for a, b in scope.lines_of(slot.buffer))
        what = scope.notes.get(slot.buffer, BufferNote()).what
        known = {name: text for name, text in (("lines", lines), ("what", what)) if text}
        span = (slot.begin, slot.end)
        yield _complete(process, track, slot.label, "buffer", span, **args, **known)


def _tracks(slots: Iterable[Slot]) -> Iterator[tuple[int, Slot]]:
    """Yield each slot with its track: on one track, nothing overlaps."""
    free: list[int] = []
    busy: list[tuple[int, int]] = []
    for slot in sorted(slots, key=lambda slot: (slot.begin, slot.end)):
        while busy and busy[0][0] <= slot.begin:
            heapq.heappush(free, heapq.heappop(busy)[1])
        track = heapq.heappop(free) if free else len(busy) + 1
        heapq.heappush(busy, (slot.end, track))
        yield track, slot


def _pipelines(process: int, run: PlannedRun) -> Iterator[Event]:
    simulation = run.simulation
    name = f"{run.function}, pipelines, {run.planner}: {simulation.makespan} cycles"
    yield _named("process_name", process, name)
    tracks = {time.pipe: at for at, time in enumerate(simulation.pipes, 1)}
    for time in simulation.pipes:
        yield _named("thread_name", process, time.pipe, tracks[time.pipe])
    for ran in simulation.timeline:
        track = tracks[ran.pipe]
        for cause, begin, end in gaps(ran):
            # What the statement waits for at some time or other, for this cause.
            here = (ran.pipe, ran.statement, cause)
            found = [s for s in simulation.stalls if (s.pipe, s.statement, s.cause) == here]
            reasons = [_why(stall) for stall in found]
            label = WAIT_NAMES[cause]
            if 0 < len(found) <= _MOST_NAMED:
                label += ": " + " or ".join(reasons)
            waited = {"statement": ran.statement, "for": reasons}
            yield _complete(process, track, label, "stall", (begin, end), **waited)
        args = {
            "iteration": list(ran.iteration),
            "reads": [f"{buffer}[{slot}]" for buffer, slot in ran.reads],
            "writes": [f"{buffer}[{slot}]" for buffer, slot in ran.writes],
        }
        yield _complete(process, track, ran.statement, "run", (ran.begin, ran.end), **args)


def _why(stall: Stall) -> str:
    return f"{stall.buffer} after {stall.other_buffer} in {stall.other_statement}"
