# SPDX-License-Identifier: Apache-2.0
"""A report in the Trace Event Format, which Perfetto and ``chrome://tracing`` open.

Each plan is a process: what the program does, a counter of the bytes in use, and a slice for each
buffer while it is live. One position of the program takes a microsecond. A simulated run is a
process with a thread for each pipe, in which a cycle takes a microsecond.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

from passes.planning import live_bytes
from tvm_ext.report.memory_view import BufferNote, MemoryView, PlannedProblem, PlannedRun

Event = dict[str, Any]


def trace_of(memories: Sequence[MemoryView], runs: Sequence[PlannedRun]) -> dict[str, Any]:
    """Return the events of plans and simulated runs, by processes in that order."""
    events: list[Event] = []
    plans = [(view, one) for view in memories for one in view.plans]
    for number, (view, one) in enumerate(plans, 1):
        events.append(_named(number, f"{view.owner} {view.name}: {one.label}"))
        events += ({"pid": number, **event} for event in _of_plan(view, one, number))
    for number, run in enumerate(runs, len(plans) + 1):
        events.append(_named(number, f"{run.function}, simulated: {run.planner}"))
        events += ({"pid": number, **event} for event in _of_run(run))
    return {"traceEvents": events, "displayTimeUnit": "ns"}


def _named(process: int, name: str) -> Event:
    return {"pid": process, "ph": "M", "name": "process_name", "args": {"name": name}}


def _of_plan(view: MemoryView, placed: PlannedProblem, process: int) -> Iterator[Event]:
    problem, axis = placed.problem, view.axis
    if axis is not None:
        begins = [
            at for at, line in enumerate(axis.line_of) if not at or axis.line_of[at - 1] != line
        ]
        for begin, end in pairwise([*begins, len(axis.line_of)]):
            line = axis.line_of[begin]
            name = (axis.labels and axis.labels[line]) or axis.lines[line].strip()
            span = {"ph": "X", "tid": 0, "ts": begin, "dur": end - begin}
            yield {**span, "name": name, "args": {"line": line + 1}}
    for at, nbytes in live_bytes(problem):
        yield {"ph": "C", "name": "bytes live", "ts": at, "args": {"bytes": nbytes}}
    for number, buffer in enumerate(problem.buffers):
        note = view.notes.get(buffer.name, BufferNote())
        facts = {
            "offsets": list(placed.plan.offsets[buffer.name]),
            "bytes": buffer.size,
            "type": note.type,
            "what": note.what,
        }
        # Readers take equal identifiers for one buffer, also in several processes.
        one = {"cat": "buffer", "name": buffer.name, "id": f"{process}.{number}", "tid": 1}
        for begin, end in buffer.live:
            yield {**one, "ph": "b", "ts": begin, "args": facts}
            yield {**one, "ph": "e", "ts": end}


def _of_run(run: PlannedRun) -> Iterator[Event]:
    threads = {time.pipe: number for number, time in enumerate(run.simulation.pipes, 1)}
    for pipe, number in threads.items():
        yield {"ph": "M", "tid": number, "name": "thread_name", "args": {"name": pipe}}
    for one in run.simulation.timeline:
        facts = {"reads": [n for n, _ in one.reads], "writes": [n for n, _ in one.writes]}
        span = {"ph": "X", "tid": threads[one.pipe], "ts": one.begin, "dur": one.end - one.begin}
        yield {**span, "name": str(one.statement), "args": facts}
