# SPDX-License-Identifier: Apache-2.0
"""The snapshot for PyTorch's visualiser, read back by a replay of its rules."""

from __future__ import annotations

import pickle
import pickletools

import pytest
from hypothesis import given, settings
from planning_oracles import problems

from passes.planning import Buffer, Problem, solve
from target_hw.memory import MemoryScope
from tvm_ext.map import MapOptions, MemoryMap, PlannedProblem, ScopeMap, memory_map_of
from tvm_ext.map.snapshot import snapshot, write_snapshot

#: What the reader in ``MemoryViz.js`` knows.
OPCODES = {
    "PROTO", "APPEND", "APPENDS", "LIST", "TUPLE", "NEWFALSE", "NEWTRUE", "NONE", "BINGET",
    "BININT", "BININT1", "BININT2", "EMPTY_DICT", "EMPTY_LIST", "FRAME", "LONG1", "LONG_BINGET",
    "MARK", "MEMOIZE", "BINPUT", "LONG_BINPUT", "SETITEMS", "SETITEM", "DICT", "SHORT_BINUNICODE",
    "BINUNICODE", "STOP", "EMPTY_TUPLE", "TUPLE1", "TUPLE2", "TUPLE3", "BINFLOAT",
}  # fmt: skip
SEGMENT = {"device", "address", "total_size", "allocated_size", "stream", "blocks", "segment_type"}
BLOCK = {"size", "requested_size", "state", "frames"}
EVENT = {"action", "addr", "size", "stream", "frames"}


def replay(read: dict, device: int) -> list[int]:
    """Run a device's events as the visualiser does; return the allocated bytes after each."""
    (segment,) = [s for s in read["segments"] if s["device"] == device]
    held: dict[int, int] = {}
    totals = []
    for event in read["device_traces"][device]:
        assert set(event) >= EVENT
        begin, end = event["addr"], event["addr"] + event["size"]
        assert segment["address"] <= begin
        assert end <= segment["address"] + segment["total_size"]
        if event["action"] == "alloc":
            for other, size in held.items():
                assert end <= other or other + size <= begin, "two allocations share bytes"
            held[begin] = event["size"]
        elif event["action"] == "free_completed":
            assert held.pop(begin) == event["size"]
        elif event["action"] == "free_requested":
            assert held[begin] == event["size"]
        else:
            assert event["action"] == "segment_alloc"
            assert (begin, event["size"]) == (segment["address"], segment["total_size"])
        totals.append(sum(held.values()))
    assert not held, "something is never freed"
    return totals


def check_structure(read: dict) -> None:
    assert set(read) >= {"segments", "device_traces"}
    for segment in read["segments"]:
        assert set(segment) >= SEGMENT
        assert sum(block["size"] for block in segment["blocks"]) == segment["total_size"]
        for block in segment["blocks"]:
            assert set(block) >= BLOCK
            assert block["state"] == "inactive"
    for trace in read["device_traces"]:
        times = [event["time_us"] for event in trace]
        assert times == sorted(times)
        for event in trace:
            for frame in event["frames"]:
                assert set(frame) == {"name", "filename", "line"}
                assert isinstance(frame["line"], int)


def shown_of(problem: Problem, planner: str = "best") -> MemoryMap:
    return MemoryMap(
        "t", (ScopeMap("t", (PlannedProblem(planner, problem, solve(problem, planner)),)),)
    )


@given(problems(most_buffers=5))
@settings(deadline=None, max_examples=30)
def test_no_two_allocations_share_bytes(problem):
    read = pickle.loads(write_snapshot(shown_of(problem)))
    check_structure(read)
    totals = replay(read, 0)
    separate = problem.in_place == ()
    positions = {at for b in problem.buffers for live in b.live for at in live}
    plan = solve(problem, "best")
    most = max(
        (
            sum(
                b.size * len(plan.offsets[b.name])
                for b in problem.buffers
                if any(a <= p < z for a, z in b.live)
            )
            for p in positions
        ),
        default=0,
    )
    assert max(totals) == most if separate else max(totals) <= most


def test_a_kernels_totals_are_those_of_its_map():
    shown = memory_map_of(
        "ascend:matmul_add_relu:lowest", options=MapOptions(planners=("three_level", "bump"))
    )
    read = pickle.loads(write_snapshot(shown))
    check_structure(read)
    devices = [(scope, p) for scope in shown.scopes for p in scope.placements]
    assert len(read["segments"]) == len(read["device_traces"]) == len(devices)
    for device, (scope, placement) in enumerate(devices):
        totals = replay(read, device)
        events = read["device_traces"][device]
        peak = placement.peak()
        at_peak = [t for t, e in zip(totals, events, strict=True) if e["time_us"] <= peak.position]
        # All of an in-place pair is live at the peak; here it counts once.
        assert at_peak[-1] == peak.occupied
        allocated = [e for e in events if e["action"] == "alloc"]
        for event in allocated:
            name = event["frames"][0]["name"].split("[")[0]
            assert event["size"] == scope.problem.buffers[scope.problem.index[name]].size
            assert event["addr"] in placement.plan.offsets[name]
            assert "T.alloc_buffer" in event["frames"][1]["name"]
        slots = sum(len(placement.plan.offsets[b.name]) for b in scope.problem.buffers)
        assert len(allocated) == slots


def test_the_visualisers_reader_knows_every_opcode():
    text = write_snapshot(memory_map_of("ascend:gelu:reuse"))
    assert {opcode.name for opcode, _, _ in pickletools.genops(text)} <= OPCODES
    assert pickle.loads(text) == snapshot(memory_map_of("ascend:gelu:reuse"))


def test_large_memories_have_a_segment_of_their_capacity():
    memory = MemoryScope("global", 1 << 40, base=1 << 36)
    problem = Problem((Buffer("a", 1 << 33, ((0, 2),)), Buffer("b", 1 << 33, ((1, 3),))), memory)
    read = pickle.loads(write_snapshot(shown_of(problem)))
    assert read["segments"][0]["total_size"] == 1 << 40
    assert read["segments"][0]["address"] == 1 << 36
    assert max(replay(read, 0)) == 1 << 34


def test_torchs_own_reader_takes_it(tmp_path):
    viewer = pytest.importorskip("torch.cuda._memory_viz", reason="there is no PyTorch here")
    read = pickle.loads(write_snapshot(memory_map_of("ascend:gelu:reuse")))
    assert "total_reserved" in viewer.segsum(read)
    assert "Device 0" in viewer.trace(read)
