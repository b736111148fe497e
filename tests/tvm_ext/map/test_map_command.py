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


@pytest.mark.parametrize(
    ("suffix", "options", "status", "begin"),
    [
        ("html", ["--planners", "best,bump"], 0, "<!doctype html>"),
        ("html", ["--capacity", "64B"], 1, "<!doctype html>"),  # It does not fit, and is written.
        ("svg", ["--planners", "best"], 0, "<svg"),
    ],
)
def test_a_file_is_written_and_the_plans_are_named(
    table, tmp_path, capsys, suffix, options, status, begin
):
    out = tmp_path / f"map.{suffix}"
    assert main(["map", table, "-o", str(out), *options]) == status
    assert out.read_text().startswith(begin)
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["best", "96", "1.000"] in [row[:3] for row in rows]
    assert (["bump", "160", "1.667", "no"] in [row[:4] for row in rows]) == ("bump" in options[-1])


NEEDED = {"X": "ts dur pid tid name", "C": "ts pid name args", "M": "pid name args"}
NEEDED |= dict.fromkeys("be", "ts pid tid name cat id")
"""What the Trace Event Format asks of each kind of event."""


def test_a_trace_has_each_buffer_while_it_is_live_and_each_run_of_a_pipe(tmp_path):
    """Held against the data of the same report: two plans of each of several memories."""
    data, trace = tmp_path / "map.json", tmp_path / "map.trace"
    command = ["map", "ascend:matmul_add_relu:fits", "--planners", "three_level,bump", "-o"]
    assert main([*command, str(data)]) == main([*command, str(trace)]) == 0
    report = json.loads(data.read_text())
    events = json.loads(trace.read_text())["traceEvents"]
    for event in events:
        assert {*NEEDED[event["ph"]].split()} <= {*event}
        assert all(type(event[key]) is int for key in ("ts", "dur", "pid", "tid") if key in event)
    plans = [(memory, plan) for memory in report["memories"] for plan in memory["plans"]]
    assert len(plans) > 2
    of = [[event for event in events if event["pid"] == at + 1] for at in range(len(plans))]
    for (memory, plan), own in zip(plans, of, strict=True):
        begun, ended = ([event for event in own if event["ph"] == ph] for ph in "be")
        assert all(a["id"] == b["id"] for a, b in zip(begun, ended, strict=True))
        spans = [(b["name"], b["ts"], e["ts"]) for b, e in zip(begun, ended, strict=True)]
        lives = [(buffer["name"], *live) for buffer in memory["buffers"] for live in buffer["live"]]
        assert spans == lives
        offsets = {event["name"]: event["args"]["offsets"] for event in begun}
        assert list(offsets.values()) == plan["offsets"]
        assert all(buffer["type"].startswith("float") for buffer in memory["buffers"])
        sizes = {buffer["name"]: buffer["size"] * buffer["slots"] for buffer in memory["buffers"]}
        for event in (event for event in own if event["ph"] == "C"):
            live = [name for name, begin, end in lives if begin <= event["ts"] < end]
            assert event["args"] == {"bytes": sum(sizes[name] for name in live)}
    for number, run in enumerate(report["runs"], len(plans) + 1):
        own = [event for event in events if event["pid"] == number]
        assert max(e["ts"] + e["dur"] for e in own if e["ph"] == "X") == run["makespan"]
        named = {event["args"]["name"] for event in own if event["name"] == "thread_name"}
        assert named == {pipe for pipe, _, _ in run["pipes"]}
    # Readers take equal identifiers for one buffer, also in several processes.
    begins = [event["id"] for event in events if event["ph"] == "b"]
    assert len({*begins}) == sum(len(memory["buffers"]) for memory, _ in plans)


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
