# SPDX-License-Identifier: Apache-2.0
"""``python -m tvm_ext map``: files, exit statuses, and one line for what is wrong."""

from __future__ import annotations

import json

import pytest
from program_text import program_source

from tvm_ext.__main__ import main

TABLE = "id,lower,upper,size\na,0,4,64\nb,2,6,32\nc,4,8,64\n"


@pytest.fixture
def table(tmp_path):
    path = tmp_path / "buffers.csv"
    path.write_text(TABLE)
    return str(path)


def test_a_page_is_written_and_the_plans_are_named(table, tmp_path, capsys):
    out = tmp_path / "map.html"
    assert main(["map", table, "-o", str(out), "--planners", "best,bump"]) == 0
    assert out.read_text().startswith("<!doctype html>")
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["best", "96", "1.000", "lowest", "peak"] in [row[:5] for row in rows]
    assert ["bump", "160", "1.667", "no"] in [row[:4] for row in rows]


def test_a_plan_above_the_capacity_is_written_and_exits_with_one(table, tmp_path):
    out = tmp_path / "map.html"
    assert main(["map", table, "-o", str(out), "--capacity", "64B"]) == 1
    assert out.exists()


def test_a_picture_is_written(table, tmp_path):
    out = tmp_path / "map.svg"
    assert main(["map", table, "-o", str(out), "--planners", "best"]) == 0
    assert out.read_text().startswith("<svg")


def test_a_trace_of_several_plans_keeps_their_buffers_apart(tmp_path):
    """Each event has what the Trace Event Format asks of its kind, and each span its own end."""
    trace = tmp_path / "map.trace"
    options = ["--planners", "three_level,bump", "-o", str(trace)]
    assert main(["map", "ascend:matmul_add_relu:fits", *options]) == 0
    events = json.loads(trace.read_text())["traceEvents"]
    needed = {"X": "ts dur pid tid name", "C": "ts pid name args", "M": "pid name args"}
    needed |= dict.fromkeys("be", "ts pid tid name cat id")
    process_of: dict[str, int] = {}
    begun: dict[str, int] = {}
    for event in events:
        assert {*needed[event["ph"]].split()} <= {*event}
        assert all(type(event[key]) is int for key in ("ts", "dur", "pid", "tid") if key in event)
        if event["ph"] == "C":
            assert all(type(value) is int for value in event["args"].values())
        if event["ph"] in "be":
            assert process_of.setdefault(event["id"], event["pid"]) == event["pid"]
        if event["ph"] == "b":
            assert event["id"] not in begun
            begun[event["id"]] = event["ts"]
        elif event["ph"] == "e":
            assert begun.pop(event["id"]) < event["ts"]
    assert not begun
    assert len({*process_of.values()}) > 2  # Two plans of each of several memories


def test_data_and_a_trace_are_written(tmp_path):
    """A trace has each buffer while it is live, the bytes that are, and each run of a pipe."""
    data, trace = tmp_path / "map.json", tmp_path / "map.trace"
    assert main(["map", "ascend:gelu:lowest", "-o", str(data)]) == 0
    assert main(["map", "ascend:gelu:lowest", "-o", str(trace)]) == 0
    (memory,) = json.loads(data.read_text())["memories"]
    (run,) = json.loads(data.read_text())["runs"]
    events = json.loads(trace.read_text())["traceEvents"]
    (plan,) = memory["plans"]
    lives = sorted(
        (buffer["name"], begin, end)
        for buffer in memory["buffers"]
        for begin, end in buffer["live"]
    )
    begun = [event for event in events if event["ph"] == "b"]
    ended = [event for event in events if event["ph"] == "e"]
    found = [(b["name"], b["ts"], e["ts"]) for b, e in zip(begun, ended, strict=True)]
    assert sorted(found) == lives
    offsets = {event["name"]: event["args"]["offsets"] for event in begun}
    for buffer, at in zip(memory["buffers"], plan["offsets"], strict=True):
        assert offsets[buffer["name"]] == at
        assert buffer["type"].startswith("float")
    counted = {event["ts"]: event["args"]["bytes"] for event in events if event["ph"] == "C"}
    for at, nbytes in counted.items():
        live = [name for name, begin, end in lives if begin <= at < end]
        sizes = {buffer["name"]: buffer["size"] * buffer["slots"] for buffer in memory["buffers"]}
        assert nbytes == sum(sizes[name] for name in live)
    spans = [event for event in events if event["ph"] == "X" and event["pid"] == 2]
    assert max(event["ts"] + event["dur"] for event in spans) == run["makespan"]
    named = {event["args"]["name"] for event in events if event["name"] == "thread_name"}
    assert named == {pipe for pipe, _, _ in run["pipes"]}


SHARED = program_source("""
def sums(x: 64, o: 64):
    T.launch_thread("blockIdx.x", 1)
    tx = T.launch_thread("threadIdx.x", 64)
    a, b: shared 64
    a[tx] = x[tx]
    b[tx] = x[63 - tx]
    o[tx] = a[63 - tx] + b[63 - tx]
""")


@pytest.mark.parametrize("options", [[], ["shared", "--target", "opencl"]])
def test_a_plan_in_which_buffers_overlap_is_refused(options, table, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "overlapping_for_the_map.py").write_text(
        "from passes.planning import Plan, Status\n"
        "def at_zero(problem, _budget):\n"
        "    offsets = {buffer.name: (0,) for buffer in problem.buffers}\n"
        "    return Plan(offsets, 256, 0, 'at_zero', Status.FEASIBLE)\n"
    )
    (tmp_path / "kernel.py").write_text(f"from tvm.script import tirx as T\n{SHARED}")
    what = ["kernel.py", *options] if options else [table]
    planner = "overlapping_for_the_map:at_zero"
    assert main(["map", *what, "-o", "map.html", "--planners", planner]) == 2
    assert "'a' and 'b' are live together and overlap" in capsys.readouterr().err
    assert not (tmp_path / "map.html").exists()


@pytest.mark.parametrize("suffix", ["html", "svg"])
def test_the_same_map_gives_the_same_bytes(tmp_path, suffix):
    written = []
    for name in ("one", "two"):
        out = tmp_path / f"{name}.{suffix}"
        assert main(["map", "ascend:gelu:reuse", "-o", str(out)]) == 0
        written.append(out.read_bytes())
    assert written[0] == written[1]
