# SPDX-License-Identifier: Apache-2.0
"""``--memories``: tables and networks over several memories."""

import csv
import json
import re

import pytest

from tvm_ext.__main__ import main

# `long` is touched at 0, 1, 2 and 9; `big` needs the whole memory in between.
ROWS = "id,lower,upper,size,uses,touches\nlong,0,10,4,4,0 1 2 9\nbig,3,6,8,9,\n"


@pytest.fixture
def table(tmp_path):
    path = tmp_path / "input.csv"
    path.write_text(ROWS)
    return path


def rows_of(path):
    with path.open(newline="") as stream:
        return {row["id"]: row for row in csv.DictReader(stream)}


def test_a_plan_says_what_moves_and_what_is_proven(table, tmp_path, capsys):
    out, data = tmp_path / "out.csv", tmp_path / "out.json"
    chosen = ["--memories", "sram:8,dram", "--output", str(out), "--json", str(data)]
    assert main(["plan", str(table), *chosen]) == 0
    first = capsys.readouterr().out.splitlines()[0]
    assert first == "2 buffers: 16 bytes move over dram, lower bound 16, least (proven)"
    assert {name: row["memory"] for name, row in rows_of(out).items()} == {
        "long": "dram",
        "big": "sram",
    }
    assert json.loads(data.read_text())["moved"] == {"sram": 0, "dram": 16}


def test_a_buffer_that_moves_has_its_stays_in_the_file(table, tmp_path, capsys):
    out = tmp_path / "out.csv"
    chosen = ["--memories", "sram:8,dram", "--moves", "--output", str(out)]
    assert main(["plan", str(table), *chosen]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("2 buffers: 8 bytes move over dram")
    assert lines[-1] == "1 buffers move, in 1 copies of 4 bytes"
    assert rows_of(out)["long"]["stays"].startswith("sram:0:0-3")


def test_it_reads_what_it_wrote(table, tmp_path, capsys):
    first, second = tmp_path / "first.csv", tmp_path / "second.csv"
    memories = ["--memories", "sram:8,dram", "--moves", "--output"]
    assert main(["plan", str(table), *memories, str(first)]) == 0
    assert main(["plan", str(first), *memories, str(second)]) == 0
    assert first.read_text() == second.read_text()
    # Without several memories the further columns mean nothing.
    assert main(["plan", str(first)]) == 0
    capsys.readouterr()


def test_what_does_not_fit_says_what_lacks_and_what_would_help(table, capsys):
    assert main(["plan", str(table), "--memories", "sram:6,dram:7"]) == 1
    assert capsys.readouterr().out.splitlines() == [
        f"{table} does not fit its memories (no plan does, proven)",
        "  'big' of 8 bytes has no room by itself: 'sram' has 6, lacks 2, 'dram' has 7, lacks 1",
        "  it fits with 8 bytes of 'sram': planned",
        "  it fits with 8 bytes of 'dram': planned",
    ]


def test_ways_to_choose_stand_side_by_side(table, tmp_path, capsys):
    data = tmp_path / "out.json"
    options = ["--memories", "sram:8,dram", "--json", str(data)]
    assert main(["compare", str(table), *options]) == 0
    moved = {row["name"].strip(): row["moved"]["dram"] for row in json.loads(data.read_text())}
    assert moved["all in the slowest"] == 88
    assert moved["greedy, as ExecuTorch"] == moved["ours"] == 16
    assert moved["ours, tensors move"] == moved["no plan is below, moves"] == 8
    assert "least (proven)" in capsys.readouterr().out


def test_a_network_is_a_problem_of_several_memories(capsys):
    assert main(["compare", "mobilenet_v2", "--memories", "sram:512KiB,dram"]) == 0
    text = capsys.readouterr().out
    assert text.count("least (proven)") == 2


def test_a_map_has_a_box_for_each_stay_which_names_its_copies(tmp_path, capsys):
    table, out = tmp_path / "input.csv", tmp_path / "out.html"
    table.write_text(ROWS.replace("long,", "<b>,"))
    options = ["--memories", "sram:8,dram", "--moves", "--output", str(out)]
    assert main(["map", str(table), *options]) == 0
    (data,) = re.findall(r'<script type="application/json"[^>]*>(.*?)</script>', out.read_text())
    sram, dram = json.loads(data)["scopes"]
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
    assert "8 bytes move over dram" in capsys.readouterr().out


@pytest.mark.parametrize("capacity", [6, 8])
def test_a_picture_is_drawn_whether_or_not_all_fits(table, tmp_path, capacity, capsys):
    out = tmp_path / "out.svg"
    memories = ["--memories", f"sram:6,dram:{capacity}", "--output", str(out)]
    assert main(["map", str(table), *memories]) == int(capacity == 6)
    assert out.read_text().startswith("<?xml")
    capsys.readouterr()
