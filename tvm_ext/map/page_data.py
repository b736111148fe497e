# SPDX-License-Identifier: Apache-2.0
"""A memory map as plain data for the page: what `json.dumps` takes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from passes.planning.verify import charge
from passes.simulation import Simulation
from tvm_ext.map.model import BufferNote, MemoryMap, Placement, PlannedRun, ScopeMap
from tvm_ext.map.stock import STOCK, remark

MOST_STALLS = 200
"""Stalls of a simulation that are listed, the longest first."""

Plain = dict[str, Any]


def page_data(shown: MemoryMap) -> Plain:
    """Return all that the page shows.

    Parameters
    ----------
    shown : MemoryMap
        What to show.

    Returns
    -------
    dict
        Bytes and positions are integers. Buffers are named by their place in ``buffers`` of
        their scope, lines by their number from 0.
    """
    listings = list(
        {id(s.listing): s.listing for s in shown.scopes if s.listing is not None}.values()
    )
    places = {id(listing): at for at, listing in enumerate(listings)}
    spans = {(run.function, run.planner): run.simulation.makespan for run in shown.runs}
    return {
        "title": shown.title,
        "functions": len({scope.function for scope in shown.scopes}),
        "listings": [
            {"name": one.name, "lines": one.lines, "lineOf": one.line_of} for one in listings
        ],
        "scopes": [_scope(scope, places.get(id(scope.listing)), spans) for scope in shown.scopes],
        "runs": [_run(run) for run in shown.runs],
        "left": shown.left,
    }


def _scope(scope: ScopeMap, listing: int | None, spans: Mapping[tuple[str, str], int]) -> Plain:
    problem = scope.problem
    begin, end = scope.ends()
    return {
        "function": scope.function,
        "name": scope.name,
        "listing": listing,
        "capacity": scope.capacity,
        "bankBytes": problem.memory.bank_bytes if problem.memory.bank_count > 1 else None,
        "bound": scope.bound(),
        "form": scope.form,
        "begin": begin,
        "end": end,
        "buffers": [
            {
                "name": buffer.name,
                "size": buffer.size,
                "slots": buffer.slots,
                "alignment": problem.alignment_of(buffer),
                "live": buffer.live,
                "pinned": buffer.pinned,
                **_note(scope.notes.get(buffer.name, BufferNote())),
            }
            for buffer in problem.buffers
        ],
        "inPlace": [[problem.index[name] for name in pair] for pair in problem.in_place],
        "plans": [
            {
                **_plan(placement, spans.get((scope.function, placement.planner))),
                "why": scope.explain(placement),
            }
            for placement in scope.placements
        ],
    }


def _note(note: BufferNote) -> Plain:
    return {
        "label": note.label,
        "what": note.what,
        "allocated": note.allocated,
        "reads": note.reads,
        "writes": note.writes,
        "pipes": note.pipes,
    }


def _plan(placement: Placement, makespan: int | None) -> Plain:
    problem, plan, peak = placement.problem, placement.plan, placement.peak()
    index = problem.index
    paid = [(p, charge(problem, plan, p)) for p in problem.penalties]
    levels = [plan.reuse.get(buffer.name) for buffer in problem.buffers]
    return {
        "label": placement.label,
        "peak": plan.peak,
        "remark": remark(problem, plan) if placement.planner == STOCK else "",
        "penalty": plan.penalty,
        "status": plan.status.value,
        "offsets": [plan.offsets[buffer.name] for buffer in problem.buffers],
        "levels": [[r.level, r.reason] if r else [2, ""] for r in levels] if plan.reuse else None,
        "paid": [[index[p.first], index[p.second], cost] for p, cost in paid if cost],
        "reserved": problem.memory.reserved,
        "peakPosition": peak.position,
        "peakLive": [index[name] for name in peak.live],
        "peakOccupied": peak.occupied,
        "peakPlaces": peak.places,
        "below": peak.below,
        "makespan": makespan,
    }


def _run(run: PlannedRun) -> Plain:
    simulation: Simulation = run.simulation
    return {
        "function": run.function,
        "label": run.planner,
        "makespan": simulation.makespan,
        "pipes": [[time.pipe, time.busy, time.idle] for time in simulation.pipes],
        "stalls": [
            [s.cause.value, s.pipe, s.buffer, s.other_buffer, s.cycles]
            for s in simulation.stalls[:MOST_STALLS]
        ],
    }
