# SPDX-License-Identifier: Apache-2.0
"""The plan command, and ``--memories`` of all commands: exit codes, what is said and written."""

import csv
import json
import re

import pytest

from passes.planning import Budget
from tvm_ext.commands import plan_command

ROWS = "id,lower,upper,size\nb1,0,3,4\nb2,3,9,4\nb3,0,9,4\nb4,9,21,4\nb5,0,21,4\n"

# `long` is touched at 0, 1, 2 and 9; `big` needs the whole memory in between.
MOVING = "id,lower,upper,size,uses,touches\nlong,0,10,4,4,0 1 2 9\nbig,3,6,8,9,\n"


@pytest.fixture
def table(write):
    return write("input.csv", ROWS)


@pytest.fixture
def moving(write):
    return write("moving.csv", MOVING)


@pytest.fixture
def out(tmp_path):
    return tmp_path / "out.csv"


def rows_of(path):
    with path.open(newline="") as stream:
        return {row["id"]: row for row in csv.DictReader(stream)}


def test_what_fits(table, out, run):
    status, said, _ = run("plan", table, "--capacity", "12", "--output", str(out))
    assert status == 0
    last = said.splitlines()[-1]
    assert "peak 12 bytes, lower bound 12 bytes, ratio 1.0000, lowest peak" in last
    rows = rows_of(out).values()
    assert list(next(iter(rows))) == ["id", "lower", "upper", "size", "offset"]
    assert max(int(row["offset"]) + int(row["size"]) for row in rows) == 12


def test_what_does_not_fit(table, run):
    status, said, _ = run("plan", table, "--capacity", "11")
    lines = said.splitlines()
    assert status == 1
    assert lines[0].startswith("does not fit: scope 'global' needs 12 bytes")
    assert lines[0].endswith("and has 11")
    assert any(line.strip().startswith("it fits with smaller tiles") for line in lines)
    assert lines[-1].endswith("ratio 1.0000, does not fit, as no plan does")


@pytest.mark.parametrize("memories", [[], ["--memories", "sram:8,dram", "--moves"]])
def test_it_reads_what_it_wrote(moving, tmp_path, run, memories):
    first, second = tmp_path / "first.csv", tmp_path / "second.csv"
    assert run("plan", moving, *memories, "--output", str(first))[0] == 0
    assert run("plan", str(first), *memories, "--output", str(second))[0] == 0
    assert first.read_text() == second.read_text()
    # Without several memories the further columns mean nothing.
    assert run("plan", str(first))[0] == 0


def test_sizes_may_have_units(write, run):
    path = write("large.csv", f"id,lower,upper,size\na,0,2,{3 << 19}\nb,1,3,{1 << 20}\n")
    for capacity, status in (("2.5MiB", 0), ("2MiB", 1)):
        assert run("plan", path, "--alignment", "4KiB", "--capacity", capacity)[0] == status


PLANNER = """
from tvm_ext import Plan, Status

def stacked(problem, budget):
    offsets, top = {}, 0
    for buffer in problem.buffers:
        offsets[buffer.name] = (top,)
        top += buffer.size
    return Plan(offsets, top, 0, "stacked", Status.FEASIBLE)
"""


def test_a_planner_of_the_users_own(table, write, tmp_path, monkeypatch, run):
    monkeypatch.chdir(tmp_path)
    write("mine_for_the_plan_command.py", PLANNER)
    _, said, _ = run("plan", table, "--planners", "mine_for_the_plan_command:stacked")
    assert "(stacked): peak 20 bytes" in said
    for wrong, message in (
        ("no_such_module:plan", "cannot import 'no_such_module'"),
        ("mine_for_the_plan_command:no", "has no function 'no'"),
    ):
        status, _, error = run("plan", table, "--planners", wrong)
        assert status == 2
        assert message in error


class Clock:
    """Time that passes only while a file is read, and planned."""

    def __init__(self, monkeypatch, reading, planning):
        self.now, self.budgets = 100.0, []
        read, plan = plan_command.files.read_problem, plan_command.planned
        monkeypatch.setattr(plan_command.time, "monotonic", lambda: self.now)
        monkeypatch.setattr(plan_command.files, "read_problem", self.during(reading, read))
        monkeypatch.setattr(plan_command, "planned", self.during(planning, plan))

    def during(self, seconds, function):
        def run(*arguments, **options):
            self.now += seconds
            self.budgets += [each for each in arguments if isinstance(each, Budget)]
            return function(*arguments, **options)

        return run


def test_the_time_limit_is_for_reading_and_checking_too(table, monkeypatch, run):
    clock = Clock(monkeypatch, reading=2.0, planning=3.0)
    status, _, error = run("plan", table, "--time-limit", "10")
    assert (status, error) == (0, "")
    (budget,) = clock.budgets
    assert budget.seconds == 10 - 2.0 * (1 + plan_command.CHECKING)


def test_more_time_than_the_limit_is_said(table, monkeypatch, run):
    clock = Clock(monkeypatch, reading=2.0, planning=3.0)
    status, _, error = run("plan", table, "--time-limit", "1")
    assert (status, clock.budgets[0].seconds) == (0, 0)
    assert error == (
        "took 5.0 s, above the limit of 1 s: 2.0 s to read, 3.0 s to plan and check, 0.0 s to "
        "write\n"
    )


# ---------------------------------------------------------------------------- several memories


def test_a_plan_says_what_moves_and_what_is_proven(moving, out, tmp_path, run):
    data, memories = tmp_path / "out.json", ["--memories", "sram:8,dram"]
    _, said, _ = run("plan", moving, *memories, "--output", str(out), "--json", str(data))
    first = said.splitlines()[0]
    assert first == "2 buffers: 16 bytes move over dram, lower bound 16, least (proven)"
    assert {name: row["memory"] for name, row in rows_of(out).items()} == {
        "long": "dram",
        "big": "sram",
    }
    assert json.loads(data.read_text())["moved"] == {"sram": 0, "dram": 16}


def test_a_buffer_that_moves_has_its_stays_in_the_file(moving, out, run):
    _, said, _ = run("plan", moving, "--memories", "sram:8,dram", "--moves", "--output", str(out))
    lines = said.splitlines()
    assert lines[0].startswith("2 buffers: 8 bytes move over dram")
    assert lines[-1] == "1 buffers move, in 1 copies of 4 bytes"
    assert rows_of(out)["long"]["stays"].startswith("sram:0:0-3")


def test_what_does_not_fit_says_what_lacks_and_what_would_help(moving, run):
    status, said, _ = run("plan", moving, "--memories", "sram:6,dram:7")
    assert status == 1
    assert said.splitlines() == [
        f"{moving} does not fit its memories (no plan does, proven)",
        "  'big' of 8 bytes has no room by itself: 'sram' has 6, lacks 2, 'dram' has 7, lacks 1",
        "  it fits with 8 bytes of 'dram': planned",
    ]


def test_ways_to_choose_stand_side_by_side(moving, tmp_path, run):
    data = tmp_path / "out.json"
    _, said, _ = run("compare", moving, "--memories", "sram:8,dram", "--json", str(data))
    (table,) = json.loads(data.read_text())["facts"]
    moved = {row[0].strip(): int(row[1]) for row in table["rows"][1:]}
    assert moved["all in the slowest"] == 88
    assert moved["greedy, as ExecuTorch"] == moved["ours"] == 16
    assert moved["ours, tensors move"] == moved["no plan is below, moves"] == 8
    assert "least (proven)" in said


def test_a_network_is_a_problem_of_several_memories(run):
    status, said, _ = run("compare", "mobilenet_v2", "--memories", "sram:512KiB,dram")
    assert status == 0
    assert said.count("least (proven)") == 2


def test_a_map_has_a_box_for_each_stay_which_names_its_copies(write, tmp_path, run):
    table, out = write("input.csv", MOVING.replace("long,", "<b>,")), tmp_path / "out.html"
    options = ["--memories", "sram:8,dram", "--moves", "--output", str(out)]
    status, said, _ = run("map", table, *options)
    (data,) = re.findall(r'<script type="application/json"[^>]*>(.*?)</script>', out.read_text())
    sram, dram = json.loads(data)["memories"]
    boxes = {
        box["name"]: (box["live"], offsets, box["what"])
        for scope in (sram, dram)
        for box, offsets in zip(scope["buffers"], scope["plans"][0]["offsets"], strict=True)
    }
    copied = "copied from sram to dram in [1, 3)"
    assert boxes == {
        "<b>, in [0, 3)": ([[0, 3]], [0], copied),
        "big": ([[3, 6]], [0], ""),
        "<b>": ([[0, 10]], [0], copied),
    }
    assert status == 0
    assert "8 bytes move over dram" in said


@pytest.mark.parametrize("capacity", [6, 8])
def test_a_picture_is_drawn_whether_or_not_all_fits(moving, tmp_path, capacity, run):
    out = tmp_path / "out.svg"
    memories = ["--memories", f"sram:6,dram:{capacity}", "--output", str(out)]
    assert run("map", moving, *memories)[0] == int(capacity == 6)
    assert out.read_text().startswith("<svg")


def test_offsets_of_the_table_are_kept_or_said_to_be_passed_over(write, out, run):
    table = write("kept.csv", "id,lower,upper,size,offset\na,0,2,4KiB,64\nb,0,2,8,\n")
    status, _, err = run("plan", table, "--keep-offsets", "-o", str(out))
    assert (status, err) == (0, "")
    assert {name: row["offset"] for name, row in rows_of(out).items()} == {"a": "64", "b": "0"}
    status, _, err = run("plan", table, "-o", str(out))
    assert "--keep-offsets holds buffers there" in err
    assert rows_of(out)["a"]["offset"] == "0"
