# SPDX-License-Identifier: Apache-2.0
"""A report as plain data, and as a page of HTML that draws the data.

This module knows no TVM.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict
from html import escape
from importlib.resources import files
from typing import Any

from passes.planning import charge, live_bytes
from passes.simulation import Cause
from tvm_ext.report.memory_view import BufferNote, MemoryView, PlannedProblem, PlannedRun
from tvm_ext.report.tables import bytes_without_reuse

_SCRIPTS = ("model", "view", "colours", "draw", "program", "panel", "main")
"""The parts of the page's script, in the order in which they build upon each other."""

_MOST_WAITS = 8
"""Waits of a simulation for bytes of another buffer that are listed, the longest first."""


def page_of(title: str, data: Mapping[str, Any]) -> str:
    """Return the page that draws the data of a report."""
    text = json.dumps(data, separators=(",", ":"))
    for sign in "<>&":  # Nothing can end the element that the data stands in.
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    parts = {
        "{{TITLE}}": escape(f"Memory of {title}"),
        "{{STYLE}}": _part("page.css"),
        "{{SCRIPT}}": "\n".join(_part(f"{name}.js") for name in _SCRIPTS),
        "{{DATA}}": text,
    }
    # In one step, so that no part is searched for the names of the others.
    return re.sub("|".join(parts), lambda place: parts[place[0]], _part("page.html"))


def memory_data(
    view: MemoryView, listing: int | None, spans: Mapping[tuple[str, str], int]
) -> dict[str, Any]:
    """Return a memory, with its listing by number, and makespans by function and planner.

    Buffers are named by their place in ``buffers``, lines by their number from 0.
    """
    problem = view.problem
    live = [pair for buffer in problem.buffers for pair in buffer.live]
    begin = min((begin for begin, _ in live), default=0)
    return {
        "function": view.owner,
        "scope": view.scope,
        "name": view.name,
        "listing": listing,
        "capacity": problem.capacity,
        "bound": view.bound,
        "noReuse": bytes_without_reuse([view]),
        "form": view.form,
        "unit": view.unit,
        "unitName": view.unit_name or view.unit,
        "begin": begin,
        "end": max((end for _, end in live), default=begin + 1),
        "live": live_bytes(problem),  # Positions, with the bytes live from there on
        "buffers": [
            {
                "name": buffer.name,
                "size": buffer.size,
                "slots": buffer.slots,
                "alignment": problem.alignment_of(buffer),
                "live": buffer.live,
                "pinned": buffer.pinned,
                **asdict(view.notes.get(buffer.name, BufferNote())),
            }
            for buffer in problem.buffers
        ],
        "inPlace": [[problem.index[name] for name in pair] for pair in problem.in_place],
        "plans": [_plan(view, one, spans.get((view.owner, one.planner))) for one in view.plans],
    }


def _plan(view: MemoryView, planned: PlannedProblem, makespan: int | None) -> dict[str, Any]:
    problem, plan, peak = planned.problem, planned.plan, planned.peak()
    index = problem.index
    paid = [(p, charge(problem, plan, p)) for p in problem.penalties]
    levels = [plan.reuse.get(buffer.name) for buffer in problem.buffers]
    slots, shared = planned.slots()
    return {
        "planner": planned.planner,
        "label": planned.label,
        "peak": plan.peak,
        "fits": plan.fits,
        "proven": planned.proven,
        "remark": planned.remark,
        "said": planned.said() + ([] if makespan is None else [f"{makespan:,} cycles"]),
        "penalty": plan.penalty,
        "status": plan.status.value,
        "offsets": [plan.offsets[buffer.name] for buffer in problem.buffers],
        "slots": slots,  # As `Slot` has them
        "shared": shared,
        "levels": [[r.level, r.reason] if r else [2, ""] for r in levels] if plan.reuse else None,
        "paid": [[index[p.first], index[p.second], cost] for p, cost in paid if cost],
        "reserved": problem.memory.reserved,
        "peakPosition": peak.places[0],
        "peakLive": [index[name] for name in peak.live],
        "peakOccupied": peak.occupied,
        "peakPlaces": peak.places,
        "below": peak.below,
        "makespan": makespan,
        "why": view.explain(planned),
    }


def run_data(run: PlannedRun) -> dict[str, Any]:
    """Return the times of a simulated run's pipes, and its longest waits for reused bytes."""
    waits = [stall for stall in run.simulation.stalls if stall.cause is Cause.REUSE]
    return {
        "function": run.function,
        "label": run.planner,
        "makespan": run.simulation.makespan,
        "pipes": [[time.pipe, time.busy, time.idle] for time in run.simulation.pipes],
        "waits": [[s.pipe, s.buffer, s.other_buffer, s.cycles] for s in waits[:_MOST_WAITS]],
    }


def _part(name: str) -> str:
    return (files("tvm_ext.report") / "page" / name).read_text(encoding="utf-8")
