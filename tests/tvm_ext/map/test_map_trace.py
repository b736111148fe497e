# SPDX-License-Identifier: Apache-2.0
"""The trace for Perfetto, read back: structure, totals, and that nothing on a track overlaps."""

from __future__ import annotations

import json
from collections import defaultdict
from itertools import pairwise

from hypothesis import given, settings
from planning_oracles import problems

from passes.planning import solve
from passes.simulation import Cause
from tvm_ext.map import MapOptions, MemoryMap, PlannedProblem, ScopeMap, memory_map_of
from tvm_ext.map.trace import write_trace


def read(shown: MemoryMap) -> dict:
    found = json.loads(write_trace(shown))
    for event in found["traceEvents"]:
        assert event["ph"] in ("M", "X", "C")
        assert isinstance(event["pid"], int)
        assert isinstance(event["tid"], int)
        if event["ph"] == "M":
            assert event["name"] in ("process_name", "thread_name")
            assert event["args"]["name"]
        else:
            assert isinstance(event["ts"], int)
    return found


def processes(found: dict) -> dict[int, str]:
    return {
        e["pid"]: e["args"]["name"]
        for e in found["traceEvents"]
        if e["ph"] == "M" and e["name"] == "process_name"
    }


def tracks(found: dict) -> dict[tuple[int, int], list[dict]]:
    """Return the complete events of each track; none may overlap another."""
    by_track = defaultdict(list)
    for event in found["traceEvents"]:
        if event["ph"] == "X":
            by_track[event["pid"], event["tid"]].append(event)
    for events in by_track.values():
        events.sort(key=lambda e: (e["ts"], e["dur"]))
        for one, other in pairwise(events):
            assert one["ts"] + one["dur"] <= other["ts"]
    return by_track


@given(problems(most_buffers=5))
@settings(deadline=None, max_examples=25)
def test_each_slot_is_there_as_long_as_it_lives(problem):
    plan = solve(problem, "best")
    shown = MemoryMap("t", (ScopeMap("t", (PlannedProblem("best", problem, plan),)),))
    found = read(shown)
    spans = sorted(
        (e["ts"], e["ts"] + e["dur"], e["args"]["offset"], e["args"]["bytes"])
        for events in tracks(found).values()
        for e in events
    )
    assert spans == sorted(
        (begin, end, offset, b.size)
        for b in problem.buffers
        if b.size
        for offset in plan.offsets[b.name]
        for begin, end in b.live
    )
    for event in found["traceEvents"]:
        if event["ph"] == "C":
            assert event["args"]["bytes"] == sum(
                b.size * b.slots
                for b in problem.buffers
                if any(begin <= event["ts"] < end for begin, end in b.live)
            )


def test_pipelines_are_tracks_whose_times_add_up():
    shown = memory_map_of(
        "ascend:vector_add:lowest", options=MapOptions(planners=("three_level", "bump"))
    )
    found = read(shown)
    by_track = tracks(found)
    names = {
        (e["pid"], e["tid"]): e["args"]["name"]
        for e in found["traceEvents"]
        if e["ph"] == "M" and e["name"] == "thread_name"
    }
    pids = [pid for pid, name in processes(found).items() if "pipelines" in name]
    assert len(pids) == len(shown.runs)
    for pid, run in zip(pids, shown.runs, strict=True):
        assert run.simulation.runs == len(run.simulation.timeline), "the timeline is whole"
        waited: dict[str, int] = defaultdict(int)
        for time in run.simulation.pipes:
            (events,) = [
                by_track[key] for key, name in names.items() if key[0] == pid and name == time.pipe
            ]
            assert sum(e["dur"] for e in events if e["cat"] == "run") == time.busy
            for event in events:
                if event["cat"] == "stall":
                    kind = event["name"].split(":")[0]
                    waited[kind] += event["dur"]
        for cause, kind in (
            (Cause.DATA, "waits for data"),
            (Cause.SLOT, "waits for a slot"),
            (Cause.REUSE, "waits for reused bytes"),
        ):
            assert waited[kind] == run.simulation.waited(cause)
    assert found["otherData"]["statements run"] == found["otherData"]["statements shown"]


def test_a_stall_says_which_buffers_are_behind_it():
    shown = memory_map_of("ascend:vector_add:lowest")
    (run,) = shown.runs
    stalls = [e for e in read(shown)["traceEvents"] if e.get("cat") == "stall"]
    named = {text for event in stalls for text in event["args"]["for"]}
    reuse = [s for s in run.simulation.stalls if s.cause is Cause.REUSE]
    assert reuse
    for stall in reuse:
        assert f"{stall.buffer} after {stall.other_buffer} in {stall.other_statement}" in named
