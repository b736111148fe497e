# SPDX-License-Identifier: Apache-2.0
"""The plan command: its exit codes, its last line, the file it writes."""

import csv

import pytest

from passes.planning import Budget
from tvm_ext.__main__ import main
from tvm_ext.commands import plan_command

ROWS = "id,lower,upper,size\nb1,0,3,4\nb2,3,9,4\nb3,0,9,4\nb4,9,21,4\nb5,0,21,4\n"


@pytest.fixture
def table(tmp_path):
    path = tmp_path / "input.csv"
    path.write_text(ROWS)
    return path


def test_what_fits(table, tmp_path, capsys):
    out = tmp_path / "out.csv"
    assert main(["plan", str(table), "--capacity", "12", "--output", str(out)]) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert "peak 12 bytes, lower bound 12 bytes, ratio 1.0000, lowest peak" in last
    with out.open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert list(rows[0]) == ["id", "lower", "upper", "size", "offset"]
    ends = [int(row["offset"]) + int(row["size"]) for row in rows]
    assert max(ends) == 12


def test_what_does_not_fit(table, capsys):
    assert main(["plan", str(table), "--capacity", "11"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("does not fit: scope 'global' needs 12 bytes")
    assert lines[0].endswith("and has 11")
    assert any(line.strip().startswith("it fits with one of these changes") for line in lines)
    assert lines[-1].endswith("ratio 1.0000, does not fit, as no plan does")


def test_it_reads_what_it_wrote(table, tmp_path, capsys):
    first, second = tmp_path / "first.csv", tmp_path / "second.csv"
    assert main(["plan", str(table), "--output", str(first)]) == 0
    assert main(["plan", str(first), "--output", str(second)]) == 0
    assert first.read_text() == second.read_text()
    capsys.readouterr()


def test_sizes_may_have_units(tmp_path):
    path = tmp_path / "large.csv"
    path.write_text(f"id,lower,upper,size\na,0,2,{3 << 19}\nb,1,3,{1 << 20}\n")
    plan = ["plan", str(path), "--alignment", "4KiB", "--capacity"]
    assert main([*plan, "2.5MiB"]) == 0
    assert main([*plan, "2MiB"]) == 1


PLANNER = """
from tvm_ext import Plan, Status

def stacked(problem, budget):
    offsets, top = {}, 0
    for buffer in problem.buffers:
        offsets[buffer.name] = (top,)
        top += buffer.size
    return Plan(offsets, top, 0, "stacked", Status.FEASIBLE)
"""


def test_a_planner_of_the_users_own(table, monkeypatch, capsys):
    monkeypatch.chdir(table.parent)
    (table.parent / "mine_for_the_plan_command.py").write_text(PLANNER)
    name = "mine_for_the_plan_command:stacked"
    assert main(["plan", str(table), "--planners", name]) == 0
    assert "(stacked): peak 20 bytes" in capsys.readouterr().out
    for wrong, message in (
        ("no_such_module:plan", "cannot import 'no_such_module'"),
        ("mine_for_the_plan_command:no", "has no function 'no'"),
    ):
        assert main(["plan", str(table), "--planners", wrong]) == 2
        assert message in capsys.readouterr().err


class Clock:
    """Time that passes only while a file is read, and planned."""

    def __init__(self, monkeypatch, reading, planning):
        self.now, self.budgets = 100.0, []
        read, plan = plan_command.read_problem, plan_command.planned
        monkeypatch.setattr(plan_command.time, "monotonic", lambda: self.now)
        monkeypatch.setattr(plan_command, "read_problem", self.during(reading, read))
        monkeypatch.setattr(plan_command, "planned", self.during(planning, plan))

    def during(self, seconds, function):
        def run(*arguments):
            self.now += seconds
            self.budgets += [each for each in arguments if isinstance(each, Budget)]
            return function(*arguments)

        return run


def test_the_time_limit_is_for_reading_and_checking_too(table, monkeypatch, capsys):
    clock = Clock(monkeypatch, reading=2.0, planning=3.0)
    assert main(["plan", str(table), "--time-limit", "10"]) == 0
    (budget,) = clock.budgets
    assert budget.seconds == 10 - 2.0 * (1 + plan_command.CHECKING)
    assert capsys.readouterr().err == ""


def test_more_time_than_the_limit_is_said(table, monkeypatch, capsys):
    clock = Clock(monkeypatch, reading=2.0, planning=3.0)
    assert main(["plan", str(table), "--time-limit", "1"]) == 0
    assert clock.budgets[0].seconds == 0
    assert capsys.readouterr().err == (
        "took 5.0 s, above the limit of 1 s: 2.0 s to read, 3.0 s to plan and check, 0.0 s to "
        "write\n"
    )
