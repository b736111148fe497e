# SPDX-License-Identifier: Apache-2.0
"""Maps and timelines in SVG: what is drawn, held against plans and simulations."""

import re
from dataclasses import dataclass, replace
from xml.etree import ElementTree

import pytest

import tvm_ext
from passes.planning import Buffer, PipelineUse, Plan, Problem, Status, lower_bound
from passes.planning.files import parse_bytes
from passes.simulation import Cause, Loop, Statement, simulate
from target_hw import Machine, MemoryScope, Pipe
from tvm_ext.report import BufferNote, MemoryView, PlannedProblem, Report
from tvm_ext.report.chart import PALETTE
from tvm_ext.report.memory_view import written
from tvm_ext.report.picture import AT_PEAK, OTHERS, draw_plans, picture_of
from tvm_ext.report.timeline import WAITS, pipeline_timelines
from tvm_ext.text import format_bytes

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


SVG = "{http://www.w3.org/2000/svg}"


@dataclass
class Drawn:
    """An SVG of one chart, read by the numbers that stand at its axes."""

    svg: str
    rows: tuple[str, ...] = ()  # Names in the place of bytes, from the bottom up

    def __post_init__(self) -> None:
        self.root = ElementTree.fromstring(self.svg)
        self.texts = list(self.root.iter(f"{SVG}text"))
        across = [self._tick(e, "x") for e in self.texts if e.get("text-anchor") == "middle"]
        up = [self._tick(e, "y") for e in self.texts if e.get("text-anchor") == "end"]
        self.across, self.up = ([t for t in found if t] for found in (across, up))

    def _tick(self, element, axis: str) -> tuple[float, float] | None:
        text, place = element.text, float(element.get(axis))
        if axis == "x":
            return (place, int(text.replace(",", ""))) if re.fullmatch(r"[\d,]+", text) else None
        if text in self.rows:
            return place - 4 + 6, self.rows.index(text)  # The first of two lines.
        return (place - 4, parse_bytes(text)) if re.fullmatch(r"[\d.]+ \w*B", text) else None

    @staticmethod
    def _number(ticks, pixel: float) -> float:
        (a, one), (b, two) = ticks[0], ticks[-1]
        return one + (pixel - a) * (two - one) / (b - a)

    def boxes(self, fill: str) -> list[tuple[float, float, float, float]]:
        """Return the rectangles of a fill: begin, end, low and high."""
        found = []
        for path in self.root.iter(f"{SVG}path"):
            if path.get("fill") != fill:
                continue
            for x, y, end, low in re.findall(r"M(\S+) (\S+)H(\S+?)V(\S+?)H\S+?z", path.get("d")):
                xs = (self._number(self.across, float(v)) for v in (x, end))
                ys = (self._number(self.up, float(v)) for v in (low, y))
                found.append((*xs, *ys))
        return found

    def names(self) -> list[str]:
        """Return the names in rectangles, with their second lines."""
        return [e.text for e in self.texts if e.get("fill") == "#000000"]

    def place(self, name: str) -> float:
        """Return the position that a name stands at."""
        groups = [g for g in self.root.iter(f"{SVG}g") if g.get("transform", "").startswith("tr")]
        (found,) = (g for g in groups if name in [e.text for e in g.iter(f"{SVG}text")])
        return self._number(self.across, float(re.findall(r"[\d.]+", found.get("transform"))[0]))

    def legend(self) -> set[str]:
        return {e.text for e in self.texts if e.get("fill") != "#000000"}

    def level(self, colour: str) -> float:
        """Return where the line of a colour is."""
        (path,) = (e for e in self.root.iter(f"{SVG}path") if e.get("stroke") == colour)
        y, end = re.fullmatch(r"M\S+ (\S+)L\S+ (\S+)", path.get("d")).groups()
        assert y == end
        return self._number(self.up, float(y))


def drawn_of(problem, plan, labels=None) -> Drawn:
    notes = {name: BufferNote(label) for name, label in (labels or {}).items()}
    placed = (PlannedProblem(plan.planner, problem, plan),)
    return Drawn(picture_of("title", [MemoryView("f", placed, written(notes=notes))]).svg)


def about(boxes, ax=0.02, ay=100):
    """Compare rectangles within a tenth of a pixel of each scale."""
    tolerance = (ax, ax, ay, ay)
    return [
        tuple(pytest.approx(v, abs=t) for v, t in zip(box, tolerance, strict=True)) for box in boxes
    ]


def test_one_rectangle_for_each_slot_and_live_range_in_the_colour_of_the_peak():
    drawn = drawn_of(KERNEL, PLAN)
    # The plan is highest where the buffer with the long name ends, from 0 to 3.
    at_peak = [
        (0, 6, 4096, 4096 + 16384),
        (0, 6, 20480, 20480 + 16384),
        (2, 5, 36864, 36864 + 20480),
        (9, 12, 36864, 36864 + 20480),
        (0, 3, 61440, 61472),
    ]
    assert drawn.boxes(AT_PEAK) == about(at_peak)
    others = [(4, 9, 36864, 36864 + 20480), (8, 14, 4096, 4096 + 8192)]
    assert drawn.boxes(OTHERS) == about(others)
    assert {"live at the peak", "other buffers"} <= drawn.legend()


def test_lines_at_capacity_peak_and_bound():
    drawn = drawn_of(KERNEL, replace(PLAN, peak=100_000))
    bound = lower_bound(KERNEL)
    assert drawn.level("#d1495b") == pytest.approx(100_000, abs=100)
    assert drawn.level("#3f7fd0") == pytest.approx(bound, abs=100)
    said = {"capacity: 128 KiB", "peak: 97.7 KiB", f"lower bound: {format_bytes(bound)}"}
    assert said <= drawn.legend()


def test_reserved_ranges_are_hatched_over_all_positions():
    reserved = drawn_of(KERNEL, PLAN).boxes("url(#rising)")
    assert reserved == about([(0, 14, 0, 4096), (0, 14, 100 << 10, 101 << 10)])


def test_in_place_pairs_are_marked_where_both_are_live():
    drawn = drawn_of(KERNEL, PLAN)
    assert drawn.boxes("url(#falling)") == about([(4, 5, 36864, 36864 + 20480)])
    assert "live in place" in drawn.legend()
    # Each has its name where it is alone.
    assert drawn.place("result") == pytest.approx((5 + 9) / 2, abs=0.02)
    chain = (("a", 0, 4), ("b", 2, 6), ("c", 4, 8))
    buffers = tuple(Buffer(name, 64, ((begin, end),)) for name, begin, end in chain)
    problem = Problem(buffers, in_place=(("a", "b"), ("b", "c")))
    plan = Plan({name: (0,) for name, *_ in chain}, 64, 0, "by hand", Status.OPTIMAL)
    names = drawn_of(problem, plan)
    assert [names.place(name) for name in "abc"] == pytest.approx([1, 3, 7], abs=0.02)
    # A source may outlive its result, whose name stays in its box.
    pair = Problem(
        (Buffer("a", 64, ((0, 10),)), Buffer("b", 64, ((4, 7),))), in_place=(("a", "b"),)
    )
    names = drawn_of(pair, Plan({"a": (0,), "b": (0,)}, 64, 0, "by hand", Status.OPTIMAL))
    assert [names.place(name) for name in "ab"] == pytest.approx([2, 5.5], abs=0.02)
    apart = replace(PLAN, offsets={**PLACED, "result": (65536,)}, peak=65536 + 20480)
    assert "live in place" not in drawn_of(KERNEL, apart).legend()


def test_buffers_are_called_what_the_labels_say():
    drawn = drawn_of(KERNEL, PLAN, labels={"double": "weights", "source": "conv", "x": "y"})
    names = {"weights[0]", "weights[1]", "conv", "result", "$cost_in_$"}
    assert {name for name in drawn.names() if not name.endswith("KiB")} == names


@pytest.mark.parametrize("count", [0, 5001])
def test_any_number_of_buffers(count, tmp_path):
    buffers = tuple(Buffer(f"b{i}", 64, ((i, i + 2),)) for i in range(count))
    offsets = {f"b{i}": (64 * (i % 2),) for i in range(count)}
    plan = Plan(offsets, 128 if count else 0, 0, "alternating", Status.OPTIMAL)
    report = tvm_ext.memory_map(Problem(buffers), {"one": plan})
    report.save(tmp_path / "map.svg")
    drawn = Drawn((tmp_path / "map.svg").read_text())
    assert len(drawn.boxes(AT_PEAK)) + len(drawn.boxes(OTHERS)) == count
    assert drawn.names() == []
    assert (tmp_path / "map.svg").stat().st_size < 1_000_000


def test_maps_side_by_side_have_the_same_scales():
    problem = Problem(tuple(Buffer(f"b{i}", 64, ((i, i + 2),)) for i in range(4)), name="p")
    tall = Plan({f"b{i}": (64 * i,) for i in range(4)}, 256, 0, "tall", Status.FEASIBLE)
    low = Plan({f"b{i}": (64 * (i % 2),) for i in range(4)}, 128, 0, "low", Status.OPTIMAL)
    drawn = Drawn(tvm_ext.memory_map(problem, {"stock": tall, "best": low}).picture().svg)
    assert {"p, global: stock (tall)", "p, global: best (low)"} <= drawn.legend()
    of = {bytes_: sum(1 for _, n in drawn.up if n == bytes_) for _, bytes_ in drawn.up}
    assert set(of.values()) == {2}, "each address stands at both"
    assert {y for y, n in drawn.up if n == 256} == {next(y for y, n in drawn.up if n == 256)}


def test_nothing_to_draw_is_an_error(tmp_path):
    with pytest.raises(ValueError, match="there is no buffer to plan"):
        Report("nothing").picture()
    with pytest.raises(TypeError, match="plans are of a Problem; of a program, name planners"):
        tvm_ext.memory_map("squeezenet", {"best": PLAN})
    with pytest.raises(ValueError, match="there is no plan to draw"):
        draw_plans([])
    with pytest.raises(ValueError, match="there is no run to draw"):
        pipeline_timelines([("", simulate((), [], MACHINE))])
    with pytest.raises(TypeError, match="needs a Simulation, got None"):
        pipeline_timelines([("", None)])
    with pytest.raises(ValueError, match=r"the name of a picture must end in \.svg"):
        draw_plans([("one", KERNEL, PLAN)]).save(tmp_path / "one.png")


def test_a_plan_without_an_offset_is_an_error_that_names_the_buffer():
    for offsets in ({}, {**PLACED, "double": (4096,)}):
        with pytest.raises(ValueError, match="kernel: buffer 'double' has 2 slots, the plan has"):
            drawn_of(KERNEL, replace(PLAN, offsets=offsets))


def test_names_are_only_names():
    name = "</svg><script>&"
    plan = Plan({name: (0,)}, 64, 0, "by hand", Status.OPTIMAL)
    problem = Problem((Buffer(name, 64, ((0, 1),)),), name=name)
    picture = draw_plans([(name, problem, plan)])
    assert Drawn(picture.svg).names()[0] == name
    assert picture._repr_svg_() == picture.svg
    title = "a title that is much longer than a map is wide, as of a lowered program: best\x00"
    long = Drawn(draw_plans([(title, problem, plan)] * 2).svg).legend()
    (shown,) = (text for text in long if "…" in text)
    assert title.startswith(shown.partition("…")[0])
    assert shown.endswith("lowered program: best�")


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


ROWS = ("V", "MTE2")


def timeline(found=FOUND, problems=(PIPED,)) -> Drawn:
    return Drawn(pipeline_timelines([("three tiles", found)], problems).svg, ROWS)


def spans(drawn, fill):
    """Return (begin, end, row) of each box of a timeline."""
    return [(round(a), round(b), round((low + high) / 2)) for a, b, low, high in drawn.boxes(fill)]


def test_each_run_is_a_box_in_the_row_of_its_pipe_and_the_colour_of_its_buffer():
    drawn = timeline()
    runs = [(run.begin, run.end, ROWS.index(run.pipe)) for run in FOUND.timeline]
    tile, late, none = (spans(drawn, colour) for colour in (PALETTE[1], PALETTE[2], "#ffffff"))
    assert (tile, late, none) == (runs[:6], [runs[6]], [runs[7]])
    assert {"load: tile[0]", "add: tile[1]", "nothing"} <= {*drawn.names()}


def test_waits_are_drawn_where_the_pipe_is_idle_and_in_the_shade_of_their_cause():
    drawn = timeline()
    names = {
        Cause.DATA: "waits for data",
        Cause.SLOT: "waits for a slot",
        Cause.REUSE: "waits for reused bytes",
    }
    runs = [(run.begin, run.end, ROWS.index(run.pipe)) for run in FOUND.timeline]
    assert {*names.values()} <= drawn.legend()
    for cause, name in names.items():
        assert WAITS[cause][0] == name
        waits = spans(drawn, WAITS[cause][1])
        assert sum(end - begin for begin, end, _ in waits) == FOUND.waited(cause) > 0
        for begin, end, row in waits:
            assert all(b >= end or e <= begin for b, e, r in runs if r == row)


def test_the_summary_says_the_makespan_and_how_idle_each_pipe_is():
    said = timeline(problems=()).legend()
    idle = {f"{100 * pipe.idle / FOUND.makespan:.0f}% idle" for pipe in FOUND.pipes}
    assert {"three tiles", f"makespan {FOUND.makespan} cycles", *ROWS, *idle} <= said
    part = simulate(PROGRAM, [(PIPED, PIPED_PLAN)], MACHINE, timeline=3)
    assert f"makespan {FOUND.makespan} cycles, the first 3 of 8 runs" in timeline(part).legend()
