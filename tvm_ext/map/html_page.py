# SPDX-License-Identifier: Apache-2.0
"""A memory map as one page: HTML that needs neither a network nor a server, and its data."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from html import escape
from importlib.resources import files
from typing import Any

from passes.planning.verify import charge
from passes.simulation import Simulation
from tvm_ext.map.model import BufferNote, Placement, PlannedRun, ScopeMap
from tvm_ext.map.stock import remark
from tvm_ext.named_planners import STOCK

_SCRIPTS = ("model", "view", "colours", "draw", "program", "panel", "main")
"""The parts of the page's script, in the order in which they build upon each other."""


MOST_STALLS = 200
"""Stalls of a simulation that are listed, the longest first."""

Plain = dict[str, Any]


def html_page(title: str, data: Mapping[str, Any]) -> str:
    """Write a memory map's `page_data` as a whole page, with its style, script and data.

    Names of buffers and lines of programs are data to it, whatever they say.
    """
    parts = {
        "{{TITLE}}": escape(f"Memory of {title}"),
        "{{STYLE}}": _part("page.css"),
        "{{SCRIPT}}": "\n".join(_part(f"{name}.js") for name in _SCRIPTS),
        "{{DATA}}": _inert(json.dumps(data, separators=(",", ":"))),
    }
    # At once: what is put in is not searched.
    return re.sub("|".join(parts), lambda place: parts[place[0]], _part("page.html"))


def in_a_frame(title: str, page: str) -> str:
    """Write a map's page as an element of another page, such as a notebook.

    The frame has no part in the page around it: its scripts run, and can reach nothing there. A
    notebook that does not trust what it shows leaves it out.
    """
    return (
        f'<iframe sandbox="allow-scripts" title="{escape(f"Memory of {title}")}" '
        f'style="width:100%;height:640px;border:1px solid" srcdoc="{escape(page)}"></iframe>'
    )


def _part(name: str) -> str:
    return (files("tvm_ext.map") / "page" / name).read_text(encoding="utf-8")


def _inert(text: str) -> str:
    """Return JSON in which nothing can end the element that it stands in."""
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def page_data(
    title: str, scopes: Sequence[ScopeMap], runs: Sequence[PlannedRun], left: Sequence[str]
) -> Plain:
    """Return all that the page shows of a memory map.

    Bytes and positions are integers. Buffers are named by their place in ``buffers`` of their
    scope, lines by their number from 0.
    """
    listings = list({id(s.listing): s.listing for s in scopes if s.listing is not None}.values())
    places = {id(listing): at for at, listing in enumerate(listings)}
    spans = {(run.function, run.planner): run.simulation.makespan for run in runs}
    return {
        "title": title,
        "functions": len({scope.function for scope in scopes}),
        "listings": [
            {"name": one.name, "lines": one.lines, "lineOf": one.line_of, "rules": one.rules}
            for one in listings
        ],
        "scopes": [_scope(scope, places.get(id(scope.listing)), spans) for scope in scopes],
        "runs": [_run(run) for run in runs],
        "left": left,
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
                **asdict(scope.notes.get(buffer.name, BufferNote())),
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
