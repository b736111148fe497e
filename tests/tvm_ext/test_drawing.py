# SPDX-License-Identifier: Apache-2.0
"""Maps and timelines: what is drawn, held against plans and simulations; the same bytes always."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("matplotlib")

from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.colors import to_rgb
from matplotlib.text import Annotation

import tvm_ext
from passes.planning import Buffer, PipelineUse, Plan, Problem, Status, lower_bound, solve
from passes.simulation import Cause, Loop, Statement, simulate
from target_hw import Machine, MemoryScope, Pipe
from tvm_ext.report import BufferNote, MemoryView, PlannedProblem, Report
from tvm_ext.report.drawing import PALETTE, RASTER_SLOTS
from tvm_ext.report.picture import (
    ROLE_COLOURS,
    Role,
    picture_of,
    roles_of,
    slots_of,
)
from tvm_ext.report.timeline import WAITS, pipeline_timelines
from tvm_ext.text import format_bytes

ROOT = Path(__file__).resolve().parents[2]
SCOPE = MemoryScope("local.UB", 128 << 10, 32, reserved=((0, 4096), (100 << 10, 101 << 10)))
KERNEL = Problem(
    (
        Buffer("double", 16 << 10, ((0, 6),), slots=2),
        Buffer("source", 20 << 10, ((2, 5), (9, 12))),
        Buffer("result", 20 << 10, ((4, 9),)),
        Buffer("a_name_that_is_longer_than_any_rectangle_here_can_hold", 32, ((0, 3),)),
        Buffer("$cost_in_$", 8 << 10, ((8, 14),)),
        Buffer("empty", 0, ((0, 3),)),
    ),
    SCOPE,
    in_place=(("source", "result"),),
    name="kernel",
)
PLACED = {
    "double": (4096, 20480),
    "source": (36864,),
    "result": (36864,),
    "a_name_that_is_longer_than_any_rectangle_here_can_hold": (61440,),
    "$cost_in_$": (4096,),
    "empty": (0,),
}
PLAN = Plan(PLACED, 61472, 0, "by hand", Status.FEASIBLE)


def drawn_of(problem, plan, labels=None):
    """Return the axes of a picture of one plan."""
    notes = {name: BufferNote(label) for name, label in (labels or {}).items()}
    placed = (PlannedProblem(plan.planner, problem, plan),)
    return picture_of("title", [MemoryView("f", placed, notes=notes)]).axes


def labelled(ax, label):
    """Return the only artist of this label."""
    (found,) = [artist for artist in ax.get_children() if artist.get_label() == label]
    return found


def boxes(collection):
    """Return (begin, end, low, high) of each polygon, which must be a rectangle."""
    found = []
    for path in collection.get_paths():
        xs, ys = path.vertices.T
        corners = {(x, y) for x, y in zip(xs.tolist(), ys.tolist(), strict=True)}
        assert corners == {(x, y) for x in (min(xs), max(xs)) for y in (min(ys), max(ys))}
        found.append((min(xs), max(xs), min(ys), max(ys)))
    return found


def names(ax):
    """Return the names in rectangles: all other texts are tied to the frame."""
    return [t.get_text().split("\n")[0] for t in ax.texts if not isinstance(t, Annotation)]


def legend(ax):
    return [text.get_text() for text in ax.get_legend().get_texts()]


def roles_by_slot(problem, plan):
    slots = list(slots_of(problem, plan))
    roles = roles_of(PlannedProblem(plan.planner, problem, plan), slots)
    return dict(zip(slots, roles, strict=True))


def stacked(count):
    buffers = tuple(Buffer(f"b{i}", 64, ((i, i + 2),)) for i in range(count))
    offsets = {f"b{i}": (64 * (i % 2),) for i in range(count)}
    return Problem(buffers), Plan(offsets, 128, 0, "alternating", Status.OPTIMAL)


def test_one_rectangle_for_each_slot_and_live_range():
    (ax,) = drawn_of(KERNEL, PLAN)
    assert sorted(boxes(labelled(ax, "slots"))) == sorted(
        [
            (0, 6, 4096, 4096 + 16384),
            (0, 6, 20480, 20480 + 16384),
            (2, 5, 36864, 36864 + 20480),
            (9, 12, 36864, 36864 + 20480),
            (4, 9, 36864, 36864 + 20480),
            (0, 3, 61440, 61472),
            (8, 14, 4096, 4096 + 8192),
        ]
    )


def test_lines_at_capacity_peak_and_bound():
    (ax,) = drawn_of(KERNEL, replace(PLAN, peak=100_000))
    bound = lower_bound(KERNEL)
    drawn = {line.get_label(): line.get_ydata()[0] for line in ax.lines}
    assert drawn == {
        "capacity: 128 KiB": 128 << 10,
        "peak: 97.7 KiB": 100_000,
        f"lower bound: {format_bytes(bound)}": bound,
    }
    assert set(drawn) <= set(legend(ax))


def test_reserved_ranges_are_hatched_over_all_positions():
    (ax,) = drawn_of(KERNEL, PLAN)
    reserved = labelled(ax, "reserved")
    assert reserved.get_hatch()
    assert boxes(reserved) == [(0, 14, 0, 4096), (0, 14, 100 << 10, 101 << 10)]


def test_in_place_pairs_are_marked_where_both_are_live():
    (ax,) = drawn_of(KERNEL, PLAN)
    assert boxes(labelled(ax, "live in place")) == [(4, 5, 36864, 36864 + 20480)]
    assert "live in place" in legend(ax)
    apart = replace(PLAN, offsets={**PLACED, "result": (65536,)}, peak=65536 + 20480)
    (ax,) = drawn_of(KERNEL, apart)
    assert "live in place" not in legend(ax)


def test_colours_say_which_buffers_are_live_at_the_fullest_time_and_which_make_the_peak():
    problem = Problem(
        (
            Buffer("early", 100, ((0, 2),)),
            Buffer("long", 300, ((1, 6),)),
            Buffer("full", 300, ((4, 6),)),
            Buffer("ended", 10, ((2, 4),)),
            Buffer("late", 100, ((6, 8),)),
        )
    )
    offsets = {"early": 0, "long": 300, "full": 0, "ended": 0, "late": 700}
    plan = Plan({n: (o,) for n, o in offsets.items()}, 800, 0, "by hand", Status.FEASIBLE)
    roles = [Role.OTHER, Role.FULLEST, Role.FULLEST, Role.OTHER, Role.TOP]
    (ax,) = drawn_of(problem, plan)
    colours = labelled(ax, "slots").get_facecolor().tolist()
    assert [tuple(c[:3]) for c in colours] == [to_rgb(ROLE_COLOURS[role]) for role in roles]
    patches = ax.get_legend().get_patches()
    shown = [tuple(p.get_facecolor()[:3]) for p in patches]
    assert shown == list(map(to_rgb, ROLE_COLOURS.values()))


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(0, 9), st.integers(1, 5)), min_size=1))
@settings(max_examples=40, deadline=None, print_blob=True)
def test_roles_agree_with_counting_bytes_at_each_position(rows):
    problem = Problem(tuple(Buffer(str(i), s, ((b, b + n),)) for i, (s, b, n) in enumerate(rows)))
    plan = solve(problem, "first_fit")
    live = [sum(s for s, b, n in rows if b <= at < b + n) for at in range(15)]
    for slot, found in roles_by_slot(problem, plan).items():
        assert (found is Role.FULLEST) == (max(live) in live[slot.begin : slot.end])
        assert (found is Role.TOP) == (slot.high == plan.peak and found is not Role.FULLEST)


def test_buffers_are_called_what_the_labels_say():
    (ax,) = drawn_of(KERNEL, PLAN, labels={"double": "weights", "source": "conv", "x": "y"})
    assert set(names(ax)) == {"weights[0]", "weights[1]", "conv", "result", "$cost_in_$"}


@pytest.mark.parametrize("count", [0, RASTER_SLOTS + 1])
def test_any_number_of_buffers(count, tmp_path):
    problem, plan = stacked(count)
    plan = plan if count else replace(plan, offsets={}, peak=0)
    report = tvm_ext.memory_map(problem, {"one": plan})
    (ax,) = report.picture().axes
    slots = labelled(ax, "slots")
    assert len(slots.get_paths()) == count
    assert bool(slots.get_rasterized()) == (count > RASTER_SLOTS)
    assert len(names(ax)) == (count if count <= 2 else 0)
    report.save(tmp_path / "map.svg")
    assert (tmp_path / "map.svg").stat().st_size < 1_000_000


def test_maps_side_by_side_have_the_same_scales():
    problem, plan = stacked(4)
    tall = replace(plan, offsets={f"b{i}": (64 * i,) for i in range(4)}, peak=256)
    axes = tvm_ext.memory_map(problem, {"stock": tall, "best": plan}).picture().axes
    assert len({(ax.get_xlim(), ax.get_ylim()) for ax in axes}) == 1
    for ax, title in zip(axes, ("stock (alternating)", "best (alternating)"), strict=True):
        assert ax.get_title("left") == f"problem, global: {title}"


def test_nothing_to_draw_is_an_error():
    with pytest.raises(ValueError, match="there is no buffer to plan"):
        Report("nothing").picture()
    with pytest.raises(TypeError, match="plans are of a Problem; of a program, name planners"):
        tvm_ext.memory_map("squeezenet", {"best": PLAN})
    with pytest.raises(ValueError, match="there is no run to draw"):
        pipeline_timelines([("", simulate((), [], MACHINE))])
    with pytest.raises(TypeError, match="needs a Simulation, got None"):
        pipeline_timelines([("", None)])


def test_a_plan_without_an_offset_is_an_error_that_names_the_buffer():
    for offsets in ({}, {**PLACED, "double": (4096,)}):
        with pytest.raises(ValueError, match="kernel: buffer 'double' has 2 slots, the plan has"):
            drawn_of(KERNEL, replace(PLAN, offsets=offsets))


# -------------------------------------------------------------------------------- timelines

MACHINE = Machine(tuple(Pipe(name, "bytes", 1) for name in ("MTE2", "V", "MTE3")))
PIPED = Problem(
    (
        Buffer("other", 8, ((0, 1),)),
        Buffer("tile", 8, ((0, 2),), slots=2, use=PipelineUse(loop=0)),
        Buffer("late", 8, ((3, 4),)),
    ),
    MemoryScope("local.UB"),
)
PIPED_PLAN = Plan({"other": (0,), "tile": (8, 16), "late": (8,)}, 24, 0, "by hand", Status.FEASIBLE)
_LOAD, _ADD = (
    Statement("load", "MTE2", (), ("tile",), 40),
    Statement("add", "V", ("tile",), (), 60),
)
PROGRAM = (
    Loop(0, 3, (_LOAD, _ADD)),
    Statement("load late", "MTE2", (), ("late",), 40),
    Statement("nothing", "V", (), (), 40),
)
FOUND = simulate(PROGRAM, [(PIPED, PIPED_PLAN)], MACHINE)


def spans(ax, label):
    """Return (begin, end, row) of each box of a timeline."""
    drawn = boxes(labelled(ax, label))
    return [(begin, end, round((low + high) / 2)) for begin, end, low, high in drawn]


def test_each_run_is_a_box_in_the_row_of_its_pipe_and_the_colour_of_its_buffer():
    (ax,) = pipeline_timelines([("", FOUND)], [PIPED]).axes
    rows = [label.get_text().split("\n")[0] for label in ax.get_yticklabels()]
    assert rows == ["V", "MTE2"]  # from the bottom up
    runs = [(run.begin, run.end, rows.index(run.pipe)) for run in FOUND.timeline]
    assert spans(ax, "runs") == runs
    colours = [tuple(colour[:3]) for colour in labelled(ax, "runs").get_facecolors()]
    tile, late, none = to_rgb(PALETTE[1]), to_rgb(PALETTE[2]), to_rgb("white")
    assert colours == [tile] * 6 + [late, none]


def test_waits_are_drawn_where_the_pipe_is_idle_and_in_the_shade_of_their_cause():
    (ax,) = pipeline_timelines([("", FOUND)], [PIPED]).axes
    names = {
        Cause.DATA: "waits for data",
        Cause.SLOT: "waits for a slot",
        Cause.REUSE: "waits for reused bytes",
    }
    for cause, name in names.items():
        drawn = spans(ax, name)
        assert sum(end - begin for begin, end, _ in drawn) == FOUND.waited(cause) > 0
        shade = to_rgb(WAITS[cause][1])
        assert all(tuple(c[:3]) == shade for c in labelled(ax, name).get_facecolors())
        boxes = spans(ax, "runs")
        for begin, end, row in drawn:
            assert all(b >= end or e <= begin for b, e, r in boxes if r == row)


def test_the_summary_says_the_makespan_and_how_idle_each_pipe_is():
    (ax,) = pipeline_timelines([("three tiles", FOUND)]).axes
    assert ax.get_title("left") == "three tiles"
    assert f"makespan {FOUND.makespan} cycles" in {text.get_text() for text in ax.texts}
    rows = {label.get_text() for label in ax.get_yticklabels()}
    assert rows == {f"{p.pipe}\n{100 * p.idle / FOUND.makespan:.0f}% idle" for p in FOUND.pipes}
    part = simulate(PROGRAM, [(PIPED, PIPED_PLAN)], MACHINE, timeline=3)
    texts = {text.get_text() for text in pipeline_timelines([("", part)]).axes[0].texts}
    assert f"makespan {FOUND.makespan} cycles, the first 3 of 8 runs" in texts


def test_without_matplotlib_one_clear_error(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ImportError, match=r"README: pip install '\.\[plot\]'"):
        drawn_of(KERNEL, PLAN)
