# SPDX-License-Identifier: Apache-2.0
"""Pictures of simulated pipelines: what is drawn, held against the simulation."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("matplotlib")

from matplotlib.colors import to_rgb

from passes.planning import Buffer, Plan, Problem, Status
from passes.planning.problem import PipelineUse
from passes.simulation import Cause, Loop, Statement, simulate
from target_hw import Machine, MemoryScope, Pipe
from tvm_ext import pipeline_timeline, pipeline_timelines
from tvm_ext.drawing.picture import PALETTE, save_picture
from tvm_ext.drawing.timeline import WAITS

MACHINE = Machine(tuple(Pipe(name, "bytes", 1) for name in ("MTE2", "V", "MTE3")))
PROBLEM = Problem(
    (
        Buffer("other", 8, ((0, 1),)),
        Buffer("tile", 8, ((0, 2),), slots=2, use=PipelineUse(loop=0)),
        Buffer("late", 8, ((3, 4),)),
    ),
    MemoryScope("local.UB"),
)
PLAN = Plan({"other": (0,), "tile": (8, 16), "late": (8,)}, 24, 0, "by hand", Status.FEASIBLE)
PROGRAM = (
    Loop(
        0,
        3,
        (
            Statement("load", "MTE2", (), ("tile",), 40),
            Statement("add", "V", ("tile",), (), 60),
        ),
    ),
    Statement("load late", "MTE2", (), ("late",), 40),
    Statement("nothing", "V", (), (), 40),
)
FOUND = simulate(PROGRAM, [(PROBLEM, PLAN)], MACHINE)


def collection(ax, label):
    (found,) = [c for c in ax.collections if c.get_label() == label]
    return found


def spans(ax, label):
    """Return (begin, end, row) of each box."""
    found = []
    for path in collection(ax, label).get_paths():
        xs, ys = path.vertices.T
        found.append((min(xs), max(xs), round((min(ys) + max(ys)) / 2)))
    return found


def test_each_run_is_a_box_in_the_row_of_its_pipe_and_the_colour_of_its_buffer():
    (ax,) = pipeline_timeline(FOUND, [PROBLEM]).axes
    rows = [label.get_text().split("\n")[0] for label in ax.get_yticklabels()]
    assert rows == ["V", "MTE2"]  # from the bottom up
    assert spans(ax, "runs") == [
        (run.begin, run.end, rows.index(run.pipe)) for run in FOUND.timeline
    ]
    colours = [tuple(colour[:3]) for colour in collection(ax, "runs").get_facecolors()]
    tile, late, none = to_rgb(PALETTE[1]), to_rgb(PALETTE[2]), to_rgb("white")
    assert colours == [tile] * 6 + [late, none]


def test_waits_are_drawn_where_the_pipe_is_idle_and_in_the_shade_of_their_cause():
    (ax,) = pipeline_timeline(FOUND, [PROBLEM]).axes
    names = {
        Cause.DATA: "waits for data",
        Cause.SLOT: "waits for a slot",
        Cause.REUSE: "waits for reused bytes",
    }
    for cause, name in names.items():
        drawn = spans(ax, name)
        assert sum(end - begin for begin, end, _ in drawn) == FOUND.waited(cause) > 0
        shade = to_rgb(WAITS[cause][1])
        assert all(tuple(c[:3]) == shade for c in collection(ax, name).get_facecolors())
        boxes = spans(ax, "runs")
        for begin, end, row in drawn:
            assert all(b >= end or e <= begin for b, e, r in boxes if r == row)


def test_boxes_name_what_fits_and_slots_are_told_apart():
    (ax,) = pipeline_timeline(FOUND, [PROBLEM], until=150).axes
    inside = {text.get_text() for text in ax.texts}
    assert {"load: tile[0]", "load: tile[1]", "add: tile[0]"} <= inside


def test_the_summary_says_the_makespan_and_how_idle_each_pipe_is():
    (ax,) = pipeline_timeline(FOUND, title="three tiles").axes
    assert ax.get_title("left") == "three tiles"
    assert f"makespan {FOUND.makespan} cycles" in {text.get_text() for text in ax.texts}
    rows = {label.get_text() for label in ax.get_yticklabels()}
    assert rows == {f"{p.pipe}\n{100 * p.idle / FOUND.makespan:.0f}% idle" for p in FOUND.pipes}
    part = simulate(PROGRAM, [(PROBLEM, PLAN)], MACHINE, timeline=3)
    texts = {text.get_text() for text in pipeline_timeline(part).axes[0].texts}
    assert f"makespan {FOUND.makespan} cycles, the first 3 of 8 runs" in texts


def test_several_share_one_scale_and_the_colours():
    shorter = simulate(PROGRAM[1:], [(PROBLEM, PLAN)], MACHINE)
    figure = pipeline_timelines([("one", FOUND), ("two", shorter)], [PROBLEM])
    first, second = figure.axes
    assert first.get_xlim() == second.get_xlim() == (0, max(r.end for r in FOUND.timeline))
    last = collection(second, "runs").get_facecolors()
    assert tuple(last[0][:3]) == to_rgb(PALETTE[2])


def test_without_a_run_there_is_nothing_to_draw():
    with pytest.raises(ValueError, match="there is no run to draw"):
        pipeline_timeline(simulate((), [], MACHINE))


def test_what_is_no_simulation_is_refused():
    with pytest.raises(TypeError, match="needs a Simulation, got None"):
        pipeline_timeline(None)


def test_the_same_figure_gives_the_same_bytes(tmp_path: Path):
    for name in ("one.svg", "two.svg"):
        save_picture(pipeline_timeline(FOUND, [PROBLEM]), tmp_path / name)
    assert (tmp_path / "one.svg").read_bytes() == (tmp_path / "two.svg").read_bytes()
